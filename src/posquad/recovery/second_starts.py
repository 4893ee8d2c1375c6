"""How and from where a second solution is sought.

A start is random, the end of relaxed reflections from random predictions, or made from the first
solution: a mirror image of it, another interpolant, a copy with symmetries of the inputs, or one
that keeps its leading directions.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from posquad.core.linalg import norm, symmetric_part
from posquad.geometry import dimension
from posquad.problems.held import HeldMeasurements
from posquad.problems.measurements import RankOne
from posquad.recovery.candidates import Task
from posquad.recovery.costs import is_overhead, solves
from posquad.recovery.problem_cache import ProblemCache, positive_part
from posquad.recovery.restarts import closing_gap, common_noise, reflected

# Starts of the first round of a search for a second solution. Measured: where a step costs only
# its calls, they cost little more than one.
RANDOM_STARTS = 24
# The same for other measurements than rows, where a step costs more than its calls. A choice: later
# rounds have up to four times as many.
_LARGE_STARTS = 20
# Most starts of relaxed reflections. Measured on rows on quadrics whose two solutions have
# eigenvalues of different sizes.
_REFLECTED = 64
# Most multiplications of one reflection of all starts of a round; larger problems have fewer
# starts. Derived: 50 reflections, which are enough from 4p samples, take about a second.
_OPERATIONS = 10**8
# Sign flips, and as many permutations, of the first solution that are tried as starts where the
# design has structure. Measured on the adversarial families.
_SYMMETRIC = 48
# Round of the random numbers. A choice: far above the rounds of a search, so that no numbers are
# used twice.
_ROUND = 1_000_000
# Share of the part along the first solution that is removed from a start. A choice: nearly all of
# it, and not all, because a second solution may overlap with the first.
_ASIDE = 0.95
# Lengths of random starts, relative to the first solution. A choice: a second solution is often
# longer than the first, which is the one found first.
LENGTHS = (1.0, 2.0, 4.0, 0.5)
# The same where responses do not bound the size of a solution, because the A_i are not positive
# semidefinite. Measured on twins by dense matrices whose solutions have norms 4 to 6 times apart:
# of 200 starts each, 0 to 9 reach the larger solution from lengths up to 3, 6 to 28 from 10 and 30.
FREE_LENGTHS = (1.0, 3.0, 10.0, 30.0, 0.3, 0.1)
# Distances of the mirror images from the least interpolant, relative to that of the first solution.
# Derived: another solution of the same norm has the distance 1; 3 is a choice for longer ones.
_MIRRORED = (1.0, 3.0)
# Lengths of the differences of other interpolants from the first solution, relative to it. A
# choice: a tenth to four times, in an order in which few of them are already different.
_DIFFERENCES = (1.0, 0.1, 2.0, 0.3, 4.0, 0.5)
# Rounds that each double the number of random starts. A choice: four times as many at most, because
# the starts of a round run together.
_DOUBLINGS = 2
# Most rounds of reflections where a step costs more than its calls, each of twice as many as the
# one before. Measured at (40, 3), n = 1.05p: 44 starts have agreed then in 23 of 32 problems, and
# of eight rounds of 20 starts in none, in the same time.
_LARGE_ROUNDS = 3
# Share of the starts of such a round that must be near a solution before it ends. Derived: a little
# more than `Acceptance.agreeing_others` of `_REFLECTED`.
_CLOSED = 0.75
# Reflections that an accelerator makes in the time of one on a CPU. Derived: so are the operations
# per second of an H200 and of one thread. Not measured on an accelerator.
_FASTER = 100
# Ridge of K = A A*, over its mean diagonal entry, and passes that remove what it leaves. Derived: a
# direction of relative strength s keeps the share (ridge / s)^passes, less than eps from s = 2e-5.
_RIDGE = 1e-10
_PASSES = 3
# Imaginary part of a root, over its size, up to which the root is real. Derived: a double root is
# rounded by sqrt(eps) = 1.5e-8, and there is a margin.
_REAL = 1e-6
# Mean product of two columns, over the square of the largest entry, up to which no row joins them.
# Derived: a product of the transformed inputs that should be zero is rounded by some eps.
_UNJOINED = 1e-12


class Plan(NamedTuple):
    """How a second solution is sought."""

    rounds: int
    random: int  # random starts of the first round; the next ones have up to four times as many
    local: int  # other interpolants, in the first round
    reflected: int  # ends of relaxed reflections, in the first round or where none are random
    enough: int  # of these starts that must be near a solution before the reflections end
    agreeing: int  # independent starts that must reproduce the responses before the search ends
    least: int = 0  # the same where all rounds have been tried


def plan_search(shared: ProblemCache, rank: int, *, nongeneric: bool) -> Plan:
    """Return how a second solution of this rank is sought.

    Where a step costs more than its calls, all starts are ends of reflections, or, for other
    measurements than rows, whose reflections take decompositions, all starts descend.
    """
    n, d = shared.problem.n, shared.problem.d
    overhead, acceptance = is_overhead(n, d, rank, dimension(d, rank)), shared.acceptance
    sums = shared.prepared.sums is not None
    least = acceptance.least_agreeing_others if sums else 0
    agreeing = acceptance.agreeing_others
    if nongeneric or not shared.problem.operator.bounded:
        agreeing = acceptance.nongeneric_others * agreeing
    if not overhead and sums:
        random = RANDOM_STARTS
        many = random if shared.has_reflections else 0
        rounds = acceptance.large_others_rounds
        return Plan(rounds, random, random // 2, many, many, agreeing, least)
    if not overhead and not isinstance(shared.problem.operator, RankOne):
        many, agreeing = _LARGE_STARTS, acceptance.agreeing_others
        return Plan(acceptance.large_others_rounds, many, many // 2, 0, 0, agreeing)
    if not overhead:
        elsewhere = shared.problem.y.device.type != "cpu"
        faster = _FASTER if elsewhere else 1
        affordable = faster * _OPERATIONS // (2 * n * d * rank)
        many = max(acceptance.least_large_others, min(_REFLECTED, affordable))
        enough = math.ceil(_CLOSED * many)
        rounds = max(1, min(_LARGE_ROUNDS, affordable // many))
        return Plan(rounds, 0, 0, many, enough, acceptance.agreeing_others)
    random = RANDOM_STARTS
    local, many = random // 2, _REFLECTED
    enough = math.ceil(acceptance.closed_others * many)
    many = many if shared.has_reflections else 0
    return Plan(acceptance.others_rounds, random, local, many, enough, agreeing, least)


class Starts(NamedTuple):
    """Starts of a round."""

    U: Tensor  # [S, ..., d, r]
    pursued: Tensor  # [S, ...]  whether a start is of use for a problem of a batch
    independent: int  # so many at the end of them do not depend on the first solution
    tried: int  # also counts those that were given up


def make_starts(
    shared: ProblemCache, U: Tensor, task: Task, plan: Plan, round: int, *, nongeneric: bool
) -> Starts:
    """Return the starts of a round of the plan, for the first solution `UU'`."""
    made = []
    rows, bounded = isinstance(shared.problem.operator, RankOne), shared.problem.operator.bounded
    lengths = LENGTHS if bounded else FREE_LENGTHS
    if round == 0 and nongeneric:
        made.append(_symmetric_copies(shared, U, task, _SYMMETRIC))
    # Where A sees less than half of the symmetric matrices, other interpolants are far from rank r.
    some = plan.random > 0 or 4 * shared.problem.n >= U.shape[-2] * (U.shape[-2] + 1)
    if round == 0 and shared.forms_kernel and some:
        made.append(_mirrored_interpolants(shared, U))
    if round == 0 and plan.local and solves(shared.problem.n):
        made.append(_other_interpolants(shared, U, task.seed, plan.local))
    if plan.random and U.shape[-1] > 1:
        made.append(partly_known(U, task.seed, round, plan.random, lengths))
    dependent, given_up = sum(map(len, made)), 0
    pursued = [torch.ones(start.shape[:-2], dtype=torch.bool, device=U.device) for start in made]
    if plan.reflected and (round == 0 or not plan.random):
        many, numbers = (plan.reflected, plan.enough), _ROUND - 3 - round
        ends = reflected(shared.problem, U.shape[-1], many, task, numbers, round)
        # Where steps are expensive, starts that are not near a solution are not pursued.
        gap = closing_gap(shared.problem, U.shape[-1])
        near = (ends.gap <= gap) | (plan.random > 0)
        some = anywhere(near)
        made.append(ends.U[some])
        pursued.append(near[some])
        given_up = len(near) - len(made[-1])
    if plan.random and not rows:  # nearly all reflections may end at the smaller solution
        dependent = sum(map(len, made))
    if plan.random:
        many = plan.random << min(round, _DOUBLINGS)
        made.append(random_starts(U, task.seed, round, many, lengths))
        pursued.append(torch.ones(made[-1].shape[:-2], dtype=torch.bool, device=U.device))
    starts = torch.cat(made) if made else U[None][:0]
    mask = torch.cat(pursued) if pursued else starts.new_zeros(starts.shape[:-2], dtype=torch.bool)
    return Starts(starts, mask, len(starts) - dependent, len(starts) + given_up)


def anywhere(mask: Tensor) -> Tensor:
    """Whether the mask `[S, ...]` holds for some problem of a batch, `[S]`."""
    return mask.any(1) if mask.ndim > 1 else mask


def random_starts(
    U: Tensor, seed: int, round: int, count: int, lengths: tuple[float, ...] = LENGTHS
) -> Tensor:
    """Return random starts `[S, ..., d, r]`, half of them nearly orthogonal to U.

    Their `lengths` are relative to U.
    """
    d, r = U.shape[-2:]
    size = torch.linalg.matrix_norm(U)[..., None, None]
    W = torch.linalg.qr(U).Q
    noise = common_noise(seed, _ROUND + round, U, count, d, r) / math.sqrt(d * r)
    aside, random = noise[: count // 2], noise[count // 2 :]
    aside = aside - _ASIDE * W @ (W.mT @ aside)
    aside = aside / torch.linalg.matrix_norm(aside)[..., None, None]
    each = size.new_tensor(lengths).repeat(count)[:count].reshape(-1, *(1,) * U.ndim)
    both = torch.cat([aside.expand(-1, *U.shape), random.expand(-1, *U.shape)])
    return size * each * both


def partly_known(
    U: Tensor, seed: int, round: int, count: int, lengths: tuple[float, ...] = LENGTHS
) -> Tensor:
    """Return starts `[S, ..., d, r]` that keep leading directions of UU' and replace the others.

    If the eigenvalues of UU' differ much, a second solution often has nearly the same leading ones,
    and few random starts lead to it.
    """
    r = U.shape[-1]
    W, s, _ = torch.linalg.svd(U, full_matrices=False)
    noise = common_noise(seed, _ROUND // 2 + round, U, count, *U.shape[-2:])
    noise = noise / torch.linalg.vector_norm(noise, dim=-2, keepdim=True)
    kept = (torch.arange(count, device=U.device) % (r - 1) + 1).reshape(-1, *(1,) * U.ndim)
    each = s.new_tensor(lengths).repeat_interleave(r - 1).repeat(count)[:count]
    size = torch.where(s > 0, s, s.mean(-1, keepdim=True))[..., None, :]  # of a column of zeros
    other = each.reshape(-1, *(1,) * U.ndim) * size * noise
    return torch.where(torch.arange(r, device=U.device) < kept, s[..., None, :] * W, other)


def _mirrored_interpolants(shared: ProblemCache, U: Tensor) -> Tensor:
    """Return parts of rank r of mirror images of `Q = UU'` at the least interpolant, as starts.

    All interpolants are `Q_0 + H` with `A(H) = 0`, where Q_0 is the one of least norm. If another
    has the same norm as Q, its H has the length of `Q - Q_0`, and differs from it. The starts are
    `Q_0 - t (Q - Q_0)`.
    """
    Q = shared.interpolant
    lengths = U.new_tensor(_MIRRORED).reshape(-1, *(1,) * U.ndim)
    return positive_part(Q - lengths * (U @ U.mT - Q), U.shape[-1])


def _other_interpolants(shared: ProblemCache, U: Tensor, seed: int, many: int) -> Tensor:
    """Return parts of rank r of other symmetric matrices with the same responses, as starts.

    `Q + H` has the responses of Q if `A(H) = 0`; H is a random symmetric matrix less the part that
    A sees, `A*(K^{-1} A(G))` with `K = A A*` and a small ridge, because this is only a start. Its
    lengths are from a tenth to four times that of Q. Half of them, in turn, are values of t for
    which `C'(Q + tH)C` is singular with a random C of r + 1 columns, as it is for every C where
    `Q + tH` has rank r: if A does not see one matrix only, these are all other solutions.
    """
    operator, (d, r) = shared.problem.operator, U.shape[-2:]
    if shared.prepared.sums is not None:  # the strengths of their rows differ much
        operator = operator.normalized()
    G = symmetric_part(common_noise(seed, _ROUND - 1, U, many, d, d))
    K = operator.inner_products()
    ridge = _RIDGE * K.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
    K = K + torch.diag_embed(ridge.expand(K.shape[:-1]))
    root, H = torch.linalg.cholesky(K), G
    for _ in range(_PASSES):  # the ridge leaves a share of what A sees
        seen = operator.apply_kernel(H).movedim(0, -1)  # [..., n, many]
        H = H - operator.adjoint_kernel(torch.cholesky_solve(seen, root).movedim(-1, 0))
    Q = U @ U.mT
    lengths = torch.tensor(_DIFFERENCES, dtype=U.dtype, device=U.device)
    lengths = lengths.repeat(many)[:many].reshape(-1, *(1,) * (H.ndim - 1))
    size = norm(H, (-2, -1))
    ratio = norm(Q, (-2, -1)) / torch.where(size > 0, size, 1.0)
    H = ratio[..., None, None] * H
    if r < d:
        C = torch.linalg.qr(common_noise(seed, _ROUND - 2, U, 1, d, r + 1)).Q
        roots = singular_multiples(C.mT @ Q @ C, C.mT @ H @ C)  # [many, ..., r]
        index = torch.arange(many, device=U.device).reshape(-1, *(1,) * (roots.ndim - 1))
        t = roots.gather(-1, (index // 2 % r).expand(*roots.shape[:-1], 1))
        use = (index % 2 == 1) & torch.isfinite(t)
        lengths = torch.where(use[..., None], t[..., None], lengths)
    return positive_part(Q + lengths * H, r)


def singular_multiples(A: Tensor, B: Tensor) -> Tensor:
    """Real t, `[..., k - 1]`, for which the symmetric `A + tB` of size k is singular; NaN if none.

    The one nearest to zero is left out: it is zero where A itself is singular.

    >>> A, B = torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([[-1.0, 0.0], [0.0, 1.0]])
    >>> singular_multiples(A, B)
    tensor([2.])
    """
    ratio, singular = torch.linalg.solve_ex(B, -A)
    defined = (singular == 0)[..., None, None] & torch.isfinite(ratio)
    roots = torch.linalg.eigvals(torch.where(defined, ratio, 0.0))
    order = roots.abs().argsort(-1, descending=True)[..., :-1]
    roots = roots.gather(-1, order)
    real = (roots.imag.abs() <= _REAL * roots.abs()) & (roots.abs() > 0)
    return torch.where(real, roots.real, torch.nan)


def _symmetric_copies(shared: ProblemCache, U: Tensor, task: Task, many: int) -> Tensor:
    """Return starts that flip blocks or signs of coordinates of U, or permute them.

    They do so in the user's coordinates, in which the inputs have their structure.
    """
    transform = shared.prepared.transform
    back = torch.linalg.pinv(transform)
    V = transform @ U
    generator = torch.Generator().manual_seed(task.seed)
    coins = torch.randn(many, len(V), 1, generator=generator, dtype=U.dtype).to(U.device).sign()
    orders = torch.rand(many, len(V), generator=generator).argsort(-1).to(U.device)
    blocks = block_signs(shared.problem.operator.transformed(back))
    return back @ torch.cat([blocks * V, coins * V, V[orders]])


def block_signs(operator: HeldMeasurements) -> Tensor:
    """Return signs `[B, d, 1]` that flip one block of coordinates each.

    No measurement joins a coordinate inside a block with one outside.
    """
    shared = operator.absolute_moments()
    joined = shared > _UNJOINED * operator.largest_term()
    for _ in range(max(1, math.ceil(math.log2(operator.d + 1)))):
        joined = (joined.to(shared) @ joined.to(shared)) > 0
    blocks = joined.unique(dim=0)
    return 1 - 2 * blocks.to(shared)[..., None]
