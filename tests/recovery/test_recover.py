"""`recover`: rates, every status by a constructed input, equivariance, batches, budgets."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import torch

import posquad
from conformance import Record
from posquad import RankOne, Status, recover
from posquad.core.errors import DomainError, DtypeError, NonFiniteError, ShapeError
from posquad.geometry import dimension
from posquad.recovery import diagnose, logdet_irls, search
from posquad.recovery.budget import Budget, History
from posquad.recovery.prepare import Prepared, looks_nongeneric, normalize_rows, prepare
from posquad.recovery.problem import Given, Problem
from posquad.recovery.problem_cache import ProblemCache
from recovery_support import relative_error
from support import gaussian_problem, normal, rotation


def error(found, U_star):
    return relative_error(torch.as_tensor(found.Q.dense()), U_star)


def wilson_lower(successes: int, trials: int, z: float = 1.96) -> float:
    """Lower end of the 95 per cent interval for a rate."""
    share = successes / trials
    centre = share + z**2 / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    return (centre - half) / (1 + z**2 / trials)


@pytest.mark.parametrize(
    ("n", "trials", "least"),
    [(20, 12, 0.75), (24, 24, 0.85), (38, 24, 0.85), (152, 24, 0.85)],
)
def test_recovery_rates(n, trials, least):
    """Problems of d = 10, r = 2 with eigenvalues 1 and 0.5; the full table is a benchmark."""
    rng = torch.Generator().manual_seed(100 + n)
    good = 0
    for _ in range(trials):
        X, U, y = gaussian_problem(rng, n, 10, 2, smallest=0.5)
        found = recover(X, y, 2)
        right = error(found, U) < 1e-6
        assert right or found.status is not Status.RECOVERED
        good += right and found.status is Status.RECOVERED
    assert wilson_lower(good, trials) >= least


def test_a_large_noisy_problem_is_polished_to_a_stationary_point(rng):
    """More than 2^23 products per pass: the refinement is first-order; gradient by NumPy."""
    X, U, y = gaussian_problem(rng, 22_000, 24, 16, smallest=0.5)
    assert X.shape[0] * U.numel() > 2**23
    y = y + normal(rng, 22_000)
    budget = Budget(max_steps=1000)
    eye, scale = torch.eye(24, dtype=X.dtype), torch.ones((), dtype=X.dtype)
    problem, given = Problem(RankOne(X), y), Given.of(RankOne(X), None, y, scale)
    prepared = Prepared(problem, given, eye, scale, np.array(24), np.array(22_000))
    task = search.Task(1e-10, 0, History(budget))
    start = U + 0.01 * normal(rng, 24, 16)
    one = np.array(1)
    given = search.Candidates(16, start, np.array(1.0), one, one, one > 0, np.array(0.0))
    finder = search.refine(ProblemCache(prepared), start, task, given)
    inputs, V = X.numpy(), finder.U.numpy()
    J = 2 * np.einsum("ia,ib->iab", inputs, inputs @ V).reshape(len(inputs), -1)
    e = ((inputs @ V) ** 2).sum(1) - y.numpy()
    cosine = np.linalg.norm(J.T @ e) / (np.linalg.norm(J) * np.linalg.norm(e))
    assert cosine < 1e-9
    assert float(finder.residual) == pytest.approx(np.linalg.norm(e) / np.linalg.norm(y), rel=1e-12)
    assert budget.steps < 400


def test_as_many_samples_as_unknowns_are_never_called_recovered():
    rng = torch.Generator().manual_seed(19)
    wrong = 0
    for _ in range(16):
        X, U, y = gaussian_problem(rng, 19, 10, 2, smallest=0.5)
        found = recover(X, y, 2)
        assert found.status is Status.NOT_IDENTIFIED
        assert int(found.samples) == 19
        assert int(found.needed) == dimension(10, 2) + 1 == 20
        wrong += error(found, U) > 1e-6
    assert wrong > 4  # and most of them are indeed something else


@pytest.mark.parametrize(
    ("n", "d", "r"),
    [(2, 1, 1), (4, 2, 2), (7, 3, 3), (12, 3, 1), (40, 6, 6), (146, 40, 3), (300, 30, 4)],
)
def test_sizes(rng, n, d, r):
    X, U, y = gaussian_problem(rng, n, d, r, smallest=0.5)
    found = recover(X, y, r)
    assert found.status is Status.RECOVERED
    assert error(found, U) < 1e-12
    assert int(found.rank) == r
    assert found.certificate is None


def test_large_problem_goes_through_the_first_order_chain(rng):
    X, U, y = gaussian_problem(rng, 1600, 120, 3, smallest=0.1)
    found = recover(X, y, 3)
    assert found.status is Status.RECOVERED
    assert error(found, U) < 1e-13
    low, high = found.curvature.tolist()
    spectrum = posquad.effective_spectrum(posquad.LeastSquares(posquad.RankOne(X), y), U)
    # In the user's coordinates lambda_1 = 1; working inputs were divided by a power of two at most.
    assert low == pytest.approx(float(spectrum.values[0]), rel=0.05)
    assert high == pytest.approx(float(spectrum.values[-1]), rel=0.05)


def test_gauss_newton_takes_over_where_first_order_steps_are_slow(rng, monkeypatch):
    monkeypatch.setattr("posquad.recovery.descend.FIRST_ORDER_STEPS", 5)
    X, U, y = gaussian_problem(rng, 240, 30, 3, smallest=0.5)
    found = recover(X, y, 3)
    assert found.status is Status.RECOVERED
    assert error(found, U) < 1e-12


def test_matrix_free_diagnosis_agrees_with_dense(rng, monkeypatch):
    X, _, y = gaussian_problem(rng, 200, 20, 2, smallest=0.5)
    dense = recover(X, y, 2)
    monkeypatch.setattr("posquad.recovery.diagnose.is_quick", lambda multiplications: False)
    free = recover(X, y, 2)
    assert free.status is dense.status is Status.RECOVERED
    torch.testing.assert_close(free.curvature, dense.curvature, rtol=0.05, atol=0)


def test_factor_is_canonical_and_predictor_is_an_operator(rng):
    X, U, y = gaussian_problem(rng, 60, 6, 3, smallest=0.2)
    found = recover(X, y, 3)
    gram = found.U.mT @ found.U
    torch.testing.assert_close(gram, torch.diag(gram.diagonal()), rtol=0, atol=1e-12)
    assert bool((gram.diagonal().diff() <= 0).all())
    Q = U @ U.mT
    V = normal(rng, 6, 2)
    torch.testing.assert_close(found.Q @ V, Q @ V, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(found.Q @ V[:, 0], Q @ V[:, 0], rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(found.Q.apply(X), y, rtol=1e-11, atol=1e-12)
    expected = torch.linalg.eigvalsh(Q)[-3:].flip(0)
    torch.testing.assert_close(found.Q.eigenvalues(), expected, rtol=1e-11, atol=1e-12)
    assert found.Q.shape == (6, 6)
    assert "Predictor" in repr(found.Q)
    np.testing.assert_allclose(np.asarray(found.Q), Q.numpy(), rtol=1e-11, atol=1e-12)


class TestStatuses:
    """Every status of a recovery, reached by an input made for it."""

    def test_zero_responses_prove_zero(self, rng):
        X = normal(rng, 12, 4)
        found = recover(X, torch.zeros(12, dtype=X.dtype), 2)
        assert found.status is Status.RECOVERED
        assert int(found.rank) == 0
        assert float(found.Q.dense().abs().max()) == 0

    def test_one_sample(self, rng):
        found = recover(normal(rng, 1, 3), torch.ones(1), 1)
        assert found.status is Status.UNDETERMINED

    def test_repeated_samples_count_once(self, rng):
        X, _, y = gaussian_problem(rng, 15, 10, 2, smallest=0.5)
        signs = torch.tensor([1.0, -2.0, 3.0], dtype=X.dtype).repeat_interleave(15)
        found = recover(signs[:, None] * X.repeat(3, 1), signs**2 * y.repeat(3), 2)
        assert int(found.samples) == 15
        assert found.status is Status.NOT_IDENTIFIED

    def test_inputs_in_a_subspace(self, rng):
        X, U, _ = gaussian_problem(rng, 60, 6, 2, smallest=0.5)
        basis = torch.linalg.qr(normal(rng, 6, 4)).Q
        X = X @ basis @ basis.mT
        y = (X @ U).square().sum(-1)
        found = recover(X, y, 2)
        assert found.status is Status.UNDETERMINED
        # On the span the answer is right, outside it is zero.
        P = basis @ basis.mT
        torch.testing.assert_close(found.Q.dense(), P @ U @ U.mT @ P, rtol=1e-9, atol=1e-11)

    @pytest.mark.parametrize("rank", [2, 4])
    def test_a_free_direction(self, rng, rank):
        """Inputs of signs do not measure differences of diagonal entries: 7 of 10 dimensions."""
        X = normal(rng, 40, 4).sign()
        found = recover(X, (X @ normal(rng, 4, rank)).square().sum(-1), rank)
        assert int(found.samples) == 7
        assert found.status is Status.NOT_IDENTIFIED

    def test_signs_that_determine_a_vector(self, rng):
        """Products u_i u_j give u up to its sign, if three entries are not zero."""
        X = normal(rng, 40, 4).sign()
        U = normal(rng, 4, 1)
        found = recover(X, (X @ U).square().sum(-1), 1)
        assert found.status is Status.RECOVERED
        assert error(found, U) < 1e-12

    def test_noise_is_a_best_fit(self, rng):
        X, U, y = gaussian_problem(rng, 76, 10, 2, smallest=0.5)
        found = recover(X, y * (1 + 0.05 * normal(rng, 76)), 2)
        assert found.status is Status.BEST_FIT
        assert error(found, U) < float(found.error_estimate) < 1

    def test_negative_responses(self, rng):
        X, _, y = gaussian_problem(rng, 40, 5, 2, smallest=0.5)
        found = recover(X, -y, 2)
        assert found.status is Status.BEST_FIT
        assert int(found.rank) == 0
        assert float(found.residual) == pytest.approx(1.0)

    @pytest.mark.parametrize("n", [24, 40, 76])
    def test_outliers_are_never_called_recovered(self, rng, n):
        X, _, y = gaussian_problem(rng, n, 10, 2, smallest=0.5)
        y[:4] *= 20
        found = recover(X, y, 2, max_starts=60)
        assert found.status in (Status.BEST_FIT, Status.STALLED)
        assert float(found.residual) > 1e-3

    def test_starts_that_do_not_agree(self, rng):
        X, y = normal(rng, 24, 10), normal(rng, 24).square()
        found = recover(X, y, 2, max_starts=10)
        assert found.status is Status.STALLED
        assert "allow more starts" in found.message

    @pytest.mark.parametrize("d", [1, 2])
    def test_inputs_that_are_zero(self, d):
        found = recover(torch.zeros(4, d), torch.ones(4), 1)
        assert found.status is Status.UNDETERMINED
        assert int(found.needed) == d  # as many as span the space
        assert float(found.residual) == 1

    def test_budgets(self, rng):
        X, y = normal(rng, 24, 10), normal(rng, 24).square()
        for budget in ({"max_steps": 5}, {"time_limit": 1e-9}):
            found = recover(X, y, 2, **budget)
            assert found.status is Status.INTERRUPTED
            assert found.steps <= 6

    @pytest.mark.parametrize("when", [0, 3])
    def test_interruption_returns_the_best_so_far(self, rng, when):
        X, _, y = gaussian_problem(rng, 24, 10, 2, smallest=0.5)
        y = y + normal(rng, 24)

        def interrupt(progress):
            if progress.time >= when:
                raise KeyboardInterrupt

        with pytest.raises(posquad.Interrupted) as stop:
            recover(X, y, 2, progress=interrupt)
        found = stop.value.result
        assert isinstance(stop.value, KeyboardInterrupt)
        assert found.status is Status.INTERRUPTED
        assert torch.isfinite(found.U).all()
        assert float(found.residual) <= 1
        assert found.error_estimate.isnan()

    def test_interruption_of_the_diagnosis(self, rng, monkeypatch):
        def interrupt(*arguments):
            raise KeyboardInterrupt

        monkeypatch.setattr(diagnose, "diagnose", interrupt)
        X, U, y = gaussian_problem(rng, 38, 10, 2, smallest=0.5)
        with pytest.raises(posquad.Interrupted) as stop:
            recover(X, y, 2)
        assert stop.value.result.status is Status.INTERRUPTED  # nothing is known of its uniqueness
        assert error(stop.value.result, U) < 1e-12

    def test_interruption_of_a_problem_in_a_subspace(self, rng, monkeypatch):
        def interrupt(*arguments):
            raise KeyboardInterrupt

        monkeypatch.setattr(diagnose, "diagnose", interrupt)
        inner, _, y = gaussian_problem(rng, 30, 3, 1)
        basis = torch.linalg.qr(normal(rng, 5, 3)).Q
        with pytest.raises(posquad.Interrupted) as stop:
            recover(inner @ basis.mT, y, 1)
        result = stop.value.result
        assert result.U.shape == (5, 1)
        predicted = (inner @ basis.mT @ result.U).square().sum(-1)
        torch.testing.assert_close(predicted, y, rtol=1e-10, atol=0)

    def test_interruption_of_a_batch(self, rng):
        X, y = normal(rng, 5, 24, 10), normal(rng, 5, 24).square()

        def interrupt(progress):
            if progress.time >= 30:
                raise KeyboardInterrupt

        with pytest.raises(posquad.Interrupted) as stop:
            recover(X, y, 2, progress=interrupt)
        assert stop.value.result.status == [Status.INTERRUPTED] * 5
        assert float(stop.value.result.residual.max()) < 1

    def test_interruption_while_the_rank_is_lowered(self, rng):
        X, U, y = gaussian_problem(rng, 76, 10, 1)
        whole = recover(X, y, 4).steps

        def interrupt(progress):
            if progress.time >= whole - 1:
                raise KeyboardInterrupt

        with pytest.raises(posquad.Interrupted) as stop:
            recover(X, y, 4, progress=interrupt)
        assert error(stop.value.result, U) < 1e-6


class TestNothingWrongIsCalledRecovered:
    """Inputs on which answers far from the truth reproduce the responses, or nearly."""

    def check(self, X, U, rank, **options):
        found = recover(X, (X @ U).square().sum(-1), rank, **options)
        assert found.status is not Status.RECOVERED or error(found, U) < 1e-6
        return found

    @pytest.mark.parametrize("seed", [2, 12, 15, 18])
    def test_rows_of_different_length(self, seed):
        g = np.random.default_rng(seed)
        X = torch.from_numpy(g.standard_normal((9, 8)) * 10.0 ** g.uniform(-5, 0, (9, 1)))
        self.check(X, torch.from_numpy(g.standard_normal((8, 1))), 1, max_starts=20)

    def test_rows_of_different_length_are_recovered(self, rng):
        X, U, _ = gaussian_problem(rng, 30, 8, 2, smallest=0.5)
        X = X * torch.logspace(-6, 0, 30, dtype=X.dtype)[:, None]
        y = (X @ U).square().sum(-1)
        found = recover(X, y, 2)
        assert found.status is Status.RECOVERED
        assert error(found, U) < 1e-12
        e = (X @ found.U).square().sum(-1) - y
        assert float(found.residual) == pytest.approx(float(e.norm() / y.norm()), abs=1e-15)

    def test_every_response_must_be_reproduced(self, rng):
        """A response of 1e-12 of the others, wrong by half: the residual does not show it."""
        X, U, _ = gaussian_problem(rng, 30, 5, 2, smallest=0.5)
        X[0] *= 1e-6
        y = (X @ U).square().sum(-1)
        y[0] *= 1.5
        assert recover(X, y, 2).status is not Status.RECOVERED

    @pytest.mark.parametrize("span", [5, 12, 20])
    def test_spread_weights(self, span):
        for seed in range(8):
            g = np.random.default_rng(seed)
            X = torch.from_numpy(g.standard_normal((9, 8)))
            U = torch.from_numpy(g.standard_normal((8, 1)))
            w = torch.from_numpy(10.0 ** g.uniform(-span, 0, 9))
            self.check(X, U, 1, weights=w, max_starts=20)

    def test_heavy_tails(self):
        good = 0
        for seed in range(12):
            g = np.random.default_rng(seed)
            X = torch.from_numpy(g.standard_t(1, (22, 8)))
            U = torch.from_numpy(g.standard_normal((8, 3)))
            good += self.check(X, U, 3, max_starts=40).status is Status.RECOVERED
        assert good >= 6

    def test_blocks_that_no_sample_joins(self, rng):
        for _ in range(5):
            X = torch.zeros(40, 6, dtype=torch.float64)
            X[:20, :3], X[20:, 3:] = normal(rng, 20, 3), normal(rng, 20, 3)
            found = self.check(X, normal(rng, 6, 1), 1)
            assert found.status is Status.NOT_IDENTIFIED
            assert "another answer" in found.message

    def test_many_blocks(self, rng):
        """Random signs would hardly ever flip exactly one of 10 blocks of 3 coordinates."""
        X = torch.zeros(10, 8, 30, dtype=torch.float64)
        for k in range(10):
            X[k, :, 3 * k : 3 * k + 3] = normal(rng, 8, 3)
        found = self.check(X.flatten(0, 1), normal(rng, 30, 1), 1)
        assert found.status is Status.NOT_IDENTIFIED

    @pytest.mark.parametrize(("n", "d"), [(21, 6), (60, 8), (800, 30)])
    def test_signs(self, rng, n, d):
        """Every vector of signs has the response 1 on every axis."""
        X = normal(rng, n, d).sign()
        U = torch.eye(d, 1, dtype=X.dtype)
        assert self.check(X, U, 1).status is Status.NOT_IDENTIFIED
        assert recover(X[None], (X @ U).square().sum(-1)[None], 1).status == [Status.NOT_IDENTIFIED]

    @pytest.mark.parametrize("d", [1, 2, 3, 5])
    @pytest.mark.parametrize("chosen", [False, True])
    def test_as_many_samples_as_unknowns_of_full_rank(self, rng, d, chosen):
        D = d * (d + 1) // 2
        X = normal(rng, D, d)
        U = rotation(rng, d)
        y = (X @ U).square().sum(-1) * (1 + 0.01 * normal(rng, D))
        found = recover(X, y, None if chosen else d)
        assert found.status is not Status.RECOVERED
        if chosen and int(found.rank) == d:
            assert float(found.rank_confidence) == 0

    @pytest.mark.parametrize("scale", [1e-3, 1e-5, 1e-7])
    def test_the_estimate_is_in_the_users_coordinates(self, rng, scale):
        below = 0
        for _ in range(10):
            X = normal(rng, 60, 4)
            X[:, 3] *= scale
            U = normal(rng, 4, 2)
            found = self.check(X, U, 2)
            if found.status is not Status.UNDETERMINED:  # the fourth axis is below rounding
                below += error(found, U) > 3 * float(found.error_estimate) + 1e-14
        assert below == 0

    def test_an_answer_that_may_be_wrong_is_not_recovered(self, rng):
        """An axis of 1e-6: rounding of 1e-16 in the responses is 1e-4 of the entries there."""
        X = normal(rng, 60, 4)
        X[:, 3] *= 1e-6
        U = normal(rng, 4, 2)
        found = recover(X, (X @ U).square().sum(-1), 2)
        assert float(found.residual) < 1e-15
        assert 1e-6 < float(found.error_estimate) < 1e-2
        assert found.status is Status.NOT_IDENTIFIED

    def test_nearly_repeated_samples_check_nothing(self):
        """Four directions, repeated to 1e-6: at a residual of 2e-11 rank 1 is not proved."""
        rng = torch.Generator().manual_seed(0)
        for _ in range(10):
            X = normal(rng, 4, 4).repeat(2, 1) + 1e-6 * normal(rng, 8, 4)
            U = normal(rng, 4, 2) * torch.tensor([1.0, 2e-3], dtype=X.dtype)
            self.check(X, U, 3, max_starts=60)
            self.check(X, U, None, max_starts=60)

    def test_a_tolerance_is_not_a_proof(self, rng):
        X, U, y = gaussian_problem(rng, 38, 10, 2, smallest=0.5)
        y = y * (1 + 1e-5 * normal(rng, 38))
        found = recover(X, y, 2, tolerance=1e-3)
        assert found.status is Status.RECOVERED  # the user's word
        assert error(found, U) < 3 * float(found.error_estimate) < 3e-3
        found = recover(X, y * (1 + 0.01 * normal(rng, 38)), 2, tolerance=0.5)
        assert found.status is Status.NOT_IDENTIFIED
        assert "within the tolerance" in found.message

    def test_nearly_flat(self, rng):
        """A curvature of 1e-13 of the largest: the residual does not bound the error."""
        X = normal(rng, 40, 6)
        U = torch.linalg.qr(normal(rng, 6, 2)).Q * torch.tensor([1.0, 1e-6], dtype=X.dtype)
        self.check(X, U, 2)

    def test_the_first_order_must_outweigh_the_second(self, rng):
        X = normal(rng, 40, 6)
        U = torch.linalg.qr(normal(rng, 6, 2)).Q * torch.tensor([1.0, 1e-3], dtype=X.dtype)
        shared = ProblemCache(prepare(X, (X @ U).square().sum(-1), None))
        V = shared.prepared.enter(U)
        at = [diagnose.diagnose(shared, V, np.float64(e)) for e in (1e-12, 1e-4)]
        assert [bool(found.isolated) for found in at] == [True, False]

    def test_the_kernel_alone_refuses(self, rng):
        """Samples of two separate blocks do not determine the rotation between them."""
        X = torch.zeros(80, 6, dtype=torch.float64)
        X[:40, :3], X[40:, 3:] = normal(rng, 40, 3), normal(rng, 40, 3)
        U = normal(rng, 6, 2)
        shared = ProblemCache(prepare(X, (X @ U).square().sum(-1), None))
        found = diagnose.diagnose(shared, shared.prepared.enter(U), np.float64(0.0))
        assert bool(found.free)
        whole = gaussian_problem(rng, 80, 6, 2)
        shared = ProblemCache(prepare(whole[0], whole[2], None))
        V = shared.prepared.enter(whole[1])
        assert not bool(diagnose.diagnose(shared, V, np.float64(0.0)).free)


class TestRank:
    @pytest.mark.parametrize(("n", "d", "r"), [(38, 10, 2), (76, 10, 2), (60, 6, 1), (200, 20, 3)])
    def test_rank_is_found_when_not_given(self, rng, n, d, r):
        X, U, y = gaussian_problem(rng, n, d, r, smallest=0.5)
        found = recover(X, y)
        assert found.status is Status.RECOVERED
        assert int(found.rank) == r
        assert float(found.rank_confidence) == 1
        assert error(found, U) < 1e-12

    def test_rank_of_noisy_data(self, rng):
        X, U, y = gaussian_problem(rng, 200, 8, 2, smallest=0.5)
        found = recover(X, y * (1 + 0.05 * normal(rng, 200)))
        assert found.status is Status.BEST_FIT
        assert int(found.rank) == 2
        assert 0.9 < float(found.rank_confidence) <= 1
        assert error(found, U) < 0.1

    def test_too_few_samples_to_choose_a_rank(self, rng):
        X, _, y = gaussian_problem(rng, 15, 10, 2, smallest=0.5)
        found = recover(X, y)
        assert found.status is not Status.RECOVERED
        assert float(found.rank_confidence) == 0

    @pytest.mark.parametrize("n", [38, 76])
    @pytest.mark.parametrize("rank", [3, 5, 10])
    def test_a_rank_above_the_true_one_is_lowered(self, rng, n, rank):
        X, U, y = gaussian_problem(rng, n, 10, 2, smallest=0.5)
        found = recover(X, y, rank)
        assert found.status is Status.RECOVERED
        assert int(found.rank) == 2
        assert found.U.shape == (10, 2)
        assert error(found, U) < 1e-12

    def test_small_eigenvalues_are_not_dropped_with_the_rank(self):
        """Eigenvalues 1 and 1e-8 at rank 3: only the third column of the factor is dropped."""
        for seed in range(4):
            rng = torch.Generator().manual_seed(seed)
            X = normal(rng, 40, 6)
            U = torch.linalg.qr(normal(rng, 6, 2)).Q * torch.tensor([1.0, 1e-4], dtype=X.dtype)
            found = recover(X, (X @ U).square().sum(-1), 3)
            assert int(found.rank) == 2
            assert error(found, U) < 1e-12

    def test_an_eigenvalue_below_the_tolerance_is_found(self, rng):
        X = normal(rng, 40, 6)
        U = torch.linalg.qr(normal(rng, 6, 2)).Q * torch.tensor([1.0, 5e-6], dtype=X.dtype)
        found = recover(X, (X @ U).square().sum(-1))
        assert int(found.rank) == 2
        assert error(found, U) < 1e-12


@pytest.mark.parametrize("n", [24, 76])
def test_equivariance(rng, n):
    X, _, y = gaussian_problem(rng, n, 10, 2, smallest=0.5)
    O = rotation(rng, 10)
    plain = recover(X, y, 2).Q.dense()
    torch.testing.assert_close(O @ recover(X @ O, y, 2).Q.dense() @ O.mT, plain)
    torch.testing.assert_close(recover(X, 7.3 * y, 2).Q.dense(), 7.3 * plain)
    torch.testing.assert_close(recover(3.1 * X, y, 2).Q.dense() * 3.1**2, plain)


@pytest.mark.parametrize("power", [-150, -40, 40, 150])
def test_units_do_not_matter(rng, power):
    X, U, y = gaussian_problem(rng, 38, 10, 2, smallest=0.5)
    found = recover(X * 10.0**power, y * 1e-30, 2)
    assert found.status is Status.RECOVERED
    V = found.U * 10.0**power * 1e15
    torch.testing.assert_close(V @ V.mT, U @ U.mT, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("power", [2, 5, 10, 12])
@pytest.mark.parametrize("batch", [False, True])
def test_columns_in_different_units_do_not_matter(rng, power, batch):
    X, U = normal(rng, 60, 5), normal(rng, 5, 2)
    # Not in descending order: of a graded matrix LAPACK keeps the small rows by luck.
    units = torch.logspace(-power, power, 5, dtype=torch.float64)[[2, 4, 0, 3, 1]]
    inputs, y = X * units, (X @ U).square().sum(-1)
    if batch:
        inputs, y = torch.stack([inputs, X]), torch.stack([y, y])
    found = recover(inputs, y, rank=2)
    assert set(np.ravel(found.status)) == {Status.RECOVERED}
    V = (found.U[0] if batch else found.U) * units[:, None]
    assert torch.linalg.matrix_norm(V @ V.mT - U @ U.mT) < 1e-9 * torch.linalg.matrix_norm(U @ U.mT)
    # The residual is that of the factor handed out.
    e = (inputs @ found.U).square().sum(-1) - y
    assert torch.linalg.matrix_norm(torch.atleast_2d(e)) < 1e-12 * torch.linalg.vector_norm(y)


def test_looking_at_the_inputs_takes_no_copy_of_them(rng):
    X = normal(rng, 4000, 600)
    y = X[:, 0].square()
    with Record(X) as record:
        assert normalize_rows(X, y, None) is None
        assert not bool(looks_nongeneric(X))
        prepare(X, y, None)
    assert record.largest <= 2**20 < X.numel()


def test_rank_path(rng):
    """The ranks tried, with residuals of separate calls and the criterion worked out by hand."""
    X, U = normal(rng, 150, 6), normal(rng, 6, 2)
    y = (X @ U).square().sum(-1) + 0.1 * normal(rng, 150)
    found = recover(X, y, max_rank=4)
    path = found.rank_path
    assert path.rank.tolist() == [1, 2, 3, 4]
    for k, (residual, score) in enumerate(zip(path.residual, path.score, strict=True), start=1):
        assert float(residual) == pytest.approx(float(recover(X, y, rank=k).residual), rel=1e-6)
        by_hand = 150 * math.log(float(residual) ** 2) + dimension(6, k) * math.log(150)
        assert float(score) == pytest.approx(by_hand, rel=1e-12)
    assert int(found.rank) == int(path.rank[path.score.argmin()]) == 2
    assert recover(X, y, rank=2).rank_path is None
    assert recover(torch.stack([X, X]), torch.stack([y, y])).rank_path is None


@pytest.mark.parametrize("max_rank", [0, -1, 1.5])
def test_highest_rank_must_be_a_positive_integer(rng, max_rank):
    with pytest.raises(DomainError, match="max_rank"):
        recover(normal(rng, 9, 3), normal(rng, 9), max_rank=max_rank)


@pytest.mark.parametrize("n", [38, 76, 600])
def test_anisotropic_inputs(rng, n):
    """Design with condition number 1e4."""
    X, U, _ = gaussian_problem(rng, n, 10, 2, smallest=0.5)
    X = X @ (rotation(rng, 10) * torch.logspace(0, -4, 10, dtype=X.dtype))
    found = recover(X, (X @ U).square().sum(-1), 2)
    assert found.status is Status.RECOVERED
    assert error(found, U) < 1e-8


def test_weights_are_weighted_least_squares(rng):
    X, U, y = gaussian_problem(rng, 80, 5, 2, smallest=0.5)
    y = y * (1 + 0.1 * normal(rng, 80))
    w = torch.rand(80, generator=rng, dtype=X.dtype)
    found = recover(X, y, 2, weights=w)
    inputs, responses, roots = X.numpy(), y.numpy(), w.sqrt().numpy()
    reference = scipy.optimize.least_squares(
        lambda u: roots * (((inputs @ u.reshape(5, 2)) ** 2).sum(1) - responses),
        U.numpy().ravel(), xtol=1e-15, ftol=1e-15, gtol=1e-14,
    )  # fmt: skip
    assert error(found, torch.from_numpy(reference.x.reshape(5, 2))) < 1e-7


def test_a_weight_of_zero_leaves_an_outlier_out(rng):
    X, U, y = gaussian_problem(rng, 40, 10, 2, smallest=0.5)
    y[:3] = 100.0
    w = torch.ones(40, dtype=X.dtype)
    w[:3] = 0
    found = recover(X, y, 2, weights=w)
    assert found.status is Status.RECOVERED
    assert int(found.samples) == 37
    assert error(found, U) < 1e-12


def test_noisy_error_is_that_of_least_squares_at_the_truth():
    """5 per cent noise, n = 4p: against the local least squares estimate around Q*."""
    rng = torch.Generator().manual_seed(4)
    ours, oracle = 0.0, 0.0
    for _ in range(8):
        X, U, y = gaussian_problem(rng, 76, 10, 2, smallest=0.5)
        noisy = y * (1 + 0.05 * normal(rng, 76))
        found = recover(X, noisy, 2)
        J = torch.stack([2 * torch.outer(x, x @ U).flatten() for x in X])
        step = torch.linalg.lstsq(J, (noisy - y)[:, None], driver="gelsd").solution[:, 0]
        D = step.reshape(10, 2)
        linear = D @ U.mT + U @ D.mT
        oracle += float(linear.square().sum())
        ours += float((found.Q.dense() - U @ U.mT).square().sum())
    assert math.sqrt(ours / oracle) <= 1.1  # 8 problems; the benchmark has more


class TestBatches:
    def test_batch_is_a_loop(self, rng):
        X, U = normal(rng, 2, 5, 40, 4), normal(rng, 2, 5, 4, 2)
        y = (X @ U).square().sum(-1)
        together = recover(X, y, 2)
        assert together.U.shape == (2, 5, 4, 2)
        assert together.residual.shape == (2, 5)
        assert together.status == [[Status.RECOVERED] * 5] * 2
        torch.testing.assert_close(together.Q.dense(), U @ U.mT, rtol=1e-10, atol=1e-11)

    def test_special_problems_of_a_batch(self, rng):
        """Noise, zero responses, a subspace and a lower rank beside an ordinary problem."""
        X, U, _ = gaussian_problem(rng, 40, 5, 2, smallest=0.5)
        X = X.repeat(5, 1, 1)
        X[2, :, 4] = 0
        y = (X @ U).square().sum(-1)
        y[1] = 0
        y[3] = (X[3] @ U[:, :1]).square().sum(-1)
        y[4] *= 1 + 0.05 * normal(rng, 40)
        found = recover(X, y, 2)
        names = [status.name for status in found.status]
        assert names == ["RECOVERED", "RECOVERED", "UNDETERMINED", "RECOVERED", "BEST_FIT"]
        assert found.rank.tolist() == [2, 0, 2, 1, 2]
        assert len(found.message) == 5
        for k in range(5):
            alone = recover(X[k], y[k], 2)
            torch.testing.assert_close(found.Q.dense()[k], alone.Q.dense(), rtol=1e-6, atol=1e-8)

    def test_hard_problems_of_a_batch_are_restarted(self):
        rng = torch.Generator().manual_seed(2)
        problems = [gaussian_problem(rng, 24, 10, 2, smallest=0.5) for _ in range(12)]
        X, U, y = (torch.stack(part) for part in zip(*problems, strict=True))
        found = recover(X, y, 2)
        assert found.status == [Status.RECOVERED] * 12
        assert int(found.starts.max()) > 1
        torch.testing.assert_close(found.Q.dense(), U @ U.mT, rtol=1e-9, atol=1e-10)

    @pytest.mark.parametrize("rank", [1, None])
    def test_empty_batch(self, rank):
        found = recover(torch.zeros(0, 5, 3), torch.zeros(0, 5), rank)
        assert found.U.shape == (0, 3, 1)
        assert found.status == []

    def test_shared_inputs_and_chosen_ranks(self, rng):
        X, U = normal(rng, 40, 4), normal(rng, 3, 4, 2)
        U[0, :, 1] = 0
        found = recover(X, (X @ U).square().sum(-1))
        assert found.rank.tolist() == [1, 2, 2]
        torch.testing.assert_close(found.Q.dense(), U @ U.mT, rtol=1e-10, atol=1e-11)

    def test_too_few_samples_in_a_batch(self, rng):
        X, U = normal(rng, 2, 12, 6), normal(rng, 2, 6, 3)
        found = recover(X, (X @ U).square().sum(-1), 3)
        assert found.status == [Status.NOT_IDENTIFIED] * 2

    def test_repeated_samples_of_a_batch(self, rng):
        X = normal(rng, 15, 10).repeat(3, 1)
        U = normal(rng, 10, 1)
        y = (X @ U).square().sum(-1)
        alone, together = recover(X, y, 1), recover(X[None], y[None], 1)
        assert [alone.status] == together.status == [Status.RECOVERED]
        assert error(alone, U) < 1e-12
        assert error(together, U) < 1e-12

    def test_repeated_samples_of_a_batch_that_leave_a_higher_rank_open(self, rng):
        """15 inputs determine the 10 unknowns of rank one, but not the 19 of rank two."""
        X = normal(rng, 15, 10).repeat(3, 1)
        y = (X @ normal(rng, 10, 1)).square().sum(-1)
        alone, together = recover(X, y, 2), recover(X[None], y[None], 2)
        assert [alone.status] == together.status == [Status.NOT_IDENTIFIED]
        assert int(alone.rank) == int(together.rank[0]) == 1
        assert bool(alone.evidence.different)

    def test_uneven_samples_of_a_batch(self, rng):
        X, U = normal(rng, 4, 30, 5), normal(rng, 4, 5, 2)
        X = X * torch.logspace(-6, 0, 30, dtype=X.dtype)[:, None]
        y = (X @ U).square().sum(-1)
        y[3] *= 1 + 0.05 * normal(rng, 30)
        w = torch.rand(4, 30, generator=rng, dtype=X.dtype)
        found = recover(X, y, 2, weights=w)
        assert found.status[:3] == [Status.RECOVERED] * 3
        torch.testing.assert_close(found.Q.dense()[:3], (U @ U.mT)[:3], rtol=1e-9, atol=1e-10)
        for k in range(4):
            alone = recover(X[k], y[k], 2, weights=w[k])
            assert alone.status is found.status[k]
            torch.testing.assert_close(found.residual[k], alone.residual, rtol=1e-6, atol=1e-13)


class TestBudgets:
    @pytest.mark.parametrize("most", [1, 2, 5, 13])
    @pytest.mark.parametrize("batch", [False, True])
    def test_starts_are_counted(self, rng, most, batch):
        X, y = normal(rng, 20, 10), normal(rng, 20).square()
        found = (
            recover(X[None], y[None], 2, max_starts=most)
            if batch
            else recover(X, y, 2, max_starts=most)
        )
        assert int(found.starts) == most

    def test_one_start_settles_nothing(self, rng):
        X, y = normal(rng, 60, 5), normal(rng, 60).square()
        assert recover(X, y, 2, max_starts=1).status is Status.STALLED
        assert recover(X, y, 2).status is Status.BEST_FIT

    def test_a_best_fit_near_the_limit(self):
        found = recover(np.array([[2.0]]), np.array([-4.0]), 1)
        assert found.status is Status.BEST_FIT
        assert int(found.rank) == 0
        assert np.isnan(found.error_estimate)

    def test_starts_that_end_apart_do_not_agree(self, rng):
        """Agreement is to 1e-3 of the residual: 24 samples of noise have many minima."""
        X, y = normal(rng, 24, 10), normal(rng, 24).square()
        found = recover(X, y, 2, max_starts=40)
        assert found.status is Status.STALLED
        assert float(found.residual) < float(recover(X, y, 2, max_starts=1).residual)

    def test_time_limit_of_a_large_problem(self, rng):
        X, _, y = gaussian_problem(rng, 4000, 150, 8, smallest=0.5)
        y = y * (1 + 0.3 * normal(rng, 4000))
        found = recover(X, y, 8, time_limit=0.05)
        assert found.status is Status.INTERRUPTED


def test_whitening_is_needed(rng):
    """Prepared inputs are isotropic up to sampling error, for any design."""
    X = normal(rng, 400, 10) @ (rotation(rng, 10) * torch.logspace(0, -4, 10, dtype=torch.float64))
    working = prepare(X, normal(rng, 400).square(), None).problem.operator.X
    values = torch.linalg.eigvalsh(working.mT @ working / 400)
    assert float(values[-1] / values[0]) < 4


@pytest.mark.parametrize(("n", "d"), [(30, 8), (5000, 8), (3000, 60)])
def test_independent_samples_are_counted_at_any_size(rng, n, d):
    D = d * (d + 1) // 2
    generic = ProblemCache(prepare(normal(rng, n, d), torch.ones(n).double(), None))
    assert int(generic.distinct) == min(n, D)
    if d == 8 and n > D:
        signs = ProblemCache(prepare(normal(rng, n, d).sign(), torch.ones(n).double(), None))
        assert int(signs.distinct) == D - d + 1


class TestKinds:
    def test_single_precision_with_a_rank_too_high(self):
        for seed in range(10):
            g = np.random.default_rng(seed)
            X = g.standard_normal((30, 4)).astype("f")
            U = (g.standard_normal((4, 2)) * [1, 1e-3]).astype("f")
            found = recover(X, ((X @ U) ** 2).sum(1), 4, precision="input", max_starts=10)
            assert found.U.dtype == np.float32

    def test_numpy_in_numpy_out(self, rng):
        X, U, y = gaussian_problem(rng, 40, 5, 2, smallest=0.5)
        found = recover(X.numpy(), y.numpy(), 2)
        assert isinstance(found.U, np.ndarray)
        assert isinstance(found.Q.dense(), np.ndarray)
        assert isinstance(found.history, np.ndarray)
        assert error(found, U) < 1e-12

    def test_single_precision_is_computed_in_double(self, rng):
        X, U, y = gaussian_problem(rng, 40, 5, 2, smallest=0.5)
        found = recover(X.float(), y.float(), 2)
        assert found.U.dtype == torch.float64
        assert found.status is Status.RECOVERED
        assert error(found, U) < 1e-5

    def test_single_precision_on_request(self, rng):
        X, U, y = gaussian_problem(rng, 40, 5, 2, smallest=0.5)
        found = recover(X.float(), y.float(), 2, precision="input")
        assert found.U.dtype == torch.float32
        assert error(found, U.float()) < 1e-4

    def test_seed_decides(self, rng):
        X, _, y = gaussian_problem(rng, 21, 10, 2, smallest=0.5)
        first, second = (recover(X, y, 2, seed=3, max_starts=40) for _ in range(2))
        assert torch.equal(first.U, second.U)

    def test_repr_is_short(self, rng):
        X, _, y = gaussian_problem(rng, 40, 5, 2)
        assert "status=RECOVERED" in repr(recover(X, y, 2))

    def test_progress_is_told(self, rng):
        X, _, y = gaussian_problem(rng, 40, 5, 2)
        seen = []
        found = recover(X, y, 2, progress=seen.append)
        assert len(seen) == len(found.history)
        assert [p.time for p in seen] == sorted(p.time for p in seen)
        assert (seen[0].time, seen[-1].time) == (0, found.steps)
        assert seen[-1].loss < 1e-12


@pytest.mark.parametrize(
    ("call", "named", "kind"),
    [
        (lambda X, y: recover(X, y, 0), "rank", DomainError),
        (lambda X, y: recover(X, y, 6), "rank", DomainError),
        (lambda X, y: recover(X, y[:-1], 1), "y", ShapeError),
        (lambda X, y: recover(X[0], y, 1), "X", ShapeError),
        (lambda X, y: recover(X * math.nan, y, 1), "X", NonFiniteError),
        (lambda X, y: recover(X, y, 1, weights=-y), "weights", DomainError),
        (lambda X, y: recover(X, y, 1, weights=0 * y), "weights", DomainError),
        (lambda X, y: recover(X, y, 1, weights=y[:-1]), "weights", ShapeError),
        (lambda X, y: recover(X, y, 1, seed=-1), "seed", DomainError),
        (lambda X, y: recover(X, y, 1, seed=2**64), "seed", DomainError),
        (lambda X, y: recover(X, y, 1).Q @ torch.ones(4), "V", ShapeError),
        (
            lambda X, y: recover(X.expand(3, -1, -1), y, 1).Q @ torch.ones(2, 5, 1),
            "Q, V",
            ShapeError,
        ),
        (lambda X, y: recover(X, y, 1).Q @ torch.ones(4, 5), "V", ShapeError),
        (lambda X, y: recover(X, y, 1).Q.apply(torch.ones(5)), "X", ShapeError),
        (lambda X, y: logdet_irls(1e100 * X[:5], y[:5], 1), "X", DomainError),
        (lambda X, y: recover(X, y, 1, tolerance=0.0), "tolerance", DomainError),
        (lambda X, y: recover(X, y, 1, max_starts=0), "max_starts", DomainError),
        (lambda X, y: recover(X, y, 1, max_steps=0), "max_steps", DomainError),
        (lambda X, y: recover(X, y, 1, time_limit=0), "time_limit", DomainError),
        (lambda X, y: recover(X, y, 1, precision="half"), "precision", DomainError),
        (lambda X, y: recover(X, y, 1, progress=1), "progress", DtypeError),
    ],
)
def test_bad_input(rng, call, named, kind):
    X, _, y = gaussian_problem(rng, 20, 5, 1)
    with pytest.raises(kind, match=rf"^{named}: expected .*; got "):
        call(X, y)
