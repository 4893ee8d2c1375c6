"""Up to which sizes `recover` forms something: a group of `posquad.recovery.tuning`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from posquad.problems.measurements import Measurements, RankOne
from posquad.recovery.constants import Constants


@dataclass(frozen=True)
class Sizes(Constants):
    """Memory and cost: up to which sizes something is formed. They do not change the answer."""

    kernel_samples: int = 1500
    """Samples up to which n x n systems are solved at once. Measured: n^3/3 operations take 0.2 s
    there."""

    path_unknowns: int = 4000
    """Largest min(n, d(d+1)/2) up to which the interior point method solves problems of rank d that
    projected gradient steps leave open. Derived: 128 MB for one matrix of a step."""

    start_unknowns: int = 500
    """Largest k(k+1)/2 for which a k x k matrix is fitted to make the first start; further columns
    get the least size. Derived: k = 31, and a system of 500 unknowns takes milliseconds."""

    sample_rank: int = 1500
    """Largest min(n, d(d+1)/2) for which the rank of the sample matrices is computed. Measured: as
    `kernel_samples`; above, only repeated rows are counted."""

    sample_rank_operations: int = 2**31
    """Largest n min(n, d(d+1)/2)^2 for which the rank of the sample matrices is computed. Measured:
    as many multiplications take about a second."""

    direct_entries: int = 2**22
    """Entries up to which the n x d(d+1)/2 system of a problem is formed. Derived: 32 MB."""

    overhead_unknowns: int = 60
    """Unknowns p up to which the arithmetic of a dense step costs less than its calls. Measured by
    `benchmarks/tuning.py`."""

    overhead_entries: int = 2**17
    """Entries n d r of a Jacobian up to which the arithmetic of a dense step costs less than its
    calls. Measured by `benchmarks/tuning.py`."""

    dense_unknowns: int = 250
    """Unknowns p up to which a dense step costs less than reweighting. Measured by
    `benchmarks/tuning.py`."""

    spectrum_unknowns: int = 500
    """Unknowns p up to which the effective spectrum is computed in full. Measured: 0.1 s there."""

    spectrum_operations: int = 2**28
    """Largest n d r p for which the effective spectrum is computed in full; its p Hessian products
    take twice as many multiplications. Measured: above, the two ends of the spectrum alone cost a
    tenth of that."""

    polish_unknowns: int = 1000
    """Unknowns p up to which the answer is refined by dense steps. Derived: p x p takes 8 MB."""

    polish_entries: int = 2**23
    """Entries n d r of a Jacobian up to which the answer is refined by dense steps. Derived: as
    many numbers take 64 MB."""

    sign_dimension: int = 12
    """Largest d for which all 2^(d-1) candidates of a second solution of rank one are tried.
    Derived: n 2^(d-1) < 2^18 predictions, since n < d(d+1)/2."""

    exclusion_operations: int = 2**28
    """Largest n^2 d(d+1)/2 for which a dual matrix is sought that excludes a second solution.
    Measured: about 0.1 s."""

    batch_entries: int = 2**18
    """Entries n d r of the problems that are solved together on a CPU. Derived: 2 MB, the cache."""

    batch_responses: int = 2**20
    """Responses of convex problems with one design that are solved together on a CPU. Measured: the
    time per problem is least for 16,000 problems with n = 64."""

    batch_entries_elsewhere: int = 2**27
    """Entries n d r of the problems that are solved together on an accelerator. Derived: 1 GB, a
    small share of its memory."""

    batch_problems: int = 2**14
    """Most problems that are solved together. Measured on an H200: cuSOLVER fails above 65,535
    matrices, and its workspace takes half a megabyte for each."""

    batch_problems_most: int = 2**16 - 1
    """Most convex problems with one design that are solved together on a GPU, if half of its free
    memory is enough for the workspace of cuSOLVER. Measured on an H200: a million problems of d = 3
    take half the time that they take in groups of `batch_problems`."""

    newton_unknowns: int = 136
    """Largest d(d+1)/2 for which convex problems of a batch are solved together by Newton's method.
    Derived: d = 16, where the matrices of one problem fill a cache of 256 kB."""

    thread_entries: int = 2**20
    """Entries of X of one problem up to which one thread is used. Measured: several are no faster,
    and 7 to 50 times as slow where the cores are busy."""

    host_entries: int = 2**14
    """Entries of X of one problem up to which it is solved on the CPU, wherever X is. Derived: its
    many small steps cost their calls, which are slower on an accelerator."""

    view_entries: int = 2**22
    """Entries of X above which working coordinates are a view instead of a copy. Derived: 32 MB."""

    single_least: int = 2**20
    """Entries of X of one problem from which the first steps and the curvature are computed in
    single precision. A choice: below, a pass over X costs little more than its calls."""

    single_most: int = 2**24
    """Entries of the copy of X in single precision up to which the first steps and the curvature
    are computed with it. Derived: the copy takes 64 MB."""

    matrix_entries: int = 2**20
    """Entries n d^2 of symmetric matrices up to which they replace rows with other terms. A choice:
    8 MB, where a product with them costs as much as its calls."""

    matrix_entries_most: int = 2**24
    """The same where n x n systems are solved (`kernel_samples`). Derived: 128 MB."""

    part_entries: int = 2**20
    """Entries of X worked on at a time where a temporary copy is needed. Derived: 8 MB."""

    small_operations: int = 2**18
    """Largest n d^2 r^2, the multiplications that form J'J, for which a start is run on NumPy
    arrays. Derived: up to here BLAS uses one thread."""

    def has_single(self, operator: Measurements) -> bool:
        """Whether some products with the inputs of one problem are made in single precision."""
        if not isinstance(operator, RankOne):
            return False
        if operator.batch_shape or operator.dtype != torch.float64:
            return False
        large = operator.n * operator.d >= self.single_least
        return large and operator.single_entries <= self.single_most

    def is_overhead(self, n: int, d: int, rank: int, unknowns: int) -> bool:
        """Whether a dense step costs only its calls."""
        return unknowns <= self.overhead_unknowns and n * d * rank <= self.overhead_entries

    def has_dense_steps(self, n: int, d: int, rank: int, unknowns: int) -> bool:
        """Whether dense steps are affordable."""
        return n * d * rank <= self.polish_entries and unknowns <= self.polish_unknowns

    def most_problems(self, device: torch.device) -> int:
        """Convex problems with one design that are solved together at most."""
        if device.type != "cuda":
            return self.batch_problems
        affordable = torch.cuda.mem_get_info(device)[0] // 2**20  # half a megabyte each, of half
        return max(self.batch_problems, min(self.batch_problems_most, affordable))

    def is_matrices(self, problem: Any) -> bool:
        """Whether a problem with other terms is worked on as one of symmetric matrices."""
        n, d = problem.n, problem.d
        few = n <= self.kernel_samples and n * d**2 <= self.matrix_entries_most
        return few or n * d**2 <= self.matrix_entries

    def is_small(self, n: int, d: int, rank: int, unknowns: int) -> bool:
        """Whether a dense step costs only its calls even if they are those of NumPy."""
        small = n * (d * rank) ** 2 <= self.small_operations
        return small and self.is_overhead(n, d, rank, unknowns)
