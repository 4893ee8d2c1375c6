"""Least squares in a factor from moments: the rows are replaced by d(d+1)/2 linear measurements.

With `q = svec(VV')`, the mean squared error of the samples is `||R q - z||^2 + c`, where `R'R` is
the matrix of fourth moments and c the error of the best symmetric matrix. Other terms of the model
are eliminated: R is then that of the part which they do not explain. R and z are the problem that
`posquad.recovery.pipeline` solves, as it solves any other.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from posquad.core.symmetric import svec, symmetric_congruence, symmetric_jacobian, symmetric_matrix
from posquad.problems.moments import ROUNDING, Moments, Terms, require_response_size
from posquad.problems.packed import Packed
from posquad.recovery.prepare import Prepared, Sums
from posquad.recovery.problem import GivenSums, Problem

# Variance of a direction, over d times the largest, that counts as none. A choice: about 450 eps,
# above the rounding with which rows enter the sums.
_SPAN = 1e-13
# Size of a coordinate, over that of the inputs, that is rounding. A choice: about 450 eps; a
# coordinate is a difference of inputs, which are rounded by eps / 2.
_RESOLVED = 1e-13
# Ratio of variances up to which coordinates stay as they are. A choice: fourth moments then differ
# by 1e4, a quarter of the digits.
_EVEN = 100.0
# Relative rounding of a double. Derived: eps / 2.
_UNIT = 2.0**-53
# Least eigenvalue of a matrix of correlations that counts, relative to its trace. A choice: 4,500
# eps, because eigenvalues are rounded by some eps of the trace, and the correlations themselves by
# more.
_PIVOT = 1e-12
# Inverse iterations for that eigenvalue. A choice: a gap of 30 times is seen in two of them.
_POWERS = 8
# Root mean square of what other terms leave of a squared coordinate of variance one, up to which
# they express it. A choice: the root of `_PIVOT`.
_EXPRESSED = 1e-6
# Error of a response, over the largest one, that counts as rounding. A choice: about 50 eps,
# because responses were rounded when they were made, in sums over the inputs.
_RESPONSES = 1e-14


class Affine(NamedTuple):
    """`f(x) = ||U'(x - m)||^2 + s'(x - m) + v` in the user's coordinates."""

    U: np.ndarray  # [d, r]
    center: np.ndarray  # [d]  m
    slope: np.ndarray  # [d]  s
    value: float  # v


