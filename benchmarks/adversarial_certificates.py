"""At least 10,000 attempts to obtain a false certificate; exits 1 if one succeeds.

    python benchmarks/adversarial_certificates.py [cases a kind, default 700]

The attempts are those of `tests/adversarial.py`: perturbed and noisy solutions, wrong ranks, too
few or duplicated measurements, inputs in a subspace, ill-conditioned answers, tangent directions
that are hardly measured, data with two interpolants, extreme scales, and saved certificates with
flipped bits, changed numbers and dual vectors that are off.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from adversarial import KINDS, attempt, attempt_forgery


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 700
    begin = time.perf_counter()
    total, false = 0, []
    print("kind               attempts  globally proved  proved in full  false")
    for kind in KINDS:
        lies, unique, proved = [], 0, 0
        for seed in range(count):
            found, certificate = attempt(kind, seed)
            lies += found
            if certificate is not None:
                unique += certificate.global_uniqueness.proved
                proved += certificate.proved
        print(f"{kind:18s} {count:8d} {unique:16d} {proved:15d} {len(lies):6d}", flush=True)
        false += lies
        total += count
    forgeries = 0
    lies = []
    for seed in range(max(1, count // 7)):
        found, tried = attempt_forgery(seed)
        lies += found
        forgeries += tried
    print(f"{'forgeries':18s} {forgeries:8d} {'':32s} {len(lies):6d}")
    false += lies
    print(f"{total + forgeries} attempts, {len(false)} false, {time.perf_counter() - begin:.0f} s")
    for lie in false[:20]:
        print(lie)
    sys.exit(bool(false))


if __name__ == "__main__":
    main()
