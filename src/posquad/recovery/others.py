"""Look for a second matrix that reproduces the responses.

Local uniqueness is judged by the curvature. A separate second solution can only be found by a
search. A search that finds none proves nothing, so the result holds the number of starts tried.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posquad.core.linalg import norm, symmetric_part
from posquad.core.status import Status
from posquad.dynamics.loop import Rule
from posquad.geometry import dimension
from posquad.problems.measurements import RankOne
from posquad.recovery.candidates import Candidates, Task
from posquad.recovery.restarts import common_noise, reflected
from posquad.recovery.search import method_for
from posquad.recovery.shared import Shared, positive_part
from posquad.recovery.sign_patterns import sign_candidates
from posquad.recovery.solvers.fit import at_rounding, stagnated, stationary
from posquad.recovery.solvers.small import Ending, Known, run_small

_ROUND = 1_000_000  # round of the random numbers, far above the rounds of a search
_ENTRIES = 2**23  # entries of the starts that run together
_FEW = 4  # starts that run together where a step costs more than its calls
_ASIDE = 0.95  # share of the part along the first solution that is removed from a start
_LENGTHS = (1.0, 2.0, 4.0, 0.5)  # of random starts, relative to the first solution
_REFLECTED = (1.0, 3.0)  # distances of the reflections from the least interpolant


def find_second_solution(
    shared: Shared, found: Candidates, task: Task, radii: Radii, *, nongeneric: bool
) -> tuple[Tensor, Tensor]:
    """Return where `[...]` some start leads to a different solution, and the numbers of starts.

    Of rank one and few dimensions, all candidates are tried. Else some starts are random, some are
    random and nearly orthogonal to the first solution, which fewer of them reach again, and some
    are ends of relaxed reflections, which reach solutions of any size where descents do not. Where
    n x n systems are affordable, reflections of the first solution and other interpolants are
    tried as well: a second solution differs from the first by a matrix that A does not see.
    Where the design is `nongeneric` (one problem only), so are its symmetries: inputs with zeros,
    signs or few distinct values can have separate solutions that differ by the signs or the order
    of coordinates.
    """
    U, sizes = found.U, shared.tuning.sizes
    d, r = U.shape[-2:]
    n = shared.problem.n
    none = torch.zeros(U.shape[:-2], dtype=torch.bool, device=U.device)
    count = torch.zeros_like(none, dtype=torch.int64)
    if r == 1 and d <= sizes.sign_dimension:
        starts = sign_candidates(shared.problem)
        different = _ends(shared, found, radii, task, starts)[1].any(0)
        return different, torch.full_like(count, 2 ** (d - 1))
    if n * d * r > sizes.others_entries and not nongeneric:
        return none, count
    plan = plan_search(shared, r, nongeneric=nongeneric)
    different, reached, used = none, count.clone(), count
    together = max(1, _ENTRIES // max(n * d * r, (d * r) ** 2) // max(1, none.numel()))
    if not plan.random:
        together = min(together, _FEW)  # starts that have ended cost as much as the others
    where: Tensor | None = None  # the problems that are left of a batch
    for round in range(plan.rounds):
        part = (shared, found, radii)
        if where is not None:
            part = (shared.select(where), found.select(where), radii.select(where))
        starts = _starts(part[0], part[1].U, task, plan, round, nongeneric=nongeneric)
        ends = [_ends(*part, task, some) for some in starts.U.split(together)]
        again, elsewhere = (torch.cat(parts) & starts.pursued for parts in zip(*ends, strict=True))
        index = ... if where is None else where
        different[index] |= elsewhere.any(0)
        # The first ones are not independent: they are made from the first solution.
        reached[index] += (again | elsewhere)[len(again) - starts.independent :].sum(0)
        used[index] += starts.tried
        open = ~different & (reached < plan.agreeing)  # a problem ends as it would alone
        if not bool(open.any()) or task.history.budget.spent:
            break
        where = open.nonzero()[:, 0] if open.ndim else None
    return different, used


class Plan(NamedTuple):
    """How a second solution is sought."""

    rounds: int
    random: int  # random starts of the first round; the next ones have up to four times as many
    local: int  # other interpolants, in the first round
    reflected: int  # ends of relaxed reflections, in the first round or where none are random
    enough: int  # of these starts that must be near a solution before the reflections end
    agreeing: int  # independent starts that must reproduce the responses before the search ends


def plan_search(shared: Shared, rank: int, *, nongeneric: bool) -> Plan:
    """Return how a second solution of this rank is sought.

    Where a step costs more than its calls, all starts are ends of reflections.
    """
    n, d = shared.problem.n, shared.problem.d
    sizes, schedule = shared.tuning.sizes, shared.tuning.schedule
    if not sizes.is_overhead(n, d, rank, dimension(d, rank)):
        per_start = 2 * n * d * rank  # multiplications of a reflection
        many = min(schedule.large_others, schedule.large_others_operations // per_start)
        many = max(schedule.least_large_others, many)
        enough = math.ceil(schedule.closed_others * many)
        few = dimension(d, rank) > sizes.dense_unknowns
        rounds = 1 if few else schedule.large_others_rounds
        return Plan(rounds, 0, 0, many, enough, min(many, schedule.agreeing_large_others))
    random, agreeing = schedule.others_round, schedule.agreeing_others
    local, many = random // 2, schedule.reflected_others
    if nongeneric:
        agreeing = 3 * agreeing
    elif n >= dimension(d, min(2 * rank, d)):
        # Rows in general position determine every matrix of rank r, because A does not vanish on
        # matrices of rank 2r; only the structure of a design can have two solutions.
        random = local = schedule.determined_others
        agreeing, many = schedule.agreeing_determined_others, 0
    enough = math.ceil(schedule.closed_others * many)
    return Plan(schedule.others_rounds, random, local, many, enough, agreeing)


class Radii(NamedTuple):
    """Distances of matrices from the first solution UU', relative to its norm."""

    near: Tensor  # [...]  no other solution is nearer than this; 0 if unknown
    apart: Tensor  # [...]  solutions that are farther count as different

    def select(self, index: Tensor) -> Radii:
        """Return those of the problems of a batch at these indices."""
        return Radii(self.near[index], self.apart[index])


