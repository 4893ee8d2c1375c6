"""A corpus of small problems whose truth is known, and the ways to ask for their solution.

Each group of problems is asked in every way; a case is one problem in one way. Its key names the
family, the seed, the problem and the way, and stays the same from version to version of the
library, so that the words of two versions can be compared (`corpus_words.moves`).
"""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import starmap
from typing import NamedTuple
from unittest import mock

import numpy as np
import torch

from adversarial.corpus_problems import FAMILIES, MEMBERS, Case, Group, group_of
from adversarial.corpus_words import ASSERTING_UNIQUE, Record, Records
from adversarial.functions import Function
from adversarial.recovery_problems import Rng, many_copies, seeded
from posquad import Recovery, recover
from posquad.core.errors import PosquadError
from posquad.estimator import PositiveQuadraticRegressor
from posquad.measurements import Dense
from posquad.problems import rows
from posquad.recovery.streams import entry

# Largest relative distance of an answer from the truth, and largest relative residual of responses
# that a word calls reproduced. Choices, far above the tolerance 1e-10 and the errors it allows.
DISTANCE, MISFIT = 1e-4, 1e-6
_REPRODUCED = ASSERTING_UNIQUE | {"NOT_IDENTIFIED"}


class Told(NamedTuple):
    """Answer to one problem: its word, the rank, and the function.

    A word that says that the answer is the only one says so of all matrices of rank `among`: the
    rank that was asked for, or that of the answer if none was.
    """

    word: str
    rank: int
    function: Function
    among: int


Ask = Callable[[Group, Case, Rng], Told]


# Ways to ask.


def alone(group: Group, case: Case, rng: Rng) -> Told:
    return _told(recover(case.X, case.y, group.rank), group.rank)


def unknown_rank(group: Group, case: Case, rng: Rng) -> Told:
    return _told(recover(case.X, case.y))


def certified(group: Group, case: Case, rng: Rng) -> Told:
    return _told(recover(case.X, case.y, group.rank, certify=True), group.rank)


def weighted(group: Group, case: Case, rng: Rng) -> Told:
    found = recover(case.X, case.y, group.rank, weights=_weights(case, rng))
    return _told(found, group.rank)


def dense(group: Group, case: Case, rng: Rng) -> Told:
    """Ask with the matrices `A_i = x_i x_i'`."""
    matrices = Dense(case.X[:, :, None] * case.X[:, None, :])
    return _told(recover(matrices, case.y, group.rank), group.rank)


def by_moments(group: Group, case: Case, rng: Rng) -> Told:
    X, y = many_copies(case.X, case.y)
    return _told(recover(rows.in_memory(X), y, group.rank), group.rank)


def by_passes(group: Group, case: Case, rng: Rng) -> Told:
    """Ask for a source as if it had too many inputs for moments, and did not fit into memory."""
    X, y = many_copies(case.X, case.y)
    kept = len(X) // 2 * X.shape[1]
    with mock.patch.multiple(entry, MOMENT_MOST=0, MEMORY_ENTRIES=kept):
        return _told(recover(rows.in_memory(X), y, group.rank), group.rank)


def regressor(group: Group, case: Case, rng: Rng) -> Told:
    return _model_told(_model(group).fit(case.X, case.y))


def regressor_unknown_rank(group: Group, case: Case, rng: Rng) -> Told:
    return _model_told(_model(group).set_params(rank=None).fit(case.X, case.y))


def regressor_weighted(group: Group, case: Case, rng: Rng) -> Told:
    return _model_told(_model(group).fit(case.X, case.y, _weights(case, rng)))


def partial_fit(group: Group, case: Case, rng: Rng) -> Told:
    """Ask in three pieces, all of which are kept."""
    return _in_pieces(group, case.X, case.y)


def partial_fit_moments(group: Group, case: Case, rng: Rng) -> Told:
    """Ask in three pieces, of so many rows that moments replace them."""
    return _in_pieces(group, *many_copies(case.X, case.y))


# Each way with the problem of the group that it is asked for.
FORMS: dict[str, tuple[Ask, int]] = {
    "alone": (alone, 0),
    "certify": (certified, 1),
    "unknown rank": (unknown_rank, 2),
    "moments": (by_moments, 3),
    "passes": (by_passes, 4),
    "partial_fit": (partial_fit, 5),
    "weights": (weighted, 6),
    "dense": (dense, 7),
    "partial_fit by moments": (partial_fit_moments, 7),
}
OTHER_TERMS: dict[str, tuple[Ask, int]] = {
    "regressor": (regressor, 0),
    "regressor, unknown rank": (regressor_unknown_rank, 1),
    "regressor, weights": (regressor_weighted, 2),
    "regressor, partial_fit": (partial_fit, 3),
    "regressor, partial_fit by moments": (partial_fit_moments, 4),
}
# Ways that a version of the library may not offer; an error of the library is then no defect.
_MAY_REFUSE = {"dense"}


def _told(found: Recovery, asked: int | None = None, k: int | None = None) -> Told:
    at = () if k is None else k
    word = found.status if k is None else found.status[k]
    U, rank = np.asarray(found.U)[at], int(np.asarray(found.rank)[at])
    return Told(word.name, rank, Function(U, np.zeros(len(U)), 0.0), asked or max(1, rank))


def _model(group: Group) -> PositiveQuadraticRegressor:
    terms = {"none": {}, "constant": {"fit_intercept": True}, "linear": {"linear": True}}
    return PositiveQuadraticRegressor(group.rank, standard_errors=False, **terms[group.terms])


