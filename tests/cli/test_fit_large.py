"""`posquad fit` and `posquad predict` on tables that stay in their files."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest
from click.testing import CliRunner

from posquad.cli import fit as fit_module
from posquad.cli.main import main
from posquad.cli.threads import require_scale
from posquad.core.status import Status
from posquad.core.threads import one_thread
from posquad.estimator import PositiveQuadraticRegressor
from posquad.io.models import load_model
from posquad.io.tables import TableError, _loading, _memory, _parquet, read_samples
from posquad.problems import rows
from posquad.problems.rows import disk
from posquad.report.fitted_model import FittedModel

N, D = 5000, 4


@pytest.fixture(autouse=True)
def small_tables_are_large(monkeypatch):
    monkeypatch.setattr(_memory, "STREAMED", 1)


@pytest.fixture
def without_report(monkeypatch):
    """The figures take most of the time of a small fit."""
    monkeypatch.setattr(fit_module, "render", lambda fitted: "")


def table(noise=0.1):
    rng = np.random.default_rng(0)
    X, U = rng.standard_normal((N, D)), rng.standard_normal((D, 2))
    y = ((X @ U) ** 2).sum(1)
    return X, y + noise * rng.standard_normal(N), rng.random(N)


def call(*arguments):
    return CliRunner().invoke(main, [str(each) for each in arguments])


PROGRAM = Path(__file__).with_name("processes_program.py")


def launch(size, *arguments):
    """Run a program in several processes without `torchrun`; return outputs and statuses."""
    with socket.socket() as free, socket.socket() as other:
        for each in (free, other):
            each.bind(("127.0.0.1", 0))
        port, second = (str(each.getsockname()[1]) for each in (free, other))
    known = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(size)}
    known["SECOND_PORT"] = second  # of a second group: one that begins early finds no old store
    processes = [
        subprocess.Popen(
            [sys.executable, PROGRAM, *map(str, arguments)],
            env={**os.environ, **known, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    said = [process.communicate(timeout=300)[0] for process in processes]
    return said, [process.returncode for process in processes]


def write_parquet(folder, *columns):
    """Write columns x1, x2, ... to a Parquet file."""
    joint = np.column_stack(columns)
    named = {f"x{k}": column for k, column in enumerate(joint.T, 1)}
    parquet.write_table(pyarrow.table(named), folder / "t.parquet")
    return folder / "t.parquet"


def test_torchrun_fits_as_one_process_does(tmp_path, monkeypatch):
    X, y, w = table()
    path, out = write_parquet(tmp_path, X, y, w), tmp_path / "fit"
    chosen = ("--response", "x5", "--weights", "x6", "--rank", 2)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", 2, PROGRAM, "fit", path, *chosen, "--out", out]
    run = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("read               block by block, from a copy of its numbers") == 1
    assert not list(tmp_path.glob(".*"))  # the processes share a copy, and the last one deletes it
    monkeypatch.setattr(disk, "BLOCK_BYTES", 2**14)
    alone = PositiveQuadraticRegressor(2, max_starts=50)
    with one_thread():  # as the processes have
        alone.fit(rows.from_parquet(path).with_columns([0, 1, 2, 3]), y, w)
    kept = load_model(out)
    # The same blocks, and sums that do not depend on who adds them: the same bits.
    np.testing.assert_array_equal(kept.components_, alone.components_)
    assert (kept.n_iter_, kept.status_) == (alone.n_iter_, alone.status_)
    whole = PositiveQuadraticRegressor(2).fit(X, y, w)
    named = call("predict", out, path, "--features", "x1,x2,x3,x4", "--out", tmp_path / "p.npz")
    assert named.exit_code == 0, named.output
    mean, error = whole.predict(X, return_std=True)
    with np.load(tmp_path / "p.npz") as held:
        np.testing.assert_allclose(held["prediction"], mean, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(held["standard_error"], error, rtol=1e-8)


@pytest.mark.usefixtures("without_report")
def test_a_proof_reads_all_rows(tmp_path):
    X, y, _ = (part[:200] for part in table(noise=0.0))
    path, out = tmp_path / "t.npy", tmp_path / "fit"
    np.save(path, np.column_stack([X, y]))
    assert call("fit", path, "--response", "x5", "--rank", 2, "--out", out).exit_code == 0
    run = call("certify", path, out)
    assert run.exit_code == 0, run.output
    assert "proved to be the only answer" in run.output


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("streamed", [False, True])
def test_the_table_of_the_fit_is_predicted_as_it_is(streamed, tmp_path, monkeypatch):
    """The columns have no names: response and weights are where they were in the fit."""
    monkeypatch.setattr(_memory, "STREAMED", 1 if streamed else 2**40)
    X, y, w = (part[:900] for part in table())
    path, out = tmp_path / "t.npy", tmp_path / "fit"
    np.save(path, np.column_stack([y, X, w]))
    fitted = call("fit", path, "--response", "x1", "--weights", "x6", "--features", "x3,x4,x2,x5",
                  "--rank", 2, "--no-validate", "--out", out)  # fmt: skip
    assert fitted.exit_code == 0, fitted.output
    whole = PositiveQuadraticRegressor(2).fit(X, y, w).predict(X)
    run = call("predict", out, path, "--no-std", "--out", tmp_path / "p.npy")
    assert run.exit_code == 0, run.output
    assert "'x1' is taken as the response" in run.stderr
    assert "Compared with column 'x1': R² 0.99" in run.stderr
    np.testing.assert_allclose(np.load(tmp_path / "p.npy")[:, 0], whole, rtol=1e-8, atol=1e-8)
    np.save(path, X[:, [1, 2, 0, 3]])  # the inputs alone
    run = call("predict", out, path, "--no-std", "--out", tmp_path / "p.npy")
    assert (run.exit_code, run.stderr) == (0, "")
    np.testing.assert_allclose(np.load(tmp_path / "p.npy")[:, 0], whole, rtol=1e-8, atol=1e-8)
    np.save(path, np.column_stack([X, y]))  # neither
    run = call("predict", out, path)
    assert run.exit_code == 2
    assert "expected 4 columns of inputs, as the model has (see --features); got 5" in run.stderr


def test_processes_that_are_interrupted_or_killed(tmp_path):
    X, y, _ = table()
    np.save(tmp_path / "t.npy", np.column_stack([X, y]))
    said, statuses = launch(2, "faults", tmp_path / "t.npy", tmp_path)
    assert statuses == [0, -9], said
    first, second = said[0].split("status 130\n")
    assert "Interrupted: the best model so far was written." in first
    model = load_model(tmp_path / "interrupted")
    assert model.status_ is Status.INTERRUPTED
    best = PositiveQuadraticRegressor(1).fit(X, y)  # the descent that was complete
    np.testing.assert_allclose(model.predict(X), best.predict(X), atol=1e-6 * y.std())
    assert said[1].splitlines() == ["Error: rank 0: expected a decision; got Ctrl-C", "status 1"]
    ended = "Error: group: expected all processes of the group to go on; got one that ended or"
    assert second.startswith(ended)
    assert second.splitlines()[-1] == "status 1"
    left = {path.name for path in (tmp_path / "killed").iterdir()}
    assert left <= {"model.checkpoint", "model.checkpoint.rank1"}  # from which it goes on


@pytest.mark.parametrize("option", ["--certify", "--validate", "--criterion cv", "--loss huber"])
def test_options_that_need_all_rows(option, tmp_path):
    X, y, _ = table()
    np.save(tmp_path / "t.npy", np.column_stack([X, y]))
    run = call(
        "fit", tmp_path / "t.npy", "--response", "x5", "--out", tmp_path / "f", *option.split()
    )
    assert run.exit_code == 2, run.output
    assert f"{option}: expected a smaller table" in run.output.replace("\n", " ")
    assert not (tmp_path / "f").exists()


def command_on_table(folder):
    """A fit of rank 2 to a table in a folder, and where it writes."""
    X, y, _ = table()
    np.save(folder / "t.npy", np.column_stack([X, y]))
    out = folder / "fit"
    return ("fit", folder / "t.npy", "--response", "x5", "--rank", 2, "--out", out), out


def interrupt(*arguments, **options):
    raise KeyboardInterrupt


def test_ctrl_c_keeps_a_checkpoint_from_which_the_command_goes_on(tmp_path, monkeypatch):
    words, out = command_on_table(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(PositiveQuadraticRegressor, "_fit_moments", interrupt)
        run = call(*words)
        assert run.exit_code == 130
        assert f"Interrupted: the same command goes on from {out}/model.checkpoint." in run.output
        assert [item.name for item in out.iterdir()] == ["model.checkpoint"]
        other = call("fit", words[1], "--response", "x5", "--rank", 1, "--out", out)
        assert "model.checkpoint is not used, and the work begins anew" in other.output
        call(*words)
    run = call(*words)
    assert run.exit_code == 0, run.output
    assert f"Going on from {out}/model.checkpoint: 100% of the rows had been read." in run.output
    assert sorted(item.name for item in out.iterdir()) == [
        "model.json",
        "model.safetensors",
        "report.html",
    ]


@pytest.mark.parametrize("stage", ["predict", "render"])
def test_ctrl_c_after_the_search_writes_the_model(stage, tmp_path, monkeypatch):
    words, out = command_on_table(tmp_path)
    monkeypatch.setattr(fit_module, stage, interrupt)
    run = call(*words)
    assert run.exit_code == 130
    assert run.stdout == f"Model:  {out}/model.json\n"
    goes_on = f"The same command goes on from {out}/model.checkpoint.\n"
    assert run.stderr == f"Interrupted: the model was written, without its report.\n{goes_on}"
    X, y, _ = table()
    expected = PositiveQuadraticRegressor(2).fit(X, y).predict(X)
    np.testing.assert_allclose(load_model(out).predict(X), expected, rtol=1e-8, atol=1e-8)
    kept = (out / "model.json").read_bytes()
    run = call(*words)  # now the folder holds an earlier model
    assert (run.exit_code, run.stdout) == (130, "")
    told = f"Interrupted: the same command goes on from {out}/model.checkpoint.\n"
    assert run.stderr.endswith(told)
    assert (out / "model.json").read_bytes() == kept


@pytest.mark.usefixtures("without_report")
def test_ctrl_c_while_the_answer_is_printed_says_that_the_model_is_there(tmp_path, monkeypatch):
    words, out = command_on_table(tmp_path)
    monkeypatch.setattr(fit_module, "print_answer", interrupt)
    run = call(*words)
    assert (run.exit_code, run.stderr) == (130, "Interrupted: the model was written.\n")
    assert load_model(out).rank_ == 2


def test_a_checkpoint_can_be_refused_or_left_out(tmp_path, monkeypatch):
    words, out = command_on_table(tmp_path)
    monkeypatch.setattr(PositiveQuadraticRegressor, "_fit_moments", interrupt)
    assert call(*words, "--no-checkpoint").exit_code == 130
    assert not out.exists()
    wrong = call(*words, "--checkpoint-every", 0)
    assert wrong.exit_code == 2
    assert "--checkpoint-every: expected" in wrong.output
    monkeypatch.setattr(_memory, "STREAMED", 10**9)
    small = call(*words, "--checkpoint")
    assert small.exit_code == 2
    assert "--checkpoint: expected a table of at least 256 MB" in small.output


def copies(folder):
    """The copies of Parquet files in a folder."""
    return [path.name for path in folder.glob(".t.parquet.*")]


@pytest.mark.usefixtures("without_report")
def test_the_copy_of_a_parquet_table_is_said_and_deleted(tmp_path):
    X, y, _ = table()
    path, other = write_parquet(tmp_path, X, y), tmp_path / "other"
    other.mkdir()
    fit = ("fit", path, "--response", "x5", "--rank", 2, "--out", tmp_path / "fit")
    for folder, options in ((tmp_path, ()), (other, ("--cache", other))):
        words = "".join(call(*fit, *options).output.split())  # lines also end within a path
        said = f"read block by block, from a copy of its numbers in {folder} (200.2 KB), which is "
        assert f"{said}deleted at the end".replace(" ", "") in words
        assert not copies(folder)
    run = call(*fit, "--cache", other, "--keep-cache")
    [kept] = copies(other)
    words = "".join(run.output.split())
    assert f"fromacopyofitsnumbersthatiskept:{other}/{kept}" in words
    before = (other / kept).stat()
    predict = ("predict", tmp_path / "fit", path, "--out", tmp_path / "p.npy")
    run = call(*predict, "--cache", other)
    told = f"{path}: read block by block, from a copy of its numbers that is kept: {other}/{kept}"
    assert (run.exit_code, run.stderr.splitlines()[0]) == (0, f"{told} (200.2 KB)")
    assert copies(other) == [kept]
    assert (other / kept).stat().st_mtime_ns == before.st_mtime_ns  # it was used as it is
    run = call(*predict, "--keep-cache")
    assert run.stdout == f"Predictions: {tmp_path}/p.npy (5000 rows; replaces an earlier file)\n"
    assert len(copies(tmp_path)) == 1
    for command in (fit, predict):
        run = call(*command, "--cache", tmp_path / "none")
        assert run.exit_code == 2
        assert "--cache: expected a folder that exists; got" in run.stderr


def test_a_fit_that_fails_or_is_interrupted_deletes_its_copy_and_goes_on(tmp_path, monkeypatch):
    X, y, _ = table()
    path, out = write_parquet(tmp_path, X, y), tmp_path / "fit"
    words = ("fit", path, "--response", "x5", "--rank", 2, "--out", out)
    (tmp_path / "own").mkdir()
    own = rows.from_parquet(path, folder=tmp_path / "own")  # of a program that calls the command
    assert call(*words, "--loss", "huber").exit_code == 2
    assert not copies(tmp_path)
    assert own.read_all().shape == (N, 5)
    with monkeypatch.context() as patch:
        patch.setattr(PositiveQuadraticRegressor, "_fit_moments", interrupt)
        stopped = call(*words, "--checkpoint-every", 1e-9)
    assert stopped.exit_code == 130  # the frames of the command still hold its rows
    assert (out / "model.checkpoint").exists()
    assert not copies(tmp_path)
    monkeypatch.setattr(fit_module, "render", lambda fitted: "")
    run = call(*words)
    assert run.exit_code == 0
    assert f"Going on from {out}/model.checkpoint" in run.stderr
    assert not copies(tmp_path)


def test_a_parquet_table_stays_in_its_file(tmp_path):
    X, y, w = table()
    joint = np.column_stack([X[:, :2], y, w, X[:, 2:]])
    columns = dict(zip("abywce", joint.T, strict=True))
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    samples = read_samples(tmp_path / "t.parquet", weights="w", features=["c", "a"])
    np.testing.assert_array_equal(samples.X.read_all(), X[:, [2, 0]])
    np.testing.assert_array_equal(samples.y, y)
    np.testing.assert_array_equal(samples.weights, w)
    np.testing.assert_allclose(samples.rules.means, X[:, [2, 0]].mean(0), rtol=1e-10)
    known = samples.extremes
    assert known is not None
    for places, values in ((known.low_row, known.low), (known.high_row, known.high)):
        np.testing.assert_array_equal(X[places, [2, 0]], values)
    np.testing.assert_array_equal(known.low, X[:, [2, 0]].min(0))
    np.testing.assert_array_equal(known.high, X[:, [2, 0]].max(0))
    assert len(list(tmp_path.glob(".t.parquet.*.temporary.npy"))) == 1
    columns["a"] = pyarrow.array(columns["a"], mask=np.arange(len(X)) == 7)
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    with pytest.raises(TableError, match=r"row 8, column 'a': .*; got a missing value"):
        read_samples(tmp_path / "t.parquet")


def columns_of_every_kind(n):
    """Columns of a table of which some are no numbers."""
    names = pyarrow.array([f"n{k}" for k in range(n)])
    days = pyarrow.array(np.arange(n).astype("datetime64[D]"))
    empty = pyarrow.array([None] * n, pyarrow.float64())
    even = pyarrow.array(np.arange(n) % 2 == 0)
    return {"name": names, "day": days, "empty": empty, "even": even}


def test_columns_that_are_not_used_do_not_keep_a_table_from_its_file(tmp_path):
    X, y, _ = table()
    whole = np.floor(9 * X[:, 1]).astype(np.int32)
    held = {"a": X[:, 0], "b": whole, "y": y} | columns_of_every_kind(N)
    parquet.write_table(pyarrow.table(held), tmp_path / "t.parquet")
    samples = read_samples(tmp_path / "t.parquet", drop=["name", "day", "empty"])
    assert samples.extremes is not None
    expected = np.column_stack([X[:, 0], whole, np.arange(N) % 2 == 0])
    np.testing.assert_array_equal(samples.X.read_all(), expected)
    np.testing.assert_array_equal(samples.y, y)
    read_samples(tmp_path / "t.parquet", features=["even", "b", "a"])  # the same columns
    assert len(list(tmp_path.glob(".t.parquet.*"))) == 1


def test_text_is_seen_from_the_types_of_a_parquet_table(tmp_path, monkeypatch):
    """The columns of numbers are not read, and of the others the first rows."""
    X, y, _ = table()
    parquet.write_table(
        pyarrow.table({"a": X[:, 0], "y": y} | columns_of_every_kind(N)),
        tmp_path / "t.parquet",
        row_group_size=1000,
    )
    monkeypatch.setattr(_loading, "_LOOKED", 100)
    seen = []
    as_text = _parquet._as_text
    monkeypatch.setattr(_parquet, "_as_text", lambda *given: seen.append(given) or as_text(*given))
    monkeypatch.setattr(_memory, "available_memory", lambda: 10**6)  # the columns are refused first
    run = call("fit", tmp_path / "t.parquet", "--out", tmp_path / "fit")
    assert run.exit_code == 2
    assert run.stderr == (
        f"Error: {tmp_path}/t.parquet: expected columns of numbers; got text in 'name' ('n0', row "
        "1), dates or times in 'day' ('1970-01-01', row 1); add --drop name,day\n"
    )
    assert [name for _, name, _, _ in seen] == ["name", "day"]


@pytest.mark.parametrize(
    ("change", "weights", "words"),
    [
        ({(7, 1): np.nan}, None, "row 8, column 'x2': expected a finite number, because a table"),
        ({(9, 4): np.inf}, None, "row 10, column 'x5': expected a finite number"),
        ({(11, 2): -1e60}, None, r"1.0e\+60 as the largest, in row 12, column 'x3'"),
        ({(3, 3): -9.0}, "x4", "expected nonnegative weights, not all zero; got -9 in row 4"),
    ],
)
def test_numbers_that_cannot_be_used(change, weights, words, tmp_path):
    X, y, _ = table()
    joint = np.column_stack([X, y])
    for place, value in change.items():
        joint[place] = value
    np.save(tmp_path / "t.npy", joint)
    with pytest.raises(TableError, match=words):
        require_scale(read_samples(tmp_path / "t.npy", response="x5", weights=weights))


def test_a_report_compares_the_first_rows(tmp_path):
    X, y, _ = table()
    np.save(tmp_path / "t.npy", np.column_stack([X, y]))
    samples = read_samples(tmp_path / "t.npy", response="x5")
    fit = FittedModel(None, samples, y, 0.0, "", tmp_path)
    np.testing.assert_array_equal(fit.some_inputs, X)
