"""Moments of a stream of samples, after which least squares for `x'Qx + b'x + c` needs no rows.

The squared error is a quadratic function of the coefficients, so it is known from the fourth
moments of the inputs, their products with the responses, and the squares of the responses. Two
choices keep these sums accurate. The first rows of the stream define coordinates
`t = T'(x / unit - origin)` in which inputs have covariance near I, and a reference fit: what is
summed is the error of that fit, so that nothing cancels where responses are reproduced exactly. And
the sums of chunks are added in double-double arithmetic, so that their order does not matter.
`posquad.problems.rebasing` has the remedy where the first rows do not represent the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from posquad.core.errors import DomainError
from posquad.core.fourth_moments import FourthMoments
from posquad.core.ranges import RESPONSES, tiny
from posquad.core.symmetric import svec, svec_weights
from posquad.core.threads import map_in_threads, one_torch_thread
from posquad.core.twofold import Twofold, from_doubles

__all__ = ["Frame", "Moments", "begin_moments"]

Terms = Literal["none", "constant", "linear"]
"""The unconstrained terms of a model: none, a constant, or linear terms and a constant."""

_LEAST = 1e-10  # variance of a direction, over the largest, below which its scale is not resolved
_REFINEMENTS = 3  # of the reference fit
_RIDGES = (1e-13, 1e-8, 1e-3, 1.0)  # of the reference fit, which need not be accurate
_RESOLVED = 1e-13  # deviation from a mean, over the inputs, that is rounding: about 450 eps
_SEEN = 1e-14  # fourth moment of a product, over the largest, that the first rows resolve
_FREE = 1e-10  # least pivot of products of the first rows, over their sizes, that is not rounding
ROUNDING = 1e-15  # relative rounding of a sum
_CHUNK = 4096  # rows whose sums are formed in one thread
_THREADED = 16  # columns from which several threads pay
_SUMS_MEMORY = 2**28  # bytes of the sums of all threads
SMALL = 50  # columns up to which products of moments are faster on one thread of torch


class Frame(NamedTuple):
    """The map `t = T'(x / unit - origin)` of the inputs."""

    unit: Tensor  # [d]
    origin: Tensor  # [d]; zero unless there are linear terms
    T: Tensor  # [d, d], invertible

    def enter(self, X: Tensor) -> Tensor:
        """Return the coordinates t of the rows of X, `[n, d]`."""
        return (X / self.unit - self.origin) @ self.T


@dataclass
class Moments:
    """Sums over weighted samples, in coordinates that the first samples define.

    `sums` holds, one after the other: the fourth moments of the rows z, which are t or, with other
    terms, (t, 1); `sum w e z_i z_j`; `sum w t t'`; and the sums of w, `w e^2`, `w (y - y0)` and
    `w (y - y0)^2`. Here e is the error of the reference fit, and y0 the mean of the first
    responses.
    """

    terms: Terms
    frame: Frame
    reference: Tensor  # [pairs]  coefficients of the products z_i z_j, i <= j
    center: float  # y0
    count: int = 0  # samples of positive weight
    largest: float = 0.0  # largest |y|
    sums: Twofold = field(default_factory=lambda: from_doubles(torch.zeros(0)))
    narrow: bool = False  # whether any input or response was in single precision
    doubt: float = 0.0  # rounding of `sum w e^2` where the reference fit was exchanged
    free: bool = False  # whether the first samples leave the reference fit undetermined

    def __post_init__(self) -> None:
        # In the order in which files keep it: products with a transposed T round differently.
        self.frame = Frame(*(part.contiguous() for part in self.frame))
        self.layout = FourthMoments(self.d + (self.terms != "none"))
        if not self.sums.high.numel():
            self.sums = from_doubles(torch.zeros(self.size, dtype=torch.float64))

    @property
    def d(self) -> int:
        """Number of inputs."""
        return len(self.frame.unit)

    @property
    def size(self) -> int:
        """Number of sums."""
        return self.layout.size + self.layout.pairs + self.d**2 + 4

    def add(self, X: Tensor, y: Tensor, weights: Tensor | None = None) -> None:
        """Add samples `X[n, d]`, `y[n]` of nonnegative weights; finite numbers are the caller's."""
        parts = [slice(begin, begin + _CHUNK) for begin in range(0, len(y), _CHUNK)]

        def chunk(part: slice) -> tuple[Tensor, int, float]:
            return self.chunk(X[part], y[part], None if weights is None else weights[part])

        # The same chunks and the same order of their sums, whatever the number of threads.
        most = _SUMS_MEMORY // (8 * self.size) if len(parts) > 1 and self.d >= _THREADED else 1
        for sums in map_in_threads(chunk, parts, max(1, most)):
            self.merge(*sums)

    def chunk(
        self, X: Tensor, y: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, int, float]:
        """Return the sums over samples, their number, and the largest `|y|`."""
        sums = torch.zeros(self.size, dtype=torch.float64)
        fourth, cross, second, scalars = self._parts(sums)
        X, y = X.double(), y.double()
        w = torch.ones_like(y) if weights is None else weights.double()
        if weights is not None and not bool((w > 0).all()):
            kept = w > 0
            X, y, w = X[kept], y[kept], w[kept]
        if not len(y):
            return sums, 0, 0.0
        largest = float(y.abs().max())
        require_response_size(largest, least=0.0)
        t, root = self.frame.enter(X), w.sqrt()
        second.addmm_((t * root[:, None]).T, t * root[:, None])
        Z = self._rows(t) if weights is None else self._rows(t) * root.sqrt()[:, None]
        errors, target = torch.empty_like(y), root * y

        def weigh(products: Tensor, rows: slice) -> Tensor:
            errors[rows] = target[rows] - self.reference @ products
            return errors[rows]

        cross += self.layout.accumulate(fourth, Z, weigh)
        away = y - self.center
        scalars += torch.stack((w.sum(), errors @ errors, w @ away, w @ away.square()))
        return sums, len(y), largest

    def merge(self, sums: Tensor, count: int, largest: float) -> None:
        """Add the sums of a chunk, or of several processes."""
        self.sums = self.sums + from_doubles(sums)
        self.count += count
        self.largest = max(self.largest, largest)

    def refer_to(self, U: Tensor, center: Tensor, slope: Tensor, value: float) -> None:
        """Take `||U'(x - m)||^2 + s'(x - m) + v` as the reference fit of moments of no samples.

        Without linear terms the centre and the slope are zero.
        """
        frame, d = self.frame, self.d
        back = torch.linalg.inv(frame.T).T  # x / unit = back t + origin
        away = frame.unit * frame.origin - center
        W = back.T @ (frame.unit[:, None] * U)
        S = torch.zeros(self.layout.k, self.layout.k, dtype=torch.float64)
        S[:d, :d] = W @ W.T
        if self.terms != "none":
            at_origin = U.T @ away
            S[:d, -1] = S[-1, :d] = W @ at_origin + back.T @ (frame.unit * slope) / 2
            S[-1, -1] = at_origin @ at_origin + slope @ away + value
        self.reference = svec(S) * svec_weights(self.layout.k)

    def empty(self) -> Moments:
        """Return moments of no samples, with the same coordinates and reference fit."""
        return Moments(self.terms, self.frame, self.reference, self.center, narrow=self.narrow)

    def joined(self, more: Moments) -> Moments:
        """Return the moments of these and more samples, of the same coordinates and reference."""
        both = self.empty()
        both.sums = self.sums + more.sums
        both.count, both.largest = self.count + more.count, max(self.largest, more.largest)
        both.doubt = self.doubt + more.doubt
        return both

    def _rows(self, t: Tensor) -> Tensor:
        return t if self.terms == "none" else torch.nn.functional.pad(t, (0, 1), value=1.0)

    def _parts(self, sums: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        sizes = [self.layout.size, self.layout.pairs, self.d**2, 4]
        fourth, cross, second, scalars = sums.split(sizes)
        return fourth, cross, second.view(self.d, self.d), scalars

    def raw_fourth(self) -> Tensor:
        """The distinct fourth moments, as `FourthMoments` stores them."""
        return self._parts(self.sums.high)[0]

    def raw_cross(self) -> Tensor:
        """`sum w e z_i z_j`, `[pairs]`."""
        return self._parts(self.sums.high)[1]

    def scalars(self) -> Tensor:
        """The sums of w, `w e^2`, `w (y - y0)` and `w (y - y0)^2`."""
        return self._parts(self.sums.high)[3]

    def mean(self) -> Tensor:
        """The weighted mean of t, `[d]`, which only moments with other terms know."""
        last = self.layout.gram_row(self.raw_fourth(), self.layout.k - 1)
        return last[:-1] / (self.mass or 1.0)

    def to_store(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return what a file keeps: plain values, and arrays by name."""
        body = {"terms": self.terms, "count": self.count, "largest": self.largest}
        body |= {"center": self.center, "narrow": self.narrow, "doubt": self.doubt}
        parts = {**self.frame._asdict(), **self.sums._asdict(), "reference": self.reference}
        return body, {name: tensor.numpy() for name, tensor in parts.items()}

    @classmethod
    def from_store(cls, d: int, body: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Self:
        """Restore moments; raise ValueError or LookupError if the parts do not fit together."""
        tensors = {name: torch.from_numpy(array).clone() for name, array in arrays.items()}
        moments = cls(
            body["terms"],
            Frame(*(tensors[name] for name in Frame._fields)),
            tensors["reference"],
            float(body["center"]),
            int(body["count"]),
            float(body["largest"]),
            Twofold(tensors["high"], tensors["low"]),
            bool(body["narrow"]),
            float(body.get("doubt", 0.0)),
        )
        shapes: dict[str, tuple[int, ...]] = {"unit": (d,), "origin": (d,), "T": (d, d)}
        shapes |= {"high": (moments.size,), "low": (moments.size,)}
        shapes |= {"reference": (moments.layout.pairs,)}
        for name, shape in shapes.items():
            array = arrays[name]
            if array.shape != shape or array.dtype.kind != "f" or not np.isfinite(array).all():
                raise ValueError(f"{name} of the stream is not {shape} finite numbers")
        return moments

    # The sums as matrices. `svec` scales off-diagonal entries by sqrt(2).

    def gram(self) -> Tensor:
        """`sum w svec(zz') svec(zz')'`, `[pairs, pairs]`."""
        scale = svec_weights(self.layout.k)
        gram = self.layout.gram(self._parts(self.sums.high)[0])
        return gram.mul_(scale).mul_(scale[:, None])

    def cross(self) -> Tensor:
        """`sum w e svec(zz')`, `[pairs]`."""
        return self._parts(self.sums.high)[1] * svec_weights(self.layout.k)

    def second_moments(self) -> Tensor:
        """`sum w t t'`, `[d, d]`."""
        return self._parts(self.sums.high)[2]

    def reference_svec(self) -> Tensor:
        """The reference fit as `svec(S)` with `y ~ z'Sz`, `[pairs]`."""
        return self.reference / svec_weights(self.layout.k)

    @property
    def mass(self) -> float:
        """The sum of the weights."""
        return float(self._parts(self.sums.high)[3][0])

    @property
    def squared_error(self) -> float:
        """`sum w e^2` of the reference fit."""
        return float(self._parts(self.sums.high)[3][1])

    @property
    def response_squares(self) -> tuple[float, float]:
        """`sum w y^2`, and the sum of the squared deviations from the weighted mean."""
        w, _, first, second = self._parts(self.sums.high)[3].tolist()
        about_mean = second - first**2 / w if w else 0.0
        return second + 2 * self.center * first + self.center**2 * w, max(about_mean, 0.0)


def begin_moments(
    X: Tensor, y: Tensor, weights: Tensor | None = None, *, terms: Terms = "none"
) -> Moments:
    """Return moments whose coordinates and reference fit come from the first samples of a stream.

    The samples themselves are not added. They should be more than the unknowns d(d+1)/2, or the
    reference is of little use; the sums are correct for any of them.

    >>> X = torch.tensor([[1.0, 2.0], [0.5, -1.0], [2.0, 0.0]], dtype=torch.float64)
    >>> moments = begin_moments(X, torch.ones(3, dtype=torch.float64))
    >>> moments.add(X, torch.ones(3, dtype=torch.float64))
    >>> moments.count, moments.gram().shape
    (3, torch.Size([3, 3]))
    """
    with one_torch_thread(when=X.shape[1] <= SMALL):
        return _begin_moments(X, y, weights, terms)


def _begin_moments(X: Tensor, y: Tensor, weights: Tensor | None, terms: Terms) -> Moments:
    X, y = X.double(), y.double()
    w = torch.ones_like(y) if weights is None else weights.double()
    X, y, w = X[w > 0], y[w > 0], w[w > 0]
    frame = _first_frame(X, w, terms)
    center = float(w @ y / w.sum())
    layout = FourthMoments(X.shape[1] + (terms != "none"))
    empty = torch.zeros(layout.pairs, dtype=torch.float64)
    moments = Moments(terms, frame, empty, center)
    rows = used_products(layout, terms)
    t = moments._rows(frame.enter(X)) * w.sqrt().sqrt()[:, None]
    total = torch.zeros(layout.size, dtype=torch.float64)
    layout.accumulate(total, t, lambda products, part: torch.zeros_like(products[0]))
    gram = layout.gram(total)[rows][:, rows]
    solve = normal_equations(gram)
    moments.free = _leaves_free(gram)
    target = w.sqrt() * y
    for _ in range(_REFINEMENTS):
        right = _correlation(layout, t, target, moments.reference)[rows]
        moments.reference[rows] += solve(right)
    return moments


def require_response_size(largest: float, *, least: float = RESPONSES.double.low) -> None:
    """Refuse responses, of this largest size, whose squares overflow or vanish in the sums.

    >>> require_response_size(1e200)
    Traceback (most recent call last):
    posquad.core.errors.DomainError: y: expected a largest size between 1e-100 and 1e+100, or 0; got 1e+200: choose another unit
    """  # noqa: E501
    low, high = RESPONSES.of()
    if largest > high or 0 < largest < least:
        expected = f"a largest size between {low:.0e} and {high:.0e}, or 0"
        raise DomainError("y", expected=expected, got=f"{largest:.3g}: choose another unit")


def normal_equations(gram: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the solver of `gram q = right`, with a small ridge.

    Products that the samples do not resolve are rounding, and explain nothing: q is 0 there.
    """
    square = gram.diagonal().clone()
    seen = square > _SEEN * float(square.max())
    scale = torch.where(seen, square.clamp_min(tiny()).rsqrt(), 0.0)
    eye = torch.eye(len(gram), dtype=torch.float64)
    scaled = gram * scale * scale[:, None] + torch.diag((~seen).double())
    lower, failed = torch.linalg.cholesky_ex(scaled + _RIDGES[0] * len(gram) * eye)
    for ridge in _RIDGES[1:]:  # rounding may make it indefinite: a coarse solution will do
        if int(failed):
            lower, failed = torch.linalg.cholesky_ex(scaled + ridge * len(gram) * eye)
    return lambda right: scale * torch.cholesky_solve((scale * right)[:, None], lower)[:, 0]


def _leaves_free(gram: Tensor) -> bool:
    """Tell whether products of the samples are dependent, so that coefficients are free."""
    size = gram.diagonal().clamp_min(0).sqrt()
    if not bool((size > _SEEN**0.5 * float(size.max())).all()):
        return True
    lower, failed = torch.linalg.cholesky_ex(gram / size / size[:, None])
    return bool(failed) or float(lower.diagonal().square().min()) <= _FREE


def _correlation(layout: FourthMoments, Z: Tensor, target: Tensor, reference: Tensor) -> Tensor:
    """Return `sum_n e_n z_i z_j` for the errors e of a reference fit, `[pairs]`."""
    return layout.accumulate(None, Z, lambda products, rows: target[rows] - reference @ products)


def used_products(layout: FourthMoments, terms: Terms) -> Tensor:
    """Return the positions of the products that the model uses: without linear terms, not all."""
    i, j = torch.triu_indices(layout.k, layout.k)
    last = layout.k - 1
    linear = (j == last) & (i < last)
    return (~linear if terms == "constant" else torch.ones_like(linear)).nonzero()[:, 0]


def _first_frame(X: Tensor, w: Tensor, terms: Terms) -> Frame:
    """Return coordinates in which the samples have covariance I, as far as they resolve it."""
    unit = X.abs().amax(0)
    unit = torch.where(unit > 0, unit, 1.0)
    scaled = X / unit
    origin = w @ scaled / w.sum() if terms == "linear" else torch.zeros_like(unit)
    rows = (scaled - origin) * w.sqrt()[:, None]
    values, vectors = torch.linalg.eigh(rows.T @ rows / w.sum())
    # Equal rows differ from their mean by rounding, which is no scale.
    rounding = _RESOLVED**2 if terms == "linear" else 0.0
    values = values.clamp_min(_LEAST * float(values[-1]))
    values = torch.where(values > rounding, values, 1.0)
    return Frame(unit, origin, vectors * values.rsqrt())