def _model_told(model: PositiveQuadraticRegressor) -> Told:
    function = Function(model.components_.T, model.coef_, float(model.intercept_))
    rank = int(model.rank_)
    return Told(model.status_.name, rank, function, model.rank or max(1, rank))


def _in_pieces(group: Group, X: np.ndarray, y: np.ndarray) -> Told:
    model = _model(group)
    pieces = np.array_split(np.arange(len(y)), min(3, len(y)))
    for piece in pieces:
        model.partial_fit(X[piece], y[piece], refit=piece is pieces[-1])
    return _model_told(model)


def _weights(case: Case, rng: Rng) -> np.ndarray:
    return 10.0 ** rng.uniform(-1, 1, len(case.y))


# Answers.


def record(group: Group, case: Case, told: Told) -> Record:
    """Return what was said of a case, and whether it is right (None: nothing to compare)."""
    misfit = _share(told.function(case.X) - case.y, case.y)
    distance = None if case.truth is None else _distance(told.function, case.truth)
    return {
        "word": told.word,
        "truth": _truth(group, case),
        "right": _is_right(told, group, misfit, distance, spans=_spans(case)),
        "rank": told.rank,
        "distance": None if distance is None else float(f"{distance:.2g}"),
        "misfit": float(f"{misfit:.2g}"),
    }


def _is_right(
    told: Told, group: Group, misfit: float, distance: float | None, *, spans: bool
) -> bool | None:
    """Return whether a word holds for its answer, or None where the truth alone decides.

    Where the truth is "unique", the answer is compared with it. Elsewhere, an answer may be the
    only one of a lower rank than that of the solutions that are known.
    """
    if told.word == "UNDETERMINED" and spans:
        return False
    if told.word in _REPRODUCED and not misfit <= MISFIT:
        return False
    if told.word in ASSERTING_UNIQUE:
        lower = told.word == "RECOVERED" and told.among < (group.several or group.rank)
        return lower if distance is None else distance <= DISTANCE
    if group.truth == "no minimum" and told.word == "BEST_FIT":
        return told.rank == 0  # linear regression has a minimum
    return None


def _truth(group: Group, case: Case) -> str:
    """Return the truth of a case: rows of a twin that do not span the space leave more free."""
    return "continuum" if group.truth == "twin" and not _spans(case) else group.truth


def _spans(case: Case) -> bool:
    lengths = np.linalg.norm(case.X, axis=1, keepdims=True)
    rank = np.linalg.matrix_rank(case.X / np.where(lengths > 0, lengths, 1.0))
    return bool(rank == case.X.shape[1])


def _share(part: np.ndarray, whole: np.ndarray) -> float:
    return float(np.linalg.norm(part) / (np.linalg.norm(whole) or 1.0))


def _distance(found: Function, truth: Function) -> float:
    """Return the relative distance of all coefficients of two functions."""
    mine, true = (np.concatenate([f.Q.ravel(), f.b, [f.c]]) for f in (found, truth))
    return _share(mine - true, true)


# A run.


def ways_of(group: Group) -> list[str]:
    """Return the names of the ways to ask for the problems of a group."""
    return [*FORMS, "batch"] if group.terms == "none" else list(OTHER_TERMS)


def words_of(family: str, seed: int, ways: Collection[str] | None = None) -> Records:
    """Return the records of one group in all ways, or in some."""
    group = group_of(family, seed)
    found: Records = {}
    for way in ways_of(group) if ways is None else ways:
        for k, said in _asked(group, seed, way).items():
            found[f"{family} / {seed} / {k} / {way}"] = said
    return found


def _asked(group: Group, seed: int, way: str) -> dict[int, Record]:
    """Return the records of the problems of a group that are asked for in one way."""
    members = range(MEMBERS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fits that did not settle
            if way == "batch":
                X, y = (np.array([getattr(c, name) for c in group.cases]) for name in ("X", "y"))
                together = recover(X, y, group.rank)
                told = {k: _told(together, group.rank, k) for k in members}
            else:
                ask, k = (FORMS | OTHER_TERMS)[way]
                members = [k]
                told = {k: ask(group, group.cases[k], seeded(seed, way))}
            return {k: record(group, group.cases[k], one) for k, one in told.items()}
    except Exception as error:  # whatever it is, it is the defect that is looked for
        refused = way in _MAY_REFUSE and isinstance(error, PosquadError)
        word = "REFUSED" if refused else "RAISED"
        return {k: _failed(_truth(group, group.cases[k]), error, word) for k in members}


def _failed(truth: str, error: Exception, word: str) -> Record:
    said: Record = {"word": word, "truth": truth}
    said |= dict.fromkeys(("right", "rank", "distance", "misfit"))
    return said if word == "REFUSED" else said | {"error": f"{type(error).__name__}: {error}"}


def groups(share: float, first: int) -> list[tuple[str, int]]:
    """Return the family and the seed of every group of a share of the corpus, at least one each."""
    return [
        (name, seed)
        for name, family in FAMILIES.items()
        for seed in range(first, first + max(1, round(share * family.groups)))
    ]


def run(share: float = 1.0, first: int = 0, jobs: int = 1) -> Iterator[Records]:
    """Yield the records of each group, in order. The seeds of every family begin at `first`.

    Every process uses one thread, so that the bits do not depend on `jobs`.
    """
    work = groups(share, first)
    if jobs == 1:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield from starmap(words_of, work)
        finally:
            torch.set_num_threads(threads)
        return
    context = multiprocessing.get_context("spawn")
    with (
        mock.patch.dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"),
        ProcessPoolExecutor(jobs, context, torch.set_num_threads, (1,)) as pool,
    ):
        yield from pool.map(words_of, *zip(*work, strict=True), chunksize=4)