class Starts(NamedTuple):
    """Starts of a round."""

    U: Tensor  # [S, ..., d, r]
    pursued: Tensor  # [S, ...]  others are of no use for a problem of the batch
    independent: int  # so many at the end of them do not depend on the first solution
    tried: int  # also counts those that were given up


def _starts(
    shared: Shared, U: Tensor, task: Task, plan: Plan, round: int, *, nongeneric: bool
) -> Starts:
    """Return the starts of a round."""
    made = []
    if round == 0 and nongeneric:
        made.append(_symmetric_copies(shared, U, task, shared.tuning.schedule.symmetric_others))
    if round == 0 and shared.forms_kernel:
        made.append(_reflections(shared, U))
    if round == 0 and plan.local and shared.problem.n <= shared.tuning.sizes.kernel_samples:
        made.append(_other_interpolants(shared, U, task.seed, plan.local))
    independent, pursued, tried = [], [], 0
    if plan.reflected and (round == 0 or not plan.random):
        many, seed = (plan.reflected, plan.enough), _ROUND - 3 - round
        schedule = shared.tuning.schedule
        ends = reflected(shared.problem, schedule, U.shape[-1], many, task, seed, round)
        near = torch.ones_like(ends.gap, dtype=torch.bool)
        if not plan.random:  # where steps are expensive, the other starts are not pursued
            near = ends.gap <= schedule.gap
        some = _somewhere(near)
        independent.append(ends.U[some])
        pursued.append(near[some])
        tried += plan.reflected - len(independent[-1])
    if plan.random:
        independent.append(_random_starts(U, task.seed, round, plan.random << min(round, 2)))
    starts = torch.cat([*made, *independent])
    mask = torch.ones(starts.shape[:-2], dtype=torch.bool, device=U.device)
    if pursued:
        first = sum(map(len, made))
        mask[first : first + len(pursued[0])] = pursued[0]
    return Starts(starts, mask, sum(map(len, independent)), tried + len(starts))


def _somewhere(mask: Tensor) -> Tensor:
    """Whether the mask `[S, ...]` holds for some problem of a batch, `[S]`."""
    return mask.any(1) if mask.ndim > 1 else mask


