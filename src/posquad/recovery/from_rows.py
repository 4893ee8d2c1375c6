"""`recover` for a source of rows: in memory if it is small, else from moments or by passes."""

from __future__ import annotations

import os
from dataclasses import replace

import torch
from torch import Tensor

from posquad.core.arguments import require_boolean
from posquad.core.arrays import Array
from posquad.core.errors import DomainError
from posquad.problems.rows.source import Rows
from posquad.recovery.in_memory import recover_in_memory
from posquad.recovery.losses import chosen_loss
from posquad.recovery.options import Options
from posquad.recovery.result import Recovery
from posquad.recovery.streams.by_moments import recover_by_moments
from posquad.recovery.streams.checkpoint import Checkpoint, admitted_checkpoint, open_writer
from posquad.recovery.streams.entry import (
    MEMORY_ENTRIES,
    MOMENT_MOST,
    admitted_responses,
    moments_pay,
    own_responses,
    recover_by_passes,
    recover_collected,
)
from posquad.recovery.streams.gather import kept_rows


def recover_from_rows(
    X: Rows,
    y: Array | None,
    weights: Array | None,
    options: Options,
    checkpoint: Checkpoint | str | os.PathLike[str] | None,
) -> Recovery:
    """Return the answer to the rows of a source, which are read into memory if they are few."""
    fact = options.keywords()
    fact |= {"progress": None, "y": "given" if y is not None else None}
    X.check_same(fact=fact)  # before one of several processes refuses an argument alone
    require_boolean(certify=options.certify, diagnose=options.diagnose)
    y, weights = own_responses(X, y, weights)
    if not X.is_shared:  # before the rows of a small one are read
        checkpoint = admitted_checkpoint(checkpoint, X)
    device, X = X.device, X.to(device="cpu")  # passes over the rows are made on their device
    if _fits(X) and not X.is_shared:
        responses, w = admitted_responses(X, y, weights)
        inputs = X.read_all()
        X.require_finite(slice(0, len(inputs)), inputs)
        w = None if w is None else w.numpy()
        return recover_in_memory(inputs.numpy(), responses.numpy(), w, options)
    _require_plain(options)
    responses, w = admitted_responses(X, y, weights)
    narrow = torch.tensor(float(torch.float32 in (X.dtype, responses.dtype)))
    level = options.wanted.level(X.d, narrow=bool(X.largest(narrow)))  # the same for everyone
    progress = X.watched(options.progress)
    history = options.history(progress)

    def in_memory(X: Tensor, y: Tensor, weights: Tensor | None) -> Recovery:
        w = None if weights is None else weights.numpy()
        return recover_in_memory(X.numpy(), y.numpy(), w, replace(options, progress=progress))

    plan = {**options.wanted._asdict(), "max_steps": options.max_steps, "call": "recover"}
    writer = open_writer(checkpoint, X, responses, w, plan)
    with torch.no_grad(), X.together():
        if _fits(X):
            found = recover_collected(X, responses, w, in_memory)
        elif moments_pay(X):
            found = recover_by_moments(X, responses, w, options.wanted, level, history, writer)
        else:
            rows = X.to(device=device)
            found = recover_by_passes(rows, responses, w, level, history, in_memory, writer)
    writer.end()
    return found


def _fits(source: Rows) -> bool:
    """Tell whether a source is better read into memory: few rows, or few entries in wide ones."""
    few = source.d > MOMENT_MOST and source.size <= MEMORY_ENTRIES
    return few or source.n <= kept_rows(source.d)


def _require_plain(options: Options) -> None:
    """Refuse arguments that need all rows in memory."""
    plain = {"certify": False, "diagnose": True, "start": None}
    plain |= {"precision": "float64", "acceptance": None}
    for name, value in options.keywords(*plain).items():
        if value is not plain[name] and not (name == "precision" and value == "float64"):
            expected = f"{plain[name]!r} for a source that is not read into memory"
            got = repr(value) if isinstance(value, bool | str) else type(value).__name__
            raise DomainError(name, expected=expected, got=got)
    if chosen_loss(options.loss, options.scale) is not None:
        expected = "'least-squares' for a source that is not read into memory"
        raise DomainError("loss", expected=expected, got=repr(options.loss))
