"""Look for a second matrix that reproduces the responses.

Local uniqueness is judged by the curvature. A separate second solution can only be found by a
search. A search that finds none proves nothing, so the result holds the number of starts tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from posquad.core.linalg import norm, symmetric_part
from posquad.geometry import dimension
from posquad.problems.measurements import RankOne
from posquad.recovery.candidates import Candidates, Task
from posquad.recovery.restarts import common_noise, reflected_starts
from posquad.recovery.search import method_for
from posquad.recovery.shared import Shared, positive_part
from posquad.recovery.sign_patterns import sign_candidates
from posquad.recovery.solvers.fit import at_rounding, stagnated, stationary
from posquad.recovery.solvers.small import Ending, Known, run_small

_ROUND = 1_000_000  # round of the random numbers, far above the rounds of a search
_ENTRIES = 2**23  # entries of the starts that run together
_ASIDE = 0.95  # share of the part along the first solution that is removed from a start
_LENGTHS = (1.0, 2.0, 4.0, 0.5)  # of random starts, relative to the first solution
_REFLECTED = (1.0, 3.0)  # distances of the reflections from the least interpolant


def find_second_solution(
    shared: Shared, found: Candidates, task: Task, radii: Radii, *, nongeneric: bool
) -> tuple[Tensor, Tensor]:
    """Return where `[...]` some start leads to a different solution, and the numbers of starts.

    Of rank one and few dimensions, all candidates are tried. Else half of the starts are random,
    and the others are random and nearly orthogonal to the first solution, which fewer of them reach
    again. Where n x n systems are affordable, reflections of the first solution and other
    interpolants are tried as well: a second solution differs from the first by a matrix that A does
    not see.
    Where the design is `nongeneric` (one problem only), so are its symmetries: inputs with zeros,
    signs or few distinct values can have separate solutions that differ by the signs or the order
    of coordinates.
    """
    U, schedule, sizes = found.U, shared.tuning.schedule, shared.tuning.sizes
    d, r = U.shape[-2:]
    n, p = shared.problem.n, dimension(d, r)
    none = torch.zeros(U.shape[:-2], dtype=torch.bool, device=U.device)
    count = torch.zeros_like(none, dtype=torch.int64)
    if r == 1 and d <= sizes.sign_dimension:
        starts = sign_candidates(shared.problem)
        different = _ends(shared, found, radii, task, starts)[1].any(0)
        return different, torch.full_like(count, 2 ** (d - 1))
    if n * d * r > sizes.others_entries and not nongeneric:
        return none, count
    many, most, least = (
        max(1, schedule.others_round),
        schedule.others_most,
        schedule.agreeing_others,
    )
    local = many // 2
    if nongeneric:
        least = 3 * least
    elif n >= dimension(d, min(2 * r, d)):
        # Rows in general position determine every matrix of rank r, because A does not vanish on
        # matrices of rank 2r; only the structure of a design can have two solutions.
        many, least = schedule.determined_others, schedule.agreeing_determined_others
        local = many
    if not sizes.is_overhead(n, d, r, p):
        if n <= sizes.kernel_samples and n < dimension(d, min(2 * r, d)) and not nongeneric:
            return _reflected_others(shared, found, task, radii)
        many = most = schedule.large_others
        local = 0
    different, reached, used = none, count.clone(), count
    together = max(1, _ENTRIES // max(n * d * r, (d * r) ** 2) // max(1, none.numel()))
    where: Tensor | None = None  # the problems that are left of a batch
    for round in _rounds(shared, U, task, many, most, local, nongeneric=nongeneric):
        part = (shared, found, radii, round.starts)
        if where is not None:
            part = _select(shared, found, radii, round.starts, where)
        ends = [_ends(*part[:3], task, starts) for starts in part[3].split(together)]
        again, elsewhere = (torch.cat(parts) for parts in zip(*ends, strict=True))
        index = ... if where is None else where
        different[index] |= elsewhere.any(0)
        # The first ones are not independent: they are made from the first solution.
        reached[index] += (again | elsewhere)[-round.independent :].sum(0)
        used[index] += len(round.starts)
        open = ~different & (reached < least)  # a problem ends as it would alone
        if not bool(open.any()) or task.history.budget.spent:
            break
        where = open.nonzero()[:, 0] if open.ndim else None
    return different, used


def _reflected_others(
    shared: Shared, found: Candidates, task: Task, radii: Radii
) -> tuple[Tensor, Tensor]:
    """Return the same as `find_second_solution`, by reflections from independent starts.

    Descents from random starts rarely reach any solution of such problems. A problem ends when
    enough starts have reached the first solution, or after a few rounds.
    """
    U, tuning, schedule = found.U, shared.tuning, shared.tuning.schedule
    large = dimension(*U.shape[-2:]) > tuning.sizes.dense_unknowns
    different = torch.zeros(U.shape[:-2], dtype=torch.bool, device=U.device)
    used = torch.zeros_like(different, dtype=torch.int64)
    reached, where = used.clone(), None
    for round in range(1 if large else schedule.reflected_others):
        part = (shared, found, radii)
        if where is not None:
            part = shared.select(where), found.select(where), radii.select(where)
        starts = reflected_starts(
            part[0].problem,
            tuning,
            found.rank,
            schedule.agreeing_reflected,
            task,
            _ROUND + round,
            schedule.reflections << min(round, schedule.reflection_doublings),
            first=False,
        )
        again, elsewhere = _ends(*part, task, starts)
        index = ... if where is None else where
        different[index] |= elsewhere.any(0)
        reached[index] += again.sum(0)
        used[index] += len(starts)
        open = ~different & (reached < schedule.agreeing_reflected)
        if not bool(open.any()) or task.history.budget.spent:
            break
        where = open.nonzero()[:, 0] if open.ndim else None
    return different, used


class Round(NamedTuple):
    """Starts that run together."""

    starts: Tensor  # [S, ..., d, r]
    independent: int  # so many at the end of them do not depend on the first solution


def _select(
    shared: Shared, found: Candidates, radii: Radii, starts: Tensor, where: Tensor
) -> tuple[Shared, Candidates, Radii, Tensor]:
    """Return the problems of a batch at these indices, and their starts."""
    return shared.select(where), found.select(where), radii.select(where), starts[:, where]


class Radii(NamedTuple):
    """Distances of matrices from the first solution UU', relative to its norm."""

    near: Tensor  # [...]  no other solution is nearer than this; 0 if unknown
    apart: Tensor  # [...]  solutions that are farther count as different

    def select(self, index: Tensor) -> Radii:
        """Return those of the problems of a batch at these indices."""
        return Radii(self.near[index], self.apart[index])