class Compressed:
    """The mean squared error as a function of `V[k, r]`, minimised over the other terms.

    The coordinates `s = T'(x / unit - origin)`, `[k]`, have covariance near I. Responses are
    measured in units of `factor_unit ** 2`.
    """

    def __init__(self, moments: Moments) -> None:
        require_response_size(moments.largest)
        self.terms: Terms = moments.terms
        self.count, self.d = moments.count, moments.d
        frame, mass = moments.frame, moments.mass
        second = moments.second_moments() / mass
        within, image, hidden = _span(second, frame.T)
        self.k = within.shape[1]
        self.whole = self.k == self.d and bool(second.any())  # whether the inputs span the space
        gram, cross = moments.gram().div_(mass), moments.cross() / mass
        known = moments.reference_svec()
        if not _is_identity(within):
            lift = torch.block_diag(within, torch.eye(moments.layout.k - self.d).double())
            turn = symmetric_congruence(lift)
            gram, cross = turn.T @ gram @ turn, turn.T @ cross
            back = torch.block_diag(image, torch.eye(moments.layout.k - self.d).double())
            known = symmetric_congruence(back.T) @ known
        self.unseen = torch.linalg.qr(frame.T @ hidden)[0].T  # [d - k, d]  without samples
        T = frame.T @ within
        self.T = T - self.unseen.T @ (self.unseen @ T)  # [d, k]
        self.back = torch.linalg.solve(frame.T.T, image).T  # [k, d]  x / unit - origin = back' s
        self.unit, self.origin = frame.unit, frame.origin
        squares, deviations = moments.response_squares
        mean_square = squares / mass
        self.factor_unit = 2.0 ** round(math.log2(mean_square) / 4) if mean_square > 0 else 1.0
        scale = self.factor_unit**2
        self.spread = (squares if self.terms == "none" else deviations) / mass / scale**2
        self.squares = mean_square / scale**2
        self.rounding = (_RESPONSES * moments.largest / scale) ** 2
        quadratic, others = _positions(self.k, self.terms, gram.shape[0])
        self._eliminate(gram, cross / scale, known / scale, quadratic, others)
        squared_error = moments.squared_error / mass / scale**2
        self._factorize(squared_error)
        self._reference_error = math.sqrt(squared_error)
        # Rounding of the loss, which is a difference of such numbers.
        self.doubt = ROUNDING * squared_error + moments.doubt / mass / scale**2
        self._axes = self.back.T  # [d, k]  the inputs as functions of the coordinates
        if self.terms == "constant":  # and the linear function that is nearest to the constant
            self._axes = torch.cat([self._axes, (within.T @ moments.mean())[None]])

    def _eliminate(
        self, gram: Tensor, cross: Tensor, known: Tensor, quadratic: Tensor, others: Tensor
    ) -> None:
        """Remove the other terms, whose best coefficients are linear in those of Q."""
        self._known, self._known_others = known[quadratic], known[others]
        lengths = gram.diagonal().clamp_min(0).sqrt()
        self._lengths, self._other_lengths = lengths[quadratic], lengths[others]
        M = gram[quadratic][:, quadratic]
        b, self._gain = cross[quadratic], 0.0
        self.others = gram[others][:, others]  # Z'WZ / sum w of the other terms, in svec scale
        self._explained = gram.new_zeros(len(others), len(quadratic))
        self._others_fit = gram.new_zeros(len(others))
        if len(others):
            pseudo = torch.linalg.pinv(self.others, hermitian=True, rtol=_PIVOT)
            self._explained = pseudo @ gram[others][:, quadratic]
            self._others_fit = pseudo @ cross[others]
            M = M - gram[quadratic][:, others] @ self._explained
            b = b - self._explained.T @ cross[others]
            self._gain = float(cross[others] @ self._others_fit)
        self._M, self._b = M, b

    def _rounding_of_products(self) -> Tensor:
        """Return the mean square up to which products of coordinates are rounding, `[pairs]`.

        A coordinate `s_i` is known up to `e_i`, the rounding of x times the length of its column of
        T, and `s_i s_j` up to `e_i |s_j| + e_j |s_i|`.
        """
        i, j = torch.triu_indices(self.k, self.k)
        sizes = self._lengths[i == j]  # root mean fourth powers of the coordinates, squared
        noise = (_RESOLVED * torch.linalg.vector_norm(self.T, dim=0)).square()
        return 2 * (noise[i] * sizes[j] + noise[j] * sizes[i])

    def _factorize(self, squared_error: float) -> None:
        """Set R, z and c; R has fewer rows than columns if the samples leave directions free."""
        M, b = self._M, self._b
        self._product_rounding = self._rounding_of_products()
        known = M.diagonal() > self._product_rounding
        both = known & known[:, None]
        scale = torch.where(known, M.diagonal(), 1.0).sqrt()
        lower, failed = torch.linalg.cholesky_ex(torch.where(both, M / scale / scale[:, None], 0.0))
        pivots = lower.diagonal().square()
        # Large pivots may hide small eigenvalues.
        sound = len(M) > 0 and not int(failed) and float(pivots.min()) > _PIVOT
        self.regular = sound and _least_eigenvalue(lower) > _PIVOT * len(M)
        # Whether only one symmetric matrix fits best. What is left of a product that other terms
        # explain is rounding of the whole product.
        left = pivots * scale.square() > _PIVOT * self._lengths.square()
        self.determined = self.regular and bool(left.all())
        if self.regular:
            R = lower.mul_(scale[:, None]).T
            fit = torch.linalg.solve_triangular(R.T, b[:, None], upper=False)
            self._change = torch.linalg.solve_triangular(R, fit, upper=True)[:, 0]
            fit = fit[:, 0]
        else:
            scale = torch.where(known, self._lengths, 1.0)
            correlation = torch.where(both, M / scale / scale[:, None], 0.0)
            values, vectors = torch.linalg.eigh(correlation)
            kept = _visible(values)
            root = values[kept].sqrt()
            R = (vectors[:, kept] * root * scale[:, None]).T
            fit = (vectors[:, kept].T @ (b / scale)) / root
            self._change = vectors[:, kept] @ (fit / root) / scale
        self.independent = len(R) if self.determined else min(len(R), int(left.sum()))
        self.least = max(squared_error - self._gain - float(fit @ fit), 0.0)
        # The mean over the rows of R is that over the samples.
        root = math.sqrt(max(1, len(R)))
        self.y = root * (R @ self._known + fit)
        triangular, bounded = self.regular, self.terms == "none"
        R = R.mT.contiguous().mul_(root).mT  # by columns, as `Packed` reads it
        self.operator = Packed(R, triangular=triangular, bounded=bounded)
        del self._M

    @cached_property
    def prepared(self) -> Prepared:
        """The problem in working coordinates, with the way back."""
        rows, most = max(1, len(self.y)), self.spread
        # What a matrix can change of the size to which residuals are relative.
        changes = max(most - self.least, torch.finfo(torch.float64).eps ** 2 * most)
        size = torch.tensor(math.sqrt(rows * changes), dtype=torch.float64)
        unit = torch.tensor(self.factor_unit, dtype=torch.float64)
        span = self.d if self.whole else min(self.k, self.d - 1)
        return Prepared(
            problem=Problem(self.operator, self.y, spread=size),
            given=GivenSums(
                self.operator,
                None,
                self.y,
                unit,
                size,
                back=self.back * self.unit,
                known=math.sqrt(rows * self.rounding),
            ),
            transform=self.T / self.unit[:, None],
            scale=unit.square(),
            span=np.array(span),
            count=np.array(self.count),
            within=self.least / (changes or 1.0),
            other_terms=len(self.others),
            sums=Sums(
                self.independent,
                self.determined,
                symmetric_matrix(self._known + self._change, self.k),
                self._hidden,
                self._unbounded,
                self.form_size,
            ),
        )

    def _hidden(self, V: Tensor) -> Tensor:
        """Return the relative residuals that rounding hides at factors `V[..., k, r]`, `[...]`."""
        size = self.prepared.problem.size
        return (self.cancellation(V) * max(1, len(self.y))).sqrt() / size

    def loss(self, V: Tensor) -> float:
        """Return the mean squared error at `V[k, r]`."""
        e = self.operator.apply_factor_kernel(V) - self.y
        return float(e @ e) / max(1, len(e)) + self.least

    def squared_error(self, residual: float) -> float:
        """Return the sum of the squared errors, in units of the user, of a relative residual."""
        return residual**2 * self.spread * self.factor_unit**4 * self.count

    def residual(self, loss: float) -> float:
        """Return the relative residual of a loss; that of the zero function is 1."""
        return min(math.sqrt(loss / self.spread), 1.0) if self.spread else 0.0

    def form_size(self, V: Tensor) -> float:
        """Return the size of the form `VV'` over the root of that of the responses.

        R does not see what other terms cancel: the size is that of the single products.
        """
        products = svec(V @ V.mT) * self._lengths
        size = float(self.y @ self.y) / max(1, len(self.y)) + self.least
        return float(torch.linalg.vector_norm(products)) / (math.sqrt(size) or 1.0)

    def _unbounded(self) -> list[Tensor]:
        """Return directions `v[k]` whose squares the other terms express."""
        if not len(self.others):
            return []
        lengths = torch.linalg.vector_norm(self._axes, dim=1, keepdim=True)
        units = self._axes / torch.where(lengths > 0, lengths, 1.0)
        forms = [self.operator.apply_factor_kernel(v[:, None]) for v in units]
        most = _EXPRESSED * max(1, len(self.y)) ** 0.5
        seen = (float(torch.linalg.vector_norm(form)) for form in forms)
        return [v for v, size in zip(units, seen, strict=True) if size <= most and bool(v.any())]

    # The answer.

    def answer(self, U: np.ndarray) -> Affine:
        """Return the function of which `U[d, r]` is the factor, in the user's coordinates."""
        unit, slope, value = self.unit.numpy(), np.zeros(self.d), 0.0
        if len(self.others):
            beta = self.other_coefficients(self.enter(U)).numpy() * self.factor_unit**2
            value = float(beta[-1])
            if self.terms == "linear":
                slope = self.T.numpy() @ (math.sqrt(2) * beta[:-1]) / unit
        return Affine(U, (self.origin * self.unit).numpy(), slope, value)

    def enter(self, U: np.ndarray) -> Tensor:
        """Return the factor V of a factor U in the user's coordinates."""
        return self.back @ (torch.from_numpy(U) * self.unit[:, None]) / self.factor_unit

    def other_coefficients(self, V: Tensor) -> Tensor:
        """Return the best coefficients of the other terms for this V, in the scale of svec."""
        change = svec(V @ V.mT) - self._known
        return self._known_others + self._others_fit - self._explained @ change

    def cancellation(self, V: Tensor) -> Tensor:
        """Return the rounding of the loss at V that comes from its distance to the reference fit.

        It is that of every factor `V[..., k, r]`, `[...]`.

        With `G = sum w zz'` of the products z, and the change delta of their coefficients, the loss
        is `E - 2 delta'g + delta'G delta`. By the inequality of Cauchy and Schwarz the sizes of
        these terms add up to at most `(sqrt(E) + sum_i |delta_i| sqrt(G_ii))^2`. It is far above
        the loss if a few large rows make products nearly dependent.

        A product of coordinates that is rounding adds at most that rounding to the errors.
        """
        change = svec(V @ V.mT) - self._known
        vanishing = self._lengths.square() <= self._product_rounding
        lost = torch.where(vanishing, change.abs() * self._product_rounding.sqrt(), 0).sum(-1)
        others = (self._others_fit - change @ self._explained.T).abs() @ self._other_lengths
        seen = torch.where(vanishing, 0.0, change.abs() * self._lengths).sum(-1)
        return _UNIT * (self._reference_error + seen + others).square() + lost.square()

    def jacobian(self, U: np.ndarray) -> np.ndarray:
        """Return the derivative J of the predictions in working coordinates, `[m, k r]`.

        `J'J` is the curvature of the mean squared error; responses are in units of the user.
        """
        V = self.enter(U) * self.factor_unit
        return self.operator.jacobian(V).numpy() / math.sqrt(max(1, len(self.y)))

    def shares(self, U: np.ndarray) -> np.ndarray:
        """Return by how much other terms explain the slopes along the entries of V, `[m, k r]`.

        In the scale of svec, responses in units of the user.
        """
        return (self._explained @ symmetric_jacobian(self.enter(U) * self.factor_unit)).numpy()


