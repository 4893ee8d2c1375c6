"""A positive definite combination of the matrices of measurements, if there is one.

If `A*(w)` is positive definite, then `<w, A(Q)> = <A*(w), Q> > 0` for every positive semidefinite
Q but zero: no such Q has measurements zero, and `A(Q)` bounds the size of Q. If there is no such w,
some Q has measurements zero (a theorem of the alternative).
"""

from __future__ import annotations

import torch
from torch import Tensor

from posquad.core.symmetric import svec, symmetric_matrix
from posquad.problems.operator import Measurements

# Entries n D of the system in which it is sought: its decomposition takes about a second.
_COMBINED = 2**19
# Share of the largest singular value up to which others are rounding.
_INDEPENDENT = 1e-13
# Projections, the share of the mean to which they raise eigenvalues, and the ratio of eigenvalues
# at which the search ends: those of the search for a dual matrix in recovery, with more steps.
_COMBINATIONS = 100
_RAISED_TO = 0.6
_CLEARLY_POSITIVE = 1e-2


def positive_combination(operator: Measurements) -> tuple[Tensor, Tensor] | None:
    """Return w and the positive definite matrix `A*(w)`, if alternating projections find one.

    They go between the combinations of the A_i and the matrices whose eigenvalues are at least a
    share of their mean.

    >>> from posquad.problems.measurements import Dense
    >>> A = torch.diag_embed(torch.tensor([[1.0, -1.0], [0.0, 3.0]], dtype=torch.float64))
    >>> w, M = positive_combination(Dense(A))
    >>> bool((w > 0).all()), torch.allclose(M, (w[:, None, None] * A).sum(0))
    (True, True)
    """
    d, D = operator.d, operator.d * (operator.d + 1) // 2
    if operator.n * D > _COMBINED:
        return _from_traces(operator)
    norms = torch.where(operator.norms > 0, operator.norms, 1.0)
    system = operator.system / norms[..., None]
    left, s, basis = torch.linalg.svd(system, full_matrices=False)
    # Rows have length one, unless they are what other terms leave of such rows.
    seen = s > _INDEPENDENT * s[..., :1].clamp_min(1.0)
    basis = torch.where(seen[..., None], basis, 0.0)
    M = torch.eye(d, dtype=system.dtype, device=system.device).expand(*system.shape[:-2], d, d)
    for _ in range(_COMBINATIONS):
        c = basis @ svec(M)[..., None]
        values, vectors = torch.linalg.eigh(symmetric_matrix((basis.mT @ c)[..., 0], d))
        if bool((values[..., 0] > _CLEARLY_POSITIVE * values[..., -1]).all()):
            w = (left @ (c / torch.where(seen, s, torch.inf)[..., None]))[..., 0] / norms
            return w, operator.adjoint_kernel(w)
        mean = values.mean(-1, keepdim=True)
        raised = torch.maximum(values, _RAISED_TO * torch.where(mean > 0, mean, 1.0))
        M = (vectors * raised[..., None, :]) @ vectors.mT
    return None


def _from_traces(operator: Measurements) -> tuple[Tensor, Tensor] | None:
    """Return `w = A(I)` and `A*(w)`, if that is clearly positive definite; no system is formed."""
    like = operator.adjoint_kernel(torch.zeros_like(operator.norms))
    w = operator.apply_kernel(torch.eye(operator.d).to(like).expand_as(like))
    M = operator.adjoint_kernel(w)
    values = torch.linalg.eigvalsh(M)
    return (w, M) if bool((values[..., 0] > _CLEARLY_POSITIVE * values[..., -1]).all()) else None