def _random_starts(U: Tensor, seed: int, round: int, count: int) -> Tensor:
    """Return random starts `[S, ..., d, r]`, half of them nearly orthogonal to U."""
    d, r = U.shape[-2:]
    size = torch.linalg.matrix_norm(U)[..., None, None]
    W = torch.linalg.qr(U).Q
    noise = common_noise(seed, _ROUND + round, U, count, d, r) / math.sqrt(d * r)
    aside, random = noise[: count // 2], noise[count // 2 :]
    aside = aside - _ASIDE * W @ (W.mT @ aside)
    aside = aside / torch.linalg.matrix_norm(aside)[..., None, None]
    # A second solution is often longer than the first, which is the one found first.
    lengths = size.new_tensor(_LENGTHS).repeat(count)[:count].reshape(-1, *(1,) * U.ndim)
    both = torch.cat([aside.expand(-1, *U.shape), random.expand(-1, *U.shape)])
    return size * lengths * both


def _ends(
    shared: Shared, found: Candidates, radii: Radii, task: Task, starts: Tensor
) -> tuple[Tensor, Tensor]:
    """Which starts `[S, ..., d, r]` end at U again, and which at another solution, `[S, ...]`."""
    problem, U, schedule = shared.problem, found.U, shared.tuning.schedule
    steps, patience, rate = schedule.others_steps, schedule.others_patience, schedule.others_rate
    size = (U.mT @ U).square().sum((-2, -1))
    near = radii.near.square() * size

    def squared_distance(V: Tensor) -> Tensor:
        """Return `||VV' - UU'||^2`, to an accuracy of eps ||UU'||^2."""
        return (V.mT @ V).square().sum((-2, -1)) + size - 2 * (U.mT @ V).square().sum((-2, -1))

    if shared.is_small(found.rank):
        ending = Ending(steps=steps, patience=patience, rate=rate, rounding=3)
        known = Known(U, near.sqrt())
        V, residual = run_small(problem, starts, ending, task.history, known)
    else:
        V = starts
        residual = torch.full(starts.shape[:-2], torch.inf, dtype=U.dtype, device=U.device)
        apart = _somewhere(squared_distance(V) > near)  # the others need no descent
        if bool(apart.any()):
            dense = shared.is_dense(found.rank) or _has_dense_steps(shared, found.rank)
            method = method_for(problem, found.rank, dense=dense)
            ends: list[Rule[Any]] = [at_rounding(), stationary(), stagnated(patience, rate)]
            ends.append((Status.CONVERGED, lambda state: squared_distance(state.U) <= near))
            steps = steps if dense else 3 * steps
            state = task.history.run(method, method.start(starts[apart]), ends, steps=steps)
            V, residual = V.clone(), residual.clone()
            V[apart], residual[apart] = state.U, state.residual
    away = squared_distance(V)
    reproduced, back = residual <= task.tolerance, away <= near
    elsewhere = reproduced & ~back & (away > radii.apart.square() * size)
    return (reproduced | back) & ~elsewhere, elsewhere


def _has_dense_steps(shared: Shared, rank: int) -> bool:
    """Whether dense steps are affordable, of which few are needed from near a solution."""
    n, d, sizes = shared.problem.n, shared.problem.d, shared.tuning.sizes
    return n * d * rank <= sizes.polish_entries and dimension(d, rank) <= sizes.polish_unknowns


def _reflections(shared: Shared, U: Tensor) -> Tensor:
    """Return parts of rank r of reflections of `Q = UU'` at the least interpolant, as starts.

    All interpolants are `Q_0 + H` with `A(H) = 0`, where Q_0 is the one of least norm. If another
    has the same norm as Q, its H has the length of `Q - Q_0`, and differs from it. The starts are
    `Q_0 - t (Q - Q_0)`.
    """
    Q = shared.interpolant
    lengths = U.new_tensor(_REFLECTED).reshape(-1, *(1,) * U.ndim)
    return positive_part(Q - lengths * (U @ U.mT - Q), U.shape[-1])


def _other_interpolants(shared: Shared, U: Tensor, seed: int, many: int) -> Tensor:
    """Return parts of rank r of other symmetric matrices with the same responses, as starts.

    `Q + H` has the responses of Q if `A(H) = 0`; H is a random symmetric matrix less the part that
    A sees, `A*(K^{-1} A(G))` with `K = A A*` and a small ridge, because this is only a start. Its
    lengths are from a tenth to four times that of Q. Half of them, in turn, are values of t for
    which `C'(Q + tH)C` is singular with a random C of r + 1 columns, as it is for every C where
    `Q + tH` has rank r: if A does not see one matrix only, these are all other solutions.
    """
    operator, (d, r) = shared.problem.operator, U.shape[-2:]
    G = symmetric_part(common_noise(seed, _ROUND - 1, U, many, d, d))
    K = operator.gram().square()
    ridge = 1e-10 * K.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
    K = K + torch.diag_embed(ridge.expand(K.shape[:-1]))
    root, H = torch.linalg.cholesky(K), G
    for _ in range(3):  # the ridge leaves a share of what A sees
        seen = operator.apply_kernel(H).movedim(0, -1)  # [..., n, many]
        H = H - operator.adjoint_kernel(torch.cholesky_solve(seen, root).movedim(-1, 0))
    Q = U @ U.mT
    lengths = torch.tensor([1.0, 0.1, 2.0, 0.3, 4.0, 0.5], dtype=U.dtype, device=U.device)
    lengths = lengths.repeat(many)[:many].reshape(-1, *(1,) * (H.ndim - 1))
    ratio = norm(Q, (-2, -1)) / norm(H, (-2, -1)).clamp_min(1e-300)
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
    real = (roots.imag.abs() <= 1e-6 * roots.abs()) & (roots.abs() > 0)
    return torch.where(real, roots.real, torch.nan)


def _symmetric_copies(shared: Shared, U: Tensor, task: Task, many: int) -> Tensor:
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


def block_signs(operator: RankOne) -> Tensor:
    """Return signs `[B, d, 1]` that flip one block of coordinates each.

    No row of X has entries both inside and outside a block.
    """
    shared = operator.absolute_moments()
    joined = shared > 1e-12 * operator.largest_entry() ** 2
    for _ in range(max(1, math.ceil(math.log2(operator.d + 1)))):
        joined = (joined.to(shared) @ joined.to(shared)) > 0
    blocks = joined.unique(dim=0)
    return 1 - 2 * blocks.to(shared)[..., None]
