"""Both ends of the effective spectrum at (d, r, n) = (1000, 5, 4p), matrix-free.

    python benchmarks/extreme_curvature.py

Required: relative residual below 1e-8, under 60 s on 2 cores, under 1 GB beyond X. Memory is the
peak resident set of the process over what was resident when the computation began (Linux).
"""

from __future__ import annotations

import resource
import time
from pathlib import Path

import torch

from posquad import LeastSquares, RankOne, effective_spectrum
from posquad.geometry import dimension
from timing import machine

D, R, RATIO = 1000, 5, 4


def resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    p = dimension(D, R)
    print(machine())
    print(f"d = {D}, r = {R}, p = {p}, n = {RATIO * p}")
    for kappa in (1.0, 20.0):
        rng = torch.Generator().manual_seed(0)
        X = torch.randn(RATIO * p, D, generator=rng, dtype=torch.float64)
        W = torch.linalg.qr(torch.randn(D, R, generator=rng, dtype=torch.float64)).Q
        U = W * torch.linspace(1, kappa**-1, R, dtype=torch.float64).sqrt()
        objective = LeastSquares(RankOne(X), (X @ U).square().sum(-1))
        before = resident_megabytes()
        for end in ("smallest", "largest"):
            begin = time.perf_counter()
            spectrum = effective_spectrum(objective, U, which=end)
            seconds = time.perf_counter() - begin
            residual = float(spectrum.residuals[0] / spectrum.values[0])
            print(
                f"kappa {kappa:4.0f} {end:>8}: {float(spectrum.values[0]):.9f}  "
                f"relative residual {residual:.1e}  {spectrum.products} products  {seconds:.1f} s"
            )
        print(f"           peak memory {peak_megabytes() - before:.0f} MB beyond X and the process")


if __name__ == "__main__":
    main()
