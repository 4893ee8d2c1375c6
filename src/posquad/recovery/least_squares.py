"""`recover` by least squares, for measurements in memory."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from posquad.core.arrays import like
from posquad.core.errors import Interrupted
from posquad.core.threads import one_torch_thread
from posquad.recovery import ranks
from posquad.recovery.acceptance import DEFAULT
from posquad.recovery.admitted import Admitted, admitted_start
from posquad.recovery.budget import History
from posquad.recovery.candidates import Task
from posquad.recovery.costs import BLOCK
from posquad.recovery.merging import farkas_of_all
from posquad.recovery.options import Options
from posquad.recovery.pipeline import Pipeline
from posquad.recovery.result import Recovery


def recover_by_least_squares(
    given: Admitted, options: Options, level: float, history: History, *, weighted: bool
) -> Recovery:
    """Return the least-squares answer, whose responses count as reproduced at the `level`.

    The weights are those of `given` if it is `weighted`. Ctrl-C raises `Interrupted` with the best
    answer so far.
    """
    operator, responses, w, _, model = given
    rank, start, n = options.rank, options.start, given.operator.n
    first = None if start is None else admitted_start(start, operator.d, responses, rank)
    task, acceptance = Task(level, options.seed, history), options.acceptance or DEFAULT
    call = Pipeline(
        task, rank, options.max_rank, options.max_starts, acceptance, first, options.diagnose
    )
    batch = given.batch
    answers = None
    try:
        with torch.no_grad(), one_torch_thread(when=operator.entries <= BLOCK):
            answers = call.answers(operator, responses, w if weighted else None)
        answers.require_range()
        found = answers.recovery(batch, model, history, n)
        if call.path and not batch:
            path = torch.tensor(call.path, dtype=torch.float64).T
            rows = (path[0].long(), path[1], path[2])
            found = replace(found, rank_path=ranks.RankPath(*(like(model, row) for row in rows)))
        if call.farkas is not None and not batch:
            z = _given_farkas(call, call.farkas, responses, w, weighted=weighted)
            found = replace(found, farkas=like(model, z))
    except KeyboardInterrupt as stop:
        if call.given is None:  # nothing has begun
            raise
        best = call.unfinished_answers() if answers is None else answers
        raise Interrupted(best.recovery(batch, model, history, n)) from stop
    return found


def _given_farkas(call: Pipeline, z: Tensor, y: Tensor, w: Tensor, *, weighted: bool) -> Tensor:
    """Return the vector that proves the bound for the responses of the user.

    Working responses are those of the user times the square root of the relative weight.
    """
    z = z.to(w.device)
    if call.merged is not None:
        return farkas_of_all(call.merged, z, y, w)
    return z * (w / w.mean()).sqrt() if weighted else z
