"""One loss with its gradient against the two matrix products it contains, in the same run.

    python benchmarks/gradient_pass.py

The two products alone read X twice from memory; posquad reads it once, block by block. The claim
under test is that everything around the products costs at most 30 per cent of them.
"""

from __future__ import annotations

import statistics

import torch

from posquad import LeastSquares, RankOne
from timing import alternate, machine, median_ratio

SIZES = [(20_000, 500, 5), (20_000, 500, 1), (100_000, 50, 3), (5_000, 2_000, 10)]
LIMIT = 1.3


def main() -> None:
    print(machine())
    print(f"{'n':>7} {'d':>5} {'r':>3} {'products ms':>12} {'posquad ms':>11} {'ratio':>6}")
    for n, d, r in SIZES:
        rng = torch.Generator().manual_seed(n + d + r)
        X = torch.randn(n, d, generator=rng, dtype=torch.float64)
        U = torch.randn(d, r, generator=rng, dtype=torch.float64)
        objective = LeastSquares(RankOne(X), (X @ U).square().sum(-1))
        seconds = alternate(
            {
                "products": lambda X=X, U=U: X.mT @ (X @ U),
                "posquad": lambda o=objective, U=U: o.loss_and_gradient(U),
            },
            rounds=21,
        )
        ratio = median_ratio(seconds["posquad"], seconds["products"])
        products, posquad = (1e3 * statistics.median(seconds[k]) for k in ("products", "posquad"))
        verdict = "" if (n, d, r) != SIZES[0] else f"  required <= {LIMIT}"
        print(f"{n:7d} {d:5d} {r:3d} {products:12.2f} {posquad:11.2f} {ratio:6.2f}{verdict}")


if __name__ == "__main__":
    main()
