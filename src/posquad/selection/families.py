"""Families of measurement matrices with a commutativity dial, and the size of commutators."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from posquad.core.arrays import A, like, positive_integer, tensors
from posquad.core.errors import DomainError
from posquad.core.linalg import symmetric_part
from posquad.core.ranges import tiny
from posquad.problems.measurements import Dense

__all__ = ["DialExpansion", "commutator_size", "dialed_expansion", "dialed_family"]


def dialed_family(n: int, d: int, dial: float, *, seed: int = 0) -> Tensor:
    """Measurement matrices `A_i = V_i D_i V_i'` with `V_i = exp(s K_i) V`, `[n, d, d]`.

    The dial s in [0, 1] rotates the eigenbases away from the common V: at s = 0 all matrices
    commute; at s = 1 each basis is rotated in its own direction, by its own angle of at most pi/2.
    D_i is diagonal with normal entries of mean and variance one, V is a random orthogonal matrix,
    and K_i is a random skew matrix whose spectral norm is uniform in [0, pi/2].

    >>> family = dialed_family(3, 4, 0.0)
    >>> float(commutator_size(family)) < 1e-14
    True
    """
    if not (isinstance(dial, int | float) and 0 <= dial <= 1):
        raise DomainError("dial", expected="a number in [0, 1]", got=repr(dial))
    V, spectra, K = _draw(n, d, seed)
    bases = torch.linalg.matrix_exp(dial * K) @ V
    M = (bases * spectra[:, None, :]) @ bases.mT
    return symmetric_part(M)


class DialExpansion(NamedTuple):
    """The family of a dial to first order, `A_i(s) = V (diag(D_i) + s B_i) V' + O(s^2)`."""

    V: Tensor  # [d, d]  joint eigenbasis at dial 0, in columns
    D: Tensor  # [n, d]  diagonals in this basis
    B: Tensor  # [n, d, d]  derivatives at dial 0 in this basis, with zero diagonals


def dialed_expansion(n: int, d: int, *, seed: int = 0) -> DialExpansion:
    """First-order expansion at dial 0 of the family that `dialed_family` draws from this seed.

    With `A_i(s) = exp(s K_i) V D_i V' exp(-s K_i)` the derivative is `[K_i, V D_i V']`, in the
    basis V: `(B_i)_ab = (V'K_i V)_ab (D_ib - D_ia)`. D and B are arguments of
    `first_order_selection`.

    >>> V, D, B = dialed_expansion(3, 4, seed=1)
    >>> step = V.mT @ (dialed_family(3, 4, 1e-6, seed=1) - dialed_family(3, 4, 0.0, seed=1)) @ V
    >>> bool((step / 1e-6 - B).abs().max() < 1e-4)
    True
    """
    V, spectra, K = _draw(n, d, seed)
    turned = V.mT @ K @ V
    return DialExpansion(V, spectra, turned * (spectra[:, None, :] - spectra[:, :, None]))


def _draw(n: int, d: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """V `[d, d]`, the diagonals of D_i `[n, d]` and the skew K_i `[n, d, d]` of a family."""
    n, d = positive_integer("n", n), positive_integer("d", d)
    rng = torch.Generator().manual_seed(seed)
    V = torch.linalg.qr(torch.randn(d, d, generator=rng, dtype=torch.float64)).Q
    spectra = 1 + torch.randn(n, d, generator=rng, dtype=torch.float64)
    K = torch.randn(n, d, d, generator=rng, dtype=torch.float64)
    K = K - K.mT
    size = torch.linalg.matrix_norm(K, 2).clamp_min(tiny())  # K is zero if d = 1
    angles = math.pi / 2 * torch.rand(n, generator=rng, dtype=torch.float64)
    return V, spectra, (angles / size)[:, None, None] * K


def one_family(A: Tensor) -> Dense:
    """The operator of one family `A[n, d, d]`; a batch of families raises `DomainError`."""
    operator = Dense(A)
    if operator.batch_shape:
        raise DomainError("A", expected="one family (n, d, d)", got=f"shape {tuple(A.shape)}")
    return operator


def commutator_size(A: A) -> A:
    """Root mean square over pairs of `||A_i A_j - A_j A_i||_F / (sqrt(2) ||A_i||_F ||A_j||_F)`.

    Between 0 (commuting) and 1, by the inequality of Boettcher and Wenzel; `A[..., n, d, d]` gives
    `[...]`.

    >>> X, Z = np.array([[0.0, 1.0], [1.0, 0.0]]), np.diag([1.0, -1.0])
    >>> float(commutator_size(np.array([X, Z])).round(12))
    1.0
    """
    (a,) = tensors(A=A)
    n = Dense(a).n
    if n < 2:
        raise DomainError("A", expected="at least two matrices", got=f"{n}")
    products = a[..., :, None, :, :] @ a[..., None, :, :, :]  # [..., n, n, d, d]
    norms = torch.linalg.matrix_norm(a)
    scale = norms[..., :, None] * norms[..., None, :]
    ratios = torch.linalg.matrix_norm(products - products.mT) / scale.clamp_min(tiny(a))
    i, j = torch.triu_indices(n, n, 1, device=a.device)
    return like(A, (ratios[..., i, j].square().mean(-1) / 2).sqrt())
