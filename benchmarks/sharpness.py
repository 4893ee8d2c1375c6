"""How sharp the local guarantees are, beside the paper's; how the certified sample size grows.

    python benchmarks/sharpness.py [trials, default 16]

Proved: the basin radius, rate and step of Theorems A and B at each solution. Measured: the shares
of moment initializers, and of points some descent steps later, that lie inside; observed rates.
"""

from __future__ import annotations

import sys

import numpy as np

from posquad.experiments.exp8.sharpness import compare_starts, fit_growth
from posquad.geometry import dimension

RATIOS = {(10, 2): [2.0**k for k in range(1, 10)], (20, 2): [2.0**k for k in range(1, 9)],
          (40, 3): [2.0**k for k in range(1, 9)]}  # fmt: skip
STEPS = (0, 10, 30, 100, 300)


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    needed: dict[int, list[float]] = {k: [] for k in range(len(STEPS))}
    for (d, r), ratios in RATIOS.items():
        (result,) = compare_starts(d, r, ratios, ["moment"], trials=trials, iterations=STEPS)
        print(f"\nd = {d}, r = {r}: paper's radius {result.paper_radius:.4f}, rate "
              f"{result.paper_rate:.3f}, step {result.paper_step:.1e}, "
              f"n {result.paper_sample_size:.2e}")  # fmt: skip
        print(" n/p      n  radius   rate  seen/rate     step  step/limit   inside after "
              + ", ".join(map(str, STEPS)) + " steps (paper's basin at the last)")  # fmt: skip
        for i, n in enumerate(result.n):
            seen = np.nanmedian(result.observed_rate[i] / result.rate[i])
            inside = "  ".join(f"{share:4.0%}" for share in result.inside[i])
            print(f"{result.ratio[i]:4.0f} {n:6d} {np.median(result.radius[i]):7.3f} "
                  f"{np.median(result.rate[i]):6.3f} {seen:10.2f} {np.median(result.step[i]):8.1e} "
                  f"{np.median(result.step[i] / result.step_limit[i]):11.2f}   {inside} "
                  f"({result.inside_paper[i, -1]:4.0%})", flush=True)  # fmt: skip
        for k, n in enumerate(result.sample_size()):
            needed[k].append(float(n))
    sizes = [dimension(d, r) for d, r in RATIOS]
    print("\nleast n (powers of two times p) from which on 95% are inside")
    for k, values in needed.items():
        fit = ""
        if np.isfinite(values).all():
            growth = fit_growth(sizes, values)
            fit = f"n ~ p^{growth.exponent:.2f} [{growth.low:.2f}, {growth.high:.2f}]"
        print(f"after {STEPS[k]:3d} steps: {values}  {fit}")


if __name__ == "__main__":
    main()