def _visible(values: Tensor) -> Tensor:
    """Whether eigenvalues of a matrix of correlations, ascending, are more than rounding.

    They are shares of squares of which other terms may explain all but a part.
    """
    return values > _PIVOT * len(values) * max(1.0, float(values[-1:].sum()))


def _least_eigenvalue(lower: Tensor) -> float:
    """Return the least eigenvalue of `LL'`, from above, by inverse iterations.

    A small pivot of L shows a small eigenvalue, but an eigenvalue that is rounding can leave all
    pivots large.
    """
    generator = torch.Generator().manual_seed(len(lower))
    v = torch.randn(len(lower), 1, generator=generator, dtype=lower.dtype)
    for _ in range(_POWERS):
        v = torch.cholesky_solve(v / torch.linalg.vector_norm(v), lower)
    return 1 / float(torch.linalg.vector_norm(v))


def _span(second: Tensor, frame: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return T, `[d, k]`, for which `s = T't` has covariance I, its inverse E, and the rest.

    For all samples `t = Es`; the rest are directions without samples. T is the identity if that is
    nearly so already. Coordinates `t = frame' x` are known up to the rounding of x times the
    lengths of the columns of the frame; a smaller variance is none.
    """
    d = len(second)
    values = torch.linalg.eigvalsh(second)
    if float(values[0]) * _EVEN >= float(values[-1]) and float(values[-1]) < _EVEN:
        return torch.eye(d).double(), torch.eye(d).double(), second.new_zeros(d, 0)
    known = second.diagonal() > (_RESOLVED * torch.linalg.vector_norm(frame, dim=0)).square()
    scale = torch.where(known, second.diagonal(), 1.0).sqrt()
    correlation = torch.where(known & known[:, None], second / scale / scale[:, None], 0.0)
    values, vectors = torch.linalg.eigh(correlation)
    kept = values > d * _SPAN * values[-1]
    inner, outer = vectors / scale[:, None], vectors * scale[:, None]
    root = values[kept].sqrt()
    return inner[:, kept] / root, outer[:, kept] * root, inner[:, ~kept]


def _is_identity(T: Tensor) -> bool:
    return T.shape[0] == T.shape[1] and bool((torch.eye(len(T)).double() == T).all())


def _positions(k: int, terms: Terms, pairs: int) -> tuple[Tensor, Tensor]:
    """Return the positions in svec of the entries of Q, and of the other terms in order."""
    if terms == "none":
        return torch.arange(pairs), torch.empty(0, dtype=torch.int64)
    i, j = torch.triu_indices(k + 1, k + 1)
    last = j == k
    others = last if terms == "linear" else last & (i == k)
    return (~last).nonzero()[:, 0], others.nonzero()[:, 0]
