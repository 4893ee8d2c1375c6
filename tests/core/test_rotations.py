"""Eigenvalues of many 3 x 3 matrices, against LAPACK and closed forms."""

from __future__ import annotations

import pytest
import torch

from posquad.core import rotations
from posquad.core.rotations import rotated_eigen, symmetric_eigen
from support import ratio


def matrices(kind: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    G = torch.randn(50, 3, 3, generator=generator, dtype=torch.float64)
    basis = torch.linalg.qr(G)[0]
    spectra = {
        "generic": None,
        "double": (1.0, 1.0, 2.0),
        "nearly double": (1.0, 1.0 + 1e-12, 2.0),
        "rank one": (0.0, 0.0, 1.0),
        "indefinite": (-2.0, 0.0, 1e-9),
        "large": (1e300, 2e300, 3e300),
        "small": (1e-300, 2e-300, 3e-300),
    }
    values = spectra[kind]
    S = G if values is None else basis * torch.tensor(values, dtype=torch.float64) @ basis.mT
    return (S + S.mT) / 2


KINDS = ("generic", "double", "nearly double", "rank one", "indefinite", "large", "small")


@pytest.mark.parametrize("kind", KINDS)
def test_rotations_agree_with_lapack(kind):
    """Eigenvalues to rounding of the largest, and orthogonal eigenvectors that diagonalise."""
    S = matrices(kind)
    values, vectors = rotated_eigen(S)
    size = float(S.abs().amax())
    expected = torch.linalg.eigvalsh(S / size)
    assert bool((values.diff(dim=-1) >= 0).all())
    assert ratio((values / size - expected).abs().amax(), 1.0, 3) < 60
    assert ratio((vectors.mT @ vectors - torch.eye(3)).abs().amax(), 1.0, 3) < 60
    again = vectors * (values / size)[:, None, :] @ vectors.mT
    assert ratio((again - S / size).abs().amax(), 1.0, 3) < 60


def test_diagonal_and_zero_matrices_are_exact():
    S = torch.diag_embed(torch.tensor([[3.0, -1.0, 2.0], [0.0, 0.0, 0.0]], dtype=torch.float64))
    values, vectors = rotated_eigen(S)
    assert values.tolist() == [[-1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]
    assert vectors[0].abs().argmax(0).tolist() == [1, 2, 0]


def test_rotations_serve_large_batches_only(monkeypatch):
    """Few matrices, other sizes and single precision go to LAPACK."""
    S = torch.eye(3, dtype=torch.float64).expand(4, 3, 3)
    monkeypatch.setattr(rotations, "_LEAST", 4)
    monkeypatch.setattr(rotations, "rotated_eigen", lambda S: "rotated")
    assert symmetric_eigen(S) == "rotated"
    for other in (S[:3], S.float(), S[:, :2, :2], S[0]):
        assert symmetric_eigen(other)[0].shape == other.shape[:-1]