def _rounds(
    shared: Shared,
    U: Tensor,
    task: Task,
    many: int,
    most: int,
    local: int,
    *,
    nongeneric: bool,
) -> Iterator[Round]:
    """Yield rounds of starts.

    The first round holds symmetric copies as well, reflections unless it is the only one, and so
    many `local` starts. There are `most` independent starts in all, `many` in the first round and
    up to four times as many in each of the next ones.
    """
    d, r = U.shape[-2:]
    size = torch.linalg.matrix_norm(U)[..., None, None]
    W = torch.linalg.qr(U).Q
    first = []
    if nongeneric:
        first.append(_symmetric_copies(shared, U, task, shared.tuning.schedule.symmetric_others))
    if many < most and shared.forms_kernel:
        first.append(_reflections(shared, U))
    if local and shared.problem.n <= shared.tuning.sizes.kernel_samples:
        first.append(_other_interpolants(shared, U, task.seed, local))
    count, round = 0, 0
    while count < most:
        step = min(many << min(round, 2), most - count)
        noise = common_noise(task.seed, _ROUND + round, U, step, d, r) / math.sqrt(d * r)
        aside, random = noise[: step // 2], noise[step // 2 :]
        aside = aside - _ASIDE * W @ (W.mT @ aside)
        aside = aside / torch.linalg.matrix_norm(aside)[..., None, None]
        # A second solution is often longer than the first, which is the one found first.
        lengths = size.new_tensor(_LENGTHS).repeat(step)[:step].reshape(-1, *(1,) * U.ndim)
        both = torch.cat([aside.expand(-1, *U.shape), random.expand(-1, *U.shape)])
        starts = torch.cat([*first, size * lengths * both])
        yield Round(starts, step)
        count, round, first = count + step, round + 1, []


def _ends(
    shared: Shared, found: Candidates, radii: Radii, task: Task, starts: Tensor
) -> tuple[Tensor, Tensor]:
    """Which starts `[S, ..., d, r]` end at U again, and which at another solution, `[S, ...]`."""
    problem, U, schedule = shared.problem, found.U, shared.tuning.schedule
    steps, patience, rate = schedule.others_steps, schedule.others_patience, schedule.others_rate
    size = (U.mT @ U).square().sum((-2, -1))
    near = radii.near.square() * size
    if shared.is_small(found.rank):
        ending = Ending(steps=steps, patience=patience, rate=rate, rounding=3)
        known = Known(U, near.sqrt())
        V, residual = run_small(problem, starts, ending, task.history, known)
    else:
        dense = shared.is_dense(found.rank)
        method = method_for(problem, found.rank, dense=dense)
        ends = [at_rounding(), stationary(), stagnated(patience, rate)]
        steps = steps if dense else 3 * steps
        state = task.history.run(method, method.start(starts), ends, steps=steps)
        V, residual = state.U, state.residual
    # ||VV' - UU'||^2, to an accuracy of eps ||UU'||^2
    away = (V.mT @ V).square().sum((-2, -1)) + size - 2 * (U.mT @ V).square().sum((-2, -1))
    reproduced, back = residual <= task.tolerance, away <= near
    elsewhere = reproduced & ~back & (away > radii.apart.square() * size)
    return (reproduced | back) & ~elsewhere, elsewhere


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
    lengths are from a tenth to four times that of Q.
    """
    operator, (d, r) = shared.problem.operator, U.shape[-2:]
    G = symmetric_part(common_noise(seed, _ROUND - 1, U, many, d, d))
    K = operator.gram().square()
    ridge = 1e-10 * K.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
    K = K + torch.diag_embed(ridge.expand(K.shape[:-1]))
    seen = operator.apply_kernel(G).movedim(0, -1)  # [..., n, many]
    seen = torch.cholesky_solve(seen, torch.linalg.cholesky(K)).movedim(-1, 0)
    H = G - operator.adjoint_kernel(seen)
    Q = U @ U.mT
    lengths = torch.tensor([1.0, 0.1, 2.0, 0.3, 4.0, 0.5], dtype=U.dtype, device=U.device)
    lengths = lengths.repeat(many)[:many].reshape(-1, *(1,) * (H.ndim - 1))
    ratio = norm(Q, (-2, -1)) / norm(H, (-2, -1)).clamp_min(1e-300)
    return positive_part(Q + lengths * ratio[..., None, None] * H, r)


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
