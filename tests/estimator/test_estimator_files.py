"""Models on disk: exact, without pickle, and refused if damaged or inconsistent."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays
from sklearn.model_selection import KFold

import posquad.estimator._files as files
from posquad.certificates import Certificate
from posquad.core import store
from posquad.core.errors import DomainError
from posquad.core.files import json_checksum, write_whole
from posquad.core.status import Status
from posquad.estimator import PositiveQuadraticRegressor

# Whether the data determine the predictor is asserted through `status_` and `identifiable_`.
pytestmark = pytest.mark.filterwarnings("ignore::posquad.IdentifiabilityWarning")

load = PositiveQuadraticRegressor.load


def fitted(seed=0, noise=0.1, y=None, names=None, weights=None, **parameters):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((24, 3))
    if y is None:
        y = ((X @ rng.standard_normal((3, 2))) ** 2).sum(axis=1) + noise * rng.standard_normal(24)
    model = PositiveQuadraticRegressor(max_starts=4, **parameters)
    return model.fit(X, y, weights, feature_names=names), X


MODELS = {
    "plain": {},
    "rank": {"rank": 1},
    "numpy-parameters": {"rank": np.int64(2), "tolerance": np.float64(1e-9)},
    "intercept": {"fit_intercept": True},
    "validated": {"criterion": "cv", "cv": 2, "max_rank": 2},
    "weights": {"weights": np.linspace(0, 1, 24)},
    "names": {"names": ["a", "täglich", "日"]},
    "nothing": {"y": -np.ones(24)},
    "linear": {"linear": True},
    "constant": {"y": np.full(24, 3.0), "fit_intercept": True},
    "without-errors": {"standard_errors": False},
    "certified": {"rank": 2, "noise": 0.0, "certify": True},
    "unidentified": {"rank": 3, "weights": np.arange(24) < 4},
}


@pytest.mark.parametrize("given", MODELS.values(), ids=MODELS)
def test_a_model_comes_back_as_it_was(tmp_path, given):
    model, X = fitted(**given)
    paths = model.save(tmp_path / "model")
    assert sorted(paths) == sorted(tmp_path.iterdir())
    again = load(tmp_path / "model")
    assert again.get_params() == model.get_params()
    assert set(vars(again)) == set(vars(model))
    for name, value in vars(model).items():
        other = vars(again)[name]
        if name == "certificate_":
            assert str(type(other)) == str(type(value))
            continue
        if name == "uncertainty_" and value is not None:
            value, other = value._asdict(), other._asdict()
        pairs = [(value, other)]
        if isinstance(value, dict):
            assert set(value) == set(other)
            pairs = [(value[key], other[key]) for key in value]
        for mine, theirs in pairs:
            assert np.array(theirs).dtype == np.array(mine).dtype, name
            np.testing.assert_array_equal(theirs, mine, err_msg=name)
    if "feature_names_in_" in vars(model):
        X = pd.DataFrame(X, columns=model.feature_names_in_)
    if model.uncertainty_ is not None:
        for mine, theirs in zip(
            model.predict(X, return_std=True), again.predict(X, return_std=True), strict=True
        ):
            np.testing.assert_array_equal(theirs, mine)
    np.testing.assert_array_equal(again.transform(X), model.transform(X))


def test_the_certificate_comes_back(tmp_path):
    model, _ = fitted(rank=2, noise=0.0, certify=True)
    assert model.status_ is Status.CERTIFIED
    names = {path.name for path in model.save(tmp_path / "m")}
    assert names == {"m.json", "m.safetensors", "m.certificate.json", "m.certificate.npz"}
    again = load(tmp_path / "m")
    assert isinstance(again.certificate_, Certificate)
    assert again.status_ is Status.CERTIFIED
    np.testing.assert_array_equal(again.certificate_.witness.U, model.certificate_.witness.U)


@pytest.mark.parametrize("given", ["m", "m.json", "m.safetensors"])
@pytest.mark.parametrize("asked", ["m", "m.json", "m.safetensors"])
def test_names_with_and_without_suffix(tmp_path, given, asked):
    model, _ = fitted(rank=1)
    model.save(str(tmp_path / given))
    assert {path.name for path in tmp_path.iterdir()} == {"m.json", "m.safetensors"}
    assert load(str(tmp_path / asked)).rank_ == 1


def test_a_dot_in_a_name_is_not_a_suffix(tmp_path):
    model, _ = fitted(rank=1)
    model.save(tmp_path / "model.v1.2")
    assert {path.name for path in tmp_path.iterdir()} == {
        "model.v1.2.json",
        "model.v1.2.safetensors",
    }
    assert load(tmp_path / "model.v1.2").rank_ == 1


@pytest.mark.parametrize("path", ["", ".", "..", "/"])
def test_a_path_must_have_a_name(path):
    model, _ = fitted(rank=1)
    with pytest.raises(DomainError, match="path: expected the name of a file"):
        model.save(path)


def test_a_folder_stands_for_the_model_in_it(tmp_path):
    model, X = fitted(rank=1)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path).predict(X), model.predict(X))
    with pytest.raises(DomainError, match=r"model\.json: expected .* got no such file"):
        load(tmp_path.parent)


@pytest.mark.parametrize("end", [".json", ".safetensors"])
def test_files_of_another_size_are_not_read(tmp_path, end):
    """A sparse file of ten format_bytes of zeros."""
    model, _ = fitted(rank=1)
    model.save(tmp_path / "m")
    with (tmp_path / f"m{end}").open("r+b") as file:
        file.truncate(10 * 2**30)
    with pytest.raises(DomainError, match=f"m{end}: expected a fitted model"):
        load(tmp_path / "m")


def test_the_name_of_the_responses_is_kept(tmp_path):
    model, X = fitted(rank=1)
    assert model.response_name_ is None
    y = model.predict(X)
    model.fit(X, pd.Series(y, name="height"))
    model.save(tmp_path / "m")
    assert load(tmp_path / "m").response_name_ == "height"
    assert model.fit(X, y, response_name="width").response_name_ == "width"


def test_model_files_contain_no_pickle(tmp_path):
    model, _ = fitted(rank=2, noise=0.0, certify=True)
    for path in model.save(tmp_path / "m"):
        assert b"\x80\x04" not in path.read_bytes()[:64]
    source = Path(files.__file__).read_text(encoding="utf-8").replace("no pickle", "")
    assert "pickle" not in source
    header = (tmp_path / "m.safetensors").read_bytes()
    size = int.from_bytes(header[:8], "little")
    assert set(json.loads(header[8 : 8 + size])) >= {"components_", "effective_spectrum_"}
    assert json.loads((tmp_path / "m.json").read_text())["format"] == "posquad model 2"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cv", KFold(3)),
        ("random_state", np.random.RandomState(0)),
        ("time_limit", float("inf")),
        ("max_rank", np.array([2])),
    ],
)
def test_a_parameter_that_is_not_plain_is_refused_and_nothing_is_written(tmp_path, name, value):
    model, _ = fitted(rank=1)
    model.set_params(**{name: value})
    with pytest.raises(DomainError, match=f"^{name}: expected a plain finite value"):
        model.save(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []
    model.set_params(**{name: None}).save(tmp_path / "m")
    assert load(tmp_path / "m").rank_ == 1


# Damage.


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    fitted(rank=2, noise=0.0, certify=True)[0].save(folder / "one")
    fitted(rank=2, noise=0.0, certify=True, seed=1)[0].save(folder / "two")
    return folder


@pytest.fixture
def copy(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "copy"))


PARTS = [".json", ".safetensors", ".certificate.json", ".certificate.npz"]


@pytest.mark.parametrize("part", PARTS)
def test_a_file_that_is_missing_a_folder_or_of_another_model_is_refused(copy, part):
    path = copy / f"one{part}"
    data = path.read_bytes()
    shutil.copy(copy / f"two{part}", path)
    with pytest.raises(DomainError):
        load(copy / "one")
    path.unlink()
    with pytest.raises(DomainError):
        load(copy / "one")
    path.mkdir()
    with pytest.raises(DomainError):
        load(copy / "one")
    path.rmdir()
    path.write_bytes(data)
    assert load(copy / "one").rank_ == 2


def test_a_certificate_of_another_model_is_refused(copy):
    for part in PARTS[2:]:  # both files, which fit together
        shutil.copy(copy / f"two{part}", copy / f"one{part}")
    with pytest.raises(DomainError, match="belongs to another model"):
        load(copy / "one")


@pytest.mark.parametrize("part", PARTS[:2])
def test_truncation_at_every_length_is_refused(copy, part):
    path = copy / f"one{part}"
    data = path.read_bytes()
    lengths = range(0, len(data) - 1, max(1, len(data) // 60))  # the last byte of JSON is a newline
    for length in [*lengths, len(data) - 2]:
        path.write_bytes(data[:length])
        with pytest.raises(DomainError):
            load(copy / "one")


@pytest.mark.parametrize("part", PARTS)
def test_a_flipped_bit_is_refused_or_means_nothing(copy, part):
    rng = np.random.default_rng(0)
    path = copy / f"one{part}"
    data = path.read_bytes()
    refused = 0
    for _ in range(60):
        changed = bytearray(data)
        place, bit = rng.integers(len(data)), rng.integers(8)
        changed[place] ^= 1 << bit
        path.write_bytes(bytes(changed))
        try:
            model = load(copy / "one")
        except DomainError:
            refused += 1
        else:  # only white space between JSON tokens can be changed unseen
            assert chr(data[place]).isspace()
            assert model.rank_ == 2
    assert refused >= 50


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}",
        '{"format": "posquad model 2"}',
        '{"format": "posquad model 2", "sha256": NaN}',
        '{"format": "posquad model 2", "sha256": ' + "9" * 5000 + "}",
        '{"format": "posquad model 2", "sha256": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"format": "posquad model 2", "sha256": ' + "[" * 900 + "]" * 900 + "}",
        '{"format": "posquad certificate 1"}',
        '{"format": ["posquad model 2"]}',
        "\ufeff{}",
        "\x00" * 100,
    ],
    ids=range(13),
)
def test_other_json_is_refused(copy, text):
    (copy / "one.json").write_bytes(text.encode())
    with pytest.raises(DomainError, match="expected a fitted model"):
        load(copy / "one")
    (copy / "one.json").write_bytes(b"\xff\xfe" + text.encode("utf-16-le"))
    with pytest.raises(DomainError, match="expected a fitted model"):
        load(copy / "one")


def forge(folder, change, name="one"):
    """Change the body or the arrays, and give them the right checksums."""
    json_path, array_path = folder / f"{name}.json", folder / f"{name}.safetensors"
    body, arrays = json.loads(json_path.read_text()), load_arrays(array_path.read_bytes())
    change(body, arrays)
    data = save_arrays({key: np.ascontiguousarray(array) for key, array in arrays.items()})
    array_path.write_bytes(data)
    body["arrays_sha256"] = hashlib.sha256(data).hexdigest()
    body["sha256"] = json_checksum(body)
    json_path.write_text(json.dumps(body))


def set_number(section, name, value):
    def change(body, arrays):
        body[section][name] = value

    return change


def set_array(name, function):
    def change(body, arrays):
        arrays[name] = function(arrays[name])

    return change


FORGED = {
    "rank": set_number("counts", "rank_", 1),
    "negative": set_number("counts", "rank_", -2),
    "features": set_number("counts", "n_features_in_", 4),
    "infinite": set_number("counts", "n_iter_", 1e308 * 10),
    "text": set_number("counts", "n_iter_", "many"),
    "none": set_number("counts", "n_iter_", None),
    "huge": set_number("numbers", "intercept_", 10**400),
    "list": set_number("numbers", "intercept_", [0.0]),
    "parameter": set_number("parameters", "no_such_parameter", 1),
    "status": lambda body, arrays: body.update(status="FINE"),
    "status-list": lambda body, arrays: body.update(status=["BEST_FIT"]),
    "names": lambda body, arrays: body.update(feature_names=["a"]),
    "names-number": lambda body, arrays: body.update(feature_names=3),
    "parameters": lambda body, arrays: body.update(parameters=[1, 2]),
    "identifiable": lambda body, arrays: body.update(identifiable="yes"),
    "no-counts": lambda body, arrays: body.pop("counts"),
    "constant": lambda body, arrays: body.pop("has_uncertainty"),
    "certificate": lambda body, arrays: body.update(certificate_sha256="0" * 64),
    "transposed": set_array("components_", np.transpose),
    "flat": set_array("components_", np.ravel),
    "not-finite": set_array("components_", lambda a: a * np.nan),
    "booleans": set_array("components_", lambda a: a > 0),
    "no-array": lambda body, arrays: arrays.pop("components_"),
    "spectrum": set_array("effective_spectrum_", lambda a: a[None]),
    "root": set_array("uncertainty_.root", lambda a: a[:, :, :1]),
    "root-infinite": set_array("uncertainty_.root", lambda a: a * np.inf),
    "center": set_array("center_", lambda a: a[:-1]),
    "slope": set_array("center_slope_", lambda a: a * np.nan),
    "shares": set_array("uncertainty_.shares", lambda a: a[:-1]),
    "unit": set_array("uncertainty_.unit", lambda a: a[:-1]),
    "scalar": set_array("uncertainty_.unseen", lambda a: np.zeros(())),
    "path": lambda body, arrays: arrays.update({"rank_path_.rank": np.zeros((2, 2))}),
    "path-without-rank": lambda body, arrays: arrays.update({"rank_path_.score": np.zeros(2)}),
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply")
def test_what_does_not_fit_together_is_refused_even_with_the_right_checksums(copy, change):
    forge(copy, lambda body, arrays: None)
    assert load(copy / "one").rank_ == 2  # the forger is good
    forge(copy, change)
    with pytest.raises(DomainError):
        load(copy / "one")


def test_unknown_stays_unknown_and_is_so_for_files_that_call_it_true(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 3))
    y = (X @ [1.0, 2.0, 3.0]) ** 2 + 0.1 * rng.standard_normal(30)
    model = PositiveQuadraticRegressor(1, standard_errors=False).fit(X * [1.0, 1e8, 1e-8], y)
    assert model.identifiable_ is None
    model.save(tmp_path / "one")
    assert json.loads((tmp_path / "one.json").read_text())["identifiable"] is None
    assert load(tmp_path / "one").identifiable_ is None
    for older, told in ((True, None), (False, False)):
        forge(tmp_path, lambda body, arrays, older=older: body.update(identifiable=older))
        assert load(tmp_path / "one").identifiable_ is told
    # of a known kernel and of an answer that the search checked, true is true
    forge(tmp_path, lambda body, arrays: body.update(identifiable=True, status="RECOVERED"))
    assert load(tmp_path / "one").identifiable_ is True
    model.kernel_dimension_, model.identifiable_ = 0, True
    model.save(tmp_path / "one")
    assert load(tmp_path / "one").identifiable_ is True


@pytest.mark.parametrize("writes", range(4))
def test_a_crash_between_two_writes_leaves_the_old_model_or_one_that_is_refused(
    copy, monkeypatch, writes
):
    """Files are replaced one by one: certificate (two files), arrays, JSON."""
    model = load(copy / "two")
    old = load(copy / "one").components_
    made = []

    def interrupted(path, data):
        if len(made) == writes:
            raise KeyboardInterrupt
        made.append(path)
        write_whole(path, data)

    save_pair = store.save_pair

    def interrupted_pair(*pair):
        save_pair(*pair, write=interrupted)

    for module in ("posquad.estimator._files", "posquad.certificates.files"):
        monkeypatch.setattr(f"{module}.save_pair", interrupted_pair)
    with pytest.raises(KeyboardInterrupt):
        model.save(copy / "one")
    assert len(made) == writes
    if writes == 0:
        np.testing.assert_array_equal(load(copy / "one").components_, old)
    else:
        with pytest.raises(DomainError):
            load(copy / "one")


def test_saving_into_a_folder_that_is_not_there_says_so(tmp_path):
    model, _ = fitted(rank=1)
    with pytest.raises(DomainError, match="path: expected a file name in a folder that exists"):
        model.save(tmp_path / "nowhere" / "m")


def test_a_model_without_certificate_over_one_with(copy):
    model, _ = fitted(rank=1)
    model.save(copy / "one")
    assert load(copy / "one").certificate_ is None
