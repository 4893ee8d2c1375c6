"""Saved certificates, their verifier, and attempts to deceive it."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import posquad
from adversarial.certificates import planted, tampered
from posquad import Dense, LeastSquares, RankOne, certify
from posquad.certificates import FINDINGS, Verdict, load, save, verify, words
from posquad.core.errors import DomainError, DtypeError
from posquad.core.files import json_checksum
from posquad.core.layers import subpackage_of
from posquad.core.sources import source_closure

SOURCE = Path(posquad.__file__).parent / "certificates"


@pytest.fixture(scope="module")
def example():
    case = planted(np.random.default_rng(0), 40, 5, 2)
    return case, certify(case.objective, case.U)


# On disk.


def test_what_was_saved_is_read_back(example, tmp_path):
    case, certificate = example
    paths = save(certificate, tmp_path / "answer.v2")
    assert [path.name for path in paths] == ["answer.v2.json", "answer.v2.npz"]
    for given in (tmp_path / "answer.v2", paths[0], str(paths[1])):
        back = load(given)
        assert back.claims == certificate.claims
        assert back.fingerprint == certificate.fingerprint
        for name in FINDINGS:
            told, read = getattr(certificate, name), getattr(back, name)
            assert (read.value, read.margin, read.verdict) == (
                told.value,
                told.margin,
                told.verdict,
            )
            assert read.reason == told.reason
        for name in ("U", "z"):
            assert np.array_equal(getattr(back.witness, name), getattr(certificate.witness, name))
        assert back.error_bound(1e-3) == certificate.error_bound(1e-3)
        assert verify(case.objective, back).valid


def test_files_hold_no_pickle_and_no_infinities(tmp_path):
    case = planted(np.random.default_rng(1), 5, 5, 2)  # hardly anything is proved
    certificate = certify(case.objective, case.U)
    paths = save(certificate, tmp_path / "c")
    text = paths[0].read_text()
    assert "Infinity" not in text
    assert "NaN" not in text
    with np.load(paths[1], allow_pickle=False) as arrays:
        assert all(arrays[name].dtype == np.float64 for name in arrays.files)
    back = load(paths[0])
    assert not back.proved
    honest = verify(case.objective, back)
    proved = [name for name in FINDINGS if getattr(back, name).proved]
    assert list(honest.confirmed) == proved  # it says little, and that is true
    silent = replace(back, **{name: replace(getattr(back, name), verdict=Verdict.REFUSED)
                              for name in FINDINGS})  # fmt: skip
    nothing = verify(case.objective, silent)
    assert not nothing.valid
    assert "nothing" in nothing.problems[0]


def test_saving_replaces_whole_files_and_leaves_no_others(example, tmp_path, monkeypatch):
    _, certificate = example
    save(certificate, tmp_path / "c")
    before = (tmp_path / "c.json").read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        save(certificate, tmp_path / "c")
    assert (tmp_path / "c.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.json", "c.npz"]
    with pytest.raises(DomainError):
        save("certificate", tmp_path / "d")  # type: ignore[arg-type]


def rewritten(path: Path, change) -> None:
    """Change the JSON file, and correct its checksum."""
    body = json.loads(path.read_text())
    change(body)
    body["sha256"] = json_checksum(body)
    path.write_text(json.dumps(body))


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.pop("claims"),
        lambda body: body.update(format="posquad certificate 2"),
        lambda body: body.update(extra=1),
        lambda body: body["claims"].update(lam="1.0"),
        lambda body: body["claims"].update(lam=True),
        lambda body: body["claims"].update(route="faith"),
        lambda body: body["claims"].update(residual=None),
        lambda body: body["claims"].pop("mu"),
        lambda body: body["findings"].pop("interpolation"),
        lambda body: body["findings"]["interpolation"].update(verdict="CERTAIN"),
        lambda body: body["findings"]["interpolation"].update(value="0"),
        lambda body: body["findings"]["interpolation"].update(details=[1]),
        lambda body: body.update(arrays_sha256="0" * 64),
    ],
)
def test_files_of_another_form_are_refused(example, tmp_path, change):
    path, _ = save(example[1], tmp_path / "c")
    rewritten(path, change)
    with pytest.raises(DomainError, match="certificate"):
        load(path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"null", b'{"a": NaN}'])
def test_files_that_are_not_certificates_are_refused(example, tmp_path, content):
    path, arrays = save(example[1], tmp_path / "c")
    path.write_bytes(content)
    with pytest.raises(DomainError):
        load(path)
    arrays.unlink()
    with pytest.raises(DomainError, match="no such file"):
        load(path)


def test_pickled_arrays_are_refused(example, tmp_path):
    path, arrays = save(example[1], tmp_path / "c")
    np.savez(arrays, U=np.array([{"a": 1}], dtype=object))
    digest = hashlib.sha256(arrays.read_bytes()).hexdigest()
    rewritten(path, lambda body: body.update(arrays_sha256=digest))
    with pytest.raises(DomainError):
        load(path)


@pytest.mark.parametrize("digits", [16, 400, 5000])
@pytest.mark.parametrize("where", ["claim", "value", "detail"])
def test_integers_that_no_float_holds_are_refused(example, tmp_path, digits, where):
    path, _ = save(example[1], tmp_path / "c")
    body = json.loads(path.read_text())
    if where == "claim":
        body["claims"]["lam"] = "HERE"
    elif where == "value":
        body["findings"]["interpolation"]["value"] = "HERE"
    else:
        body["findings"]["global_uniqueness"]["details"]["residual"] = "HERE"
    path.write_text(json.dumps(body).replace('"HERE"', "1" * digits))
    with pytest.raises(DomainError, match="certificate"):
        load(path)


@pytest.mark.parametrize("kind", ["compressed garbage", "unknown method", "encrypted", "huge"])
def test_archives_that_cannot_be_unpacked_are_refused(example, tmp_path, kind):
    path, arrays = save(example[1], tmp_path / "c")
    np.savez_compressed(arrays, U=example[1].witness.U)
    content = bytearray(arrays.read_bytes())
    central = content.rfind(b"PK\x01\x02")
    if kind == "compressed garbage":
        content[60:90] = b"\xff" * 30
    elif kind == "unknown method":
        content[8], content[central + 10] = 97, 97
    elif kind == "encrypted":
        content[6] |= 1
        content[central + 8] |= 1
    else:
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999,), }"
        header = header.ljust(117) + b"\n"
        raw = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
        with zipfile.ZipFile(arrays, "w") as file:
            file.writestr("U.npy", raw)
        content = bytearray(arrays.read_bytes())
    arrays.write_bytes(bytes(content))
    digest = hashlib.sha256(bytes(content)).hexdigest()
    rewritten(path, lambda body: body.update(arrays_sha256=digest))
    with pytest.raises(DomainError, match="certificate"):
        load(path)


def test_texts_in_a_file_are_not_trusted(example, tmp_path):
    case, certificate = example
    path, _ = save(certificate, tmp_path / "c")

    def lie(body):
        for name in FINDINGS:
            body["findings"][name]["reason"] = "true beyond doubt"

    rewritten(path, lie)
    back = load(path)
    assert "beyond doubt" not in str(back)
    assert str(back).splitlines()[0] == "read from a file and not verified here; it says:"
    assert str(back).splitlines()[1:] == str(certificate).splitlines()
    outcome = verify(case.objective, back)
    assert outcome.valid
    assert outcome.proved
    assert set(outcome.findings) == set(FINDINGS)
    for name, finding in outcome.findings.items():
        notes = words.NOTES[name] - {"tolerance"}
        assert not notes & set(finding.details)


# The verifier.


def test_verifier_shares_no_code_with_the_search():
    """Of the certificates subpackage it imports only the proofs, the words and the certificate."""
    files = source_closure(
        "posquad.certificates.verifier",
        leave_out=lambda name: subpackage_of(name) != "certificates",
    )
    assert {path.relative_to(SOURCE).as_posix() for path in files} == {
        "verifier.py",
        "certificate.py",
        "words.py",
        "proofs/bounded_operator.py",
        "proofs/claims.py",
        "proofs/rounding.py",
        "proofs/statements.py",
    }
    assert sum(len(path.read_text().splitlines()) for path in files) < 1500  # can be read


def test_every_forgery_is_rejected_and_says_where(example):
    case, certificate = example
    rng = np.random.default_rng(0)
    names = []
    for name, forged in tampered(rng, certificate):
        outcome = verify(case.objective, forged)
        assert not outcome.valid, name
        assert outcome.problems
        names.append(name)
    assert len(names) >= 14
    assert verify(case.objective, certificate).confirmed == FINDINGS


@pytest.mark.parametrize("name", FINDINGS)
def test_a_finding_without_its_value_is_rejected(example, name):
    case, certificate = example
    forged = replace(certificate, **{name: replace(getattr(certificate, name), value=None)})
    outcome = verify(case.objective, forged)
    assert outcome.problems == (f"{name}: the value is missing",)
    assert outcome.confirmed == tuple(other for other in FINDINGS if other != name)


@pytest.mark.parametrize("name", ["residual", "largest", "lam", "gauge", "Lam", "mu", "beta"])
def test_absurd_claims_prove_nothing(example, tmp_path, name):
    """JSON reads 1e999 as infinity; no number makes a false proof succeed."""
    for number in ("1e999", "0.0", "-1.0", "5e-324", "1e300"):
        case, certificate = example
        path, _ = save(certificate, tmp_path / "c")
        body = json.loads(path.read_text())
        body["claims"][name] = float(number)
        body["sha256"] = json_checksum(body)
        text = json.dumps(body).replace("Infinity", number)
        path.write_text(text)
        body = json.loads(text)
        body["sha256"] = json_checksum(body)
        path.write_text(json.dumps(body).replace("Infinity", number))
        assert not verify(case.objective, load(path)).valid


def test_understatement_is_accepted(example):
    """A certificate that claims less than is true is valid."""
    case, certificate = example
    modest = replace(
        certificate,
        minimum_trace=replace(certificate.minimum_trace, verdict=Verdict.REFUSED),
    )
    outcome = verify(case.objective, modest)
    assert outcome.valid
    assert "minimum_trace" not in outcome.confirmed


def test_the_tolerances_are_those_of_the_verifier():
    case = planted(np.random.default_rng(3), 40, 5, 2)
    y = case.y * (1 + 1e-4 * np.random.default_rng(0).standard_normal(len(case.y)))
    objective = LeastSquares(RankOne(case.X), y)
    certificate = certify(objective, case.U, tolerance=1e-2)
    assert certificate.interpolation.proved
    assert not verify(objective, certificate).valid
    assert verify(objective, certificate, tolerance=1e-2).valid
    # An answer that is good enough for the verifier may have been asked for less, or for more.
    exact = case.objective
    for settings in ({"tolerance": 1e-3}, {"tolerance": 1e-12}, {"trace_tolerance": 1e-2}):
        outcome = verify(exact, certify(exact, case.U, **settings))
        assert outcome.valid
        assert outcome.confirmed == FINDINGS


def test_other_data_and_shapes_are_rejected(example):
    case, certificate = example
    other = planted(np.random.default_rng(9), 40, 5, 2)
    assert verify(other.objective, certificate).problems == (
        "the certificate belongs to other data",
    )
    assert verify(case.objective, certificate, case.U).valid
    outcome = verify(case.objective, certificate, case.U * (1 + 1e-15))
    assert outcome.problems == ("the certificate belongs to another factor",)
    small = planted(np.random.default_rng(9), 40, 4, 2)
    assert not verify(small.objective, certificate).valid
    fewer = planted(np.random.default_rng(9), 39, 5, 2)
    assert not verify(fewer.objective, certificate).valid
    bad = replace(certificate, witness=replace(certificate.witness, z=np.full(40, np.nan)))
    assert not verify(case.objective, bad).valid
    with pytest.raises(DtypeError):
        verify(case.objective, "certificate")  # type: ignore[arg-type]


def least_trace_example():
    """A minimum trace that only a dual vector proves (experiment 6), and its certificate."""
    B = np.array([[1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0]])
    objective = LeastSquares(Dense(np.stack([np.diag(row) for row in B])), np.array([1.0, 0.3]))
    return objective, certify(objective, np.diag(np.sqrt([0.35, 0.35, 0.3, 0.0]))[:, :3])


def test_forged_proofs_of_minimum_trace_are_rejected():
    objective, certificate = least_trace_example()
    assert verify(objective, certificate).confirmed == ("interpolation", "minimum_trace")
    claims, witness = certificate.claims, certificate.witness
    for excess in (None, -0.5, -1e-6):
        forged = replace(certificate, claims=replace(claims, excess=excess))
        assert not verify(objective, forged).valid
    for dual in (
        None,
        -witness.dual,
        2 * witness.dual,
        witness.dual * (1 + 1e-5),
        0 * witness.dual,
    ):
        forged = replace(certificate, witness=replace(witness, dual=dual))
        assert not verify(objective, forged).valid


@pytest.mark.parametrize("function", [certify, verify])
def test_tolerances_are_a_billionth_and_a_millionth(example, function):
    """What certify promises by default, verify asks for by default."""
    case, certificate = example
    given = inspect.signature(function).parameters
    assert (given["tolerance"].default, given["trace_tolerance"].default) == (1e-9, 1e-6)
    told = function(case.objective, case.U if function is certify else certificate)
    findings = told.findings if function is verify else vars(told)
    assert findings["interpolation"].details["tolerance"] == 1e-9
    assert findings["minimum_trace"].details["tolerance"] == 1e-6
