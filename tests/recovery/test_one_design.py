"""Many responses to one design: the same answers and words as alone, and nothing one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posquad import Status, recover
from posquad.core.errors import DomainError
from posquad.recovery.pipeline import Pipeline
from posquad.recovery.prepare import prepare
from support import normal

N, D = 40, 3


def problems(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Noisy responses of matrices near the boundary of the cone, noise alone, and exact ones."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, D))
    U = rng.standard_normal((count, D, D)) * [1.0, 1.0, 0.1]
    y = np.square(np.einsum("ni,kir->knr", X, U)).sum(-1)
    noise = rng.standard_normal(y.shape)
    y[: count // 3] += 0.2 * noise[: count // 3]
    y[count // 3 : 2 * count // 3] = noise[count // 3 : 2 * count // 3]
    return X, y


@pytest.fixture
def alone(monkeypatch) -> list[int]:
    """Flat indices of the problems that were solved one by one."""
    indices: list[int] = []
    single = Pipeline._single

    def counted(self, *arguments):
        indices.append(arguments[-1])
        return single(self, *arguments)

    monkeypatch.setattr(Pipeline, "_single", counted)
    return indices


@pytest.mark.parametrize("weighted", [False, True])
def test_a_problem_gets_the_same_words_alone_and_in_a_batch(weighted, alone):
    X, y = problems(18)
    w = np.random.default_rng(1).uniform(0.3, 1.0, y.shape) if weighted else None
    together = recover(X, y, rank=D, weights=w)
    assert alone == []
    for k in range(len(y)):
        one = recover(X, y[k], rank=D, weights=None if w is None else w[k])
        assert together.status[k] is one.status
        for name in ("rank", "samples", "needed", "starts", "second_starts"):
            assert getattr(together, name)[k] == getattr(one, name)
        size = np.linalg.norm(one.Q.dense()) + 1e-300
        # Both reach the least residual to 1e-10, and the matrix to the square root of that.
        assert np.linalg.norm(together.Q.dense()[k] - one.Q.dense()) < 1e-5 * size
        assert together.residual[k] == pytest.approx(one.residual, rel=1e-9, abs=1e-13)
        assert together.residual_bound[k] == pytest.approx(one.residual_bound, rel=1e-9, abs=1e-9)
        if one.rank < D and one.status is Status.BEST_FIT:
            # On the boundary the columns that should be zero are exactly so in the batch, and at
            # rounding alone, where their curvature is that of rounding errors.
            assert np.isnan(together.curvature[k]).all()
            continue
        assert together.curvature[k] == pytest.approx(one.curvature, rel=1e-6, nan_ok=True)
        assert together.error_estimate[k] == pytest.approx(
            one.error_estimate, rel=1e-2, abs=1e-12, nan_ok=True
        )
    assert {Status.BEST_FIT, Status.RECOVERED} == set(together.status)


def test_shared_broadcast_and_repeated_inputs_give_the_same():
    X, y = problems(12)
    shared = recover(X, y, rank=D)
    for inputs in (np.broadcast_to(X, (12, N, D)), np.stack([X] * 12), torch.from_numpy(X)):
        found = recover(inputs, torch.from_numpy(y) if isinstance(inputs, torch.Tensor) else y, D)
        assert np.array_equal(np.asarray(found.U), shared.U)
    tall = recover(X, y.reshape(3, 4, N), rank=D)
    assert np.array_equal(tall.U.reshape(shared.U.shape), shared.U)


def test_what_depends_on_the_inputs_is_computed_once(monkeypatch):
    X, y = problems(12)
    seen = []
    eigenvalues = torch.linalg.eigvalsh

    def watched(moments):
        seen.append(tuple(moments.shape))
        return eigenvalues(moments)

    monkeypatch.setattr(torch.linalg, "eigvalsh", watched)
    inputs = torch.from_numpy(X).expand(12, N, D)
    prepared = prepare(inputs, torch.from_numpy(y), None)
    assert seen == [(1, D, D)]
    operator = prepared.problem.operator
    assert operator.shared is not None  # still one matrix
    assert operator.select(torch.tensor([3, 5])).shared is not None
    alone = prepare(inputs[0], torch.from_numpy(y[7]), None)
    assert torch.equal(operator.X[7], alone.problem.operator.X)
    assert torch.equal(prepared.transform[7], alone.transform)
    assert torch.equal(prepared.problem.y[7], alone.problem.y)


def test_a_design_with_structure_is_solved_together(alone):
    """Gradient tables have zeros and repeated entries; rank d has no second solution."""
    X = np.concatenate([np.eye(3), [[1, 1, 0], [1, 0, 1], [0, 1, 1], [1, -1, 0], [0, 1, -1.0]]])
    y = np.random.default_rng(0).standard_normal((20, len(X))) + (X**2).sum(1)
    found = recover(X, y, rank=3)
    assert set(found.status) == {Status.BEST_FIT}
    assert alone == []


def test_only_a_problem_without_responses_is_solved_alone(alone):
    X, y = problems(9)
    y[4] = 0.0
    found = recover(X, y, rank=D)
    assert alone == [4]
    assert found.status[4] is Status.RECOVERED
    assert found.rank[4] == 0


DESIGNS = {
    "uneven": lambda X: X * np.where(np.arange(len(X)) < 3, 50.0, 1.0)[:, None],
    "subspace": lambda X: X * [1, 1, 0],
    "signs": np.sign,  # of which four are independent
    "few": lambda X: X[:5],
    "repeated": lambda X: X[np.arange(len(X)) % 8],
}


@pytest.mark.parametrize("design", list(DESIGNS))
@pytest.mark.parametrize("rank", [D, 2])
def test_irregular_designs_get_the_words_they_get_alone(design, rank, alone):
    """Matrices of rank 1 and 3, exact and noisy; the convex problems are solved together."""
    rng = np.random.default_rng(5)
    X = DESIGNS[design](rng.standard_normal((N, D)))
    U = rng.standard_normal((4, D, D)) * np.array([[1, 0, 0], [1, 1, 1]] * 2)[:, None, :]
    y = np.square(np.einsum("ni,kir->knr", X, U)).sum(-1)
    y[2:] += 0.1 * rng.standard_normal(y[2:].shape)
    together = recover(X, y, rank=rank)
    if rank == D:  # unless rounding would decide which of many matrices is found
        assert alone == (list(range(4)) if design in ("signs", "few") else [])
    for k in range(len(y)):
        one = recover(X, y[k], rank=rank)
        assert together.status[k] is one.status
        assert together.rank[k] == one.rank
        assert together.samples[k] == one.samples
        assert together.residual[k] == pytest.approx(one.residual, rel=1e-6, abs=1e-11)
        if one.status is Status.RECOVERED:
            assert np.abs(together.Q.dense()[k] - U[k] @ U[k].T).max() < 1e-9


def test_uneven_weights_of_each_problem_are_no_reason_to_solve_it_alone(alone):
    X, y = problems(3)
    w = 10.0 ** np.random.default_rng(2).uniform(-7, 7, y.shape)
    together = recover(X, y, rank=D, weights=w)
    assert alone == []
    for k in range(len(y)):
        one = recover(X, y[k], rank=D, weights=w[k])
        assert together.status[k] is one.status
        assert together.residual[k] == pytest.approx(one.residual, rel=1e-6, abs=1e-11)


def test_a_form_that_rounding_spoils_is_left_to_the_interior_point_method():
    """Lengths of 1 and 1e6: the quadratic form in Q has the condition number 1e24."""
    X, y = problems(2)
    long = np.where(np.arange(N) < 5, 1e6, 1.0)
    noise = 1 + 0.05 * np.random.default_rng(1).standard_normal(y.shape)
    X, y = X * long[:, None], np.abs(y) * long**2 * noise
    together = recover(X, y, rank=D)
    for k in range(len(y)):
        one = recover(X, y[k], rank=D)
        assert together.residual[k] == pytest.approx(one.residual, rel=1e-6)
        assert together.status[k] is one.status


def test_starts_of_a_batch_are_tried_together(alone):
    X, y = problems(9, seed=3)
    starts = np.random.default_rng(4).standard_normal((9, D, 1))
    found = recover(X, y, rank=2, start=starts)
    assert alone == []
    assert found.residual == pytest.approx(recover(X, y, rank=2).residual, rel=1e-6, abs=1e-11)


def test_without_a_diagnosis_what_is_not_known_is_not_said():
    X, y = problems(12)
    full, bare = recover(X, y, rank=D), recover(X, y, rank=D, diagnose=False)
    assert np.array_equal(full.U, bare.U)
    assert np.array_equal(full.residual, bare.residual)
    assert np.isnan(bare.curvature).all()
    assert np.isnan(bare.error_estimate).all()
    assert not bare.second_starts.any()
    for with_, without in zip(full.status, bare.status, strict=True):
        assert without is (Status.LOSS_REACHED if with_ is Status.RECOVERED else with_)
    one = recover(X, y[0], rank=D, diagnose=False)
    assert one.status is Status.BEST_FIT
    with pytest.raises(DomainError, match="diagnose: expected True with certify=True"):
        recover(X, y[0], rank=D, certify=True, diagnose=False)


def test_lower_ranks_share_the_preparation_too():
    X, y = problems(9, seed=3)
    together = recover(X, y[6:], rank=2)
    for k in range(3):
        one = recover(X, y[6 + k], rank=2)
        assert together.status[k] is one.status
        assert together.residual[k] == pytest.approx(one.residual, rel=1e-6)


def test_columns_of_the_factor_are_orthogonal_and_sorted():
    X, y = problems(12)
    U = recover(X, y, rank=D).U
    gram = np.einsum("kir,kis->krs", U, U)
    off = gram - np.einsum("krr->kr", gram)[:, :, None] * np.eye(D)
    assert np.abs(off).max() < 1e-13 * np.abs(gram).max()
    assert (np.diff(np.einsum("krr->kr", gram), axis=1) <= 0).all()


def test_blocks_are_reported_and_the_budget_is_kept(monkeypatch):
    X, y = problems(12)
    y = np.tile(y, (10, 1))
    monkeypatch.setattr("posquad.recovery.pipeline.BLOCK", N * 40)  # of 40 problems
    seen = []
    found = recover(X, y, rank=D, progress=seen.append)
    assert [step.running for step in seen] == [0, 0, 0]
    assert found.steps == 0  # a batch that is solved directly takes no steps
    assert np.abs(found.U - recover(X, y, rank=D).U).max() < 1e-12
    limited = recover(X, y, rank=D, time_limit=1e-9)
    assert Status.INTERRUPTED in limited.status
    assert Status.BEST_FIT not in limited.status


@pytest.mark.parametrize("rank", [2, 3])
def test_responses_of_zero_weight_do_not_count(rng, rank):
    X, y = normal(rng, 20, 3), torch.zeros(2, 20, dtype=torch.float64)
    y[0, 0], y[1] = 1.0, (X**2).sum(1)
    weights = torch.ones(20, dtype=torch.float64)
    weights[0] = 0
    together = recover(X, y, rank, weights=weights)
    assert together.status[0] is recover(X, y[0], rank, weights=weights).status
    assert not together.U[0].any()
