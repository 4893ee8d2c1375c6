"""Symmetric matrices as vectors: maps between them, against the matrices themselves."""

from __future__ import annotations

import pytest
import torch

from posquad.core.symmetric import svec, symmetric_congruence
from support import normal, ratio


@pytest.mark.parametrize("k", [1, 2, 5])
def test_congruence_is_that_of_the_matrices(k):
    rng = torch.Generator().manual_seed(k)
    G, S = normal(rng, 3, k, k), normal(rng, 3, k, k)
    S = S + S.mT
    found = (symmetric_congruence(G) @ svec(S)[..., None])[..., 0]
    scale = float(torch.linalg.matrix_norm(G).square().max() * torch.linalg.matrix_norm(S).max())
    assert ratio(found - svec(G @ S @ G.mT), scale, k) < 60
