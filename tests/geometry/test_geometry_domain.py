"""What the geometry and predictor functions accept, what they refuse and how they say it.

One table holds a valid call of every public function. The kinds of array that must work and the
faults that must be refused are applied to each argument of each call in turn.
"""

import itertools

import numpy as np
import pytest
import scipy.linalg
import torch

from posquad import geometry
from posquad.core.errors import (
    DomainError,
    DtypeError,
    NonFiniteError,
    PosquadError,
    RankDeficientError,
    ShapeError,
    TangencyError,
)
from posquad.dynamics import predictor_dynamics
from posquad.geometry import quotient
from support import normal, ratio, rotation

D, R = 4, 2


def _arguments():
    """Small integers, so that integer and floating-point input mean the same numbers."""
    U = torch.tensor([[2, 0], [0, 1], [1, 1], [0, 2]]).double()
    V = torch.tensor([[1, 1], [1, 0], [0, 2], [3, 1]]).double()
    Z = torch.tensor([[1, -2], [3, 1], [0, 1], [2, 0]]).double()
    A = torch.tensor([[1, 2, 0, 1], [2, 0, 1, 3], [0, 1, 2, 0], [1, 3, 0, -1]]).double()
    return {
        "U": U,
        "V": V,
        "Z": Z,
        "Delta": U.clone(),  # horizontal, since U'U is symmetric
        "xi": Z @ U.mT + U @ Z.mT,
        "zeta": V @ U.mT + U @ V.mT,
        "Q": U @ U.mT,
        "G": A,
        "t": torch.tensor(2.0).double(),
        "step": torch.tensor(3.0).double(),
    }


VALID = _arguments()
CALLS = {
    "differential": (geometry.differential, ["U", "Delta"]),
    "fiber_rotation": (geometry.fiber_rotation, ["U", "V"]),
    "vertical_projection": (geometry.vertical_projection, ["U", "Z"]),
    "horizontal_projection": (geometry.horizontal_projection, ["U", "Z"]),
    "horizontal_basis": (geometry.horizontal_basis, ["U"]),
    "horizontal_lift": (geometry.horizontal_lift, ["U", "xi"]),
    "quotient_metric": (geometry.quotient_metric, ["U", "xi", "zeta"]),
    "norm_bounds": (geometry.norm_bounds, ["U"]),
    "procrustes_alignment": (geometry.procrustes_alignment, ["U", "V"]),
    "procrustes_distance": (geometry.procrustes_distance, ["U", "V"]),
    "exp": (geometry.exp, ["U", "Delta"]),
    "log": (geometry.log, ["U", "V"]),
    "geodesic": (geometry.geodesic, ["U", "V", "t"]),
    "predictor_step": (predictor_dynamics.predictor_step, ["Q", "G", "step"]),
    "riemannian_gradient": (predictor_dynamics.riemannian_gradient, ["Q", "G"]),
    "flow_field": (predictor_dynamics.flow_field, ["Q", "G"]),
    "discretization_correction": (predictor_dynamics.discretization_correction, ["Q", "G", "step"]),
    "correction_bound": (predictor_dynamics.correction_bound, ["Q", "G", "step"]),
    "sufficient_rank_margin": (predictor_dynamics.sufficient_rank_margin, ["G", "step"]),
    "exact_rank_margin": (predictor_dynamics.exact_rank_margin, ["U", "G", "step"]),
}
FACTORS, DIRECTIONS = {"U", "V"}, {"Z", "Delta"}
SYMMETRIC, SCALARS = {"xi", "zeta", "Q", "G"}, {"t", "step"}


def valid(name, **changed):
    """Arguments of the valid call, some of them changed."""
    arguments = {key: VALID[key] for key in CALLS[name][1]}
    if name == "fiber_rotation":  # accepts only another factor of the same predictor
        arguments["V"] = VALID["U"].flip(-1)
    return arguments | changed


def results(name, arguments):
    """The results as a list of tensors; a basis, which is not unique, as its projector."""
    value = CALLS[name][0](**arguments)
    if name == "horizontal_basis":
        flat = value.reshape(*value.shape[:-2], D * R)
        value = flat.swapaxes(-1, -2) @ flat
    return list(value) if isinstance(value, tuple) else [value]


def each(kinds):
    """Every (function, argument) whose argument is of one of the kinds."""
    return [(name, key) for name, (_, keys) in CALLS.items() for key in keys if key in kinds]


every_call = pytest.mark.parametrize("name", CALLS)


def refuse(error, argument, function, arguments):
    """The call raises `error` about `argument`, in the words argument, expected, got."""
    with pytest.raises(error) as caught:
        function(**arguments)
    assert argument in caught.value.argument.split(", ")
    assert caught.value.expected
    assert caught.value.got
    message = f"{caught.value.argument}: expected {caught.value.expected}; got {caught.value.got}"
    assert str(caught.value) == message
    return caught.value


def test_the_table_holds_every_public_function():
    public = {*quotient.__all__, *predictor_dynamics.__all__}
    assert {*CALLS} | {"dimension"} == public


# What must work


def agree(got, expected, tolerance=1e-13):
    """Equal to rounding: the valid arguments are of order one and well conditioned."""
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(torch.as_tensor(g), e, rtol=tolerance, atol=20 * tolerance)


@every_call
def test_numpy_in_numpy_out(name):
    arguments = valid(name)
    arrays = {key: value.numpy() for key, value in arguments.items()}
    got = results(name, arrays)
    assert all(type(value) is np.ndarray and value.dtype == np.float64 for value in got)
    agree(got, results(name, arguments))


@every_call
def test_the_kind_follows_the_first_argument(name):
    arguments = valid(name)
    first, *others = arguments
    mixed = {first: arguments[first]} | {key: arguments[key].numpy() for key in others}
    assert all(isinstance(value, torch.Tensor) for value in results(name, mixed))
    mixed = {key: arguments[key] for key in arguments} | {first: arguments[first].numpy()}
    assert all(isinstance(value, np.ndarray) for value in results(name, mixed))


@every_call
def test_float32_stays_float32(name):
    arguments = valid(name)
    got = results(name, {key: value.float() for key, value in arguments.items()})
    assert all(value.dtype == torch.float32 for value in got)
    agree([value.double() for value in got], results(name, arguments), tolerance=1e-5)


@pytest.mark.parametrize(("name", "key"), each(FACTORS | DIRECTIONS | SYMMETRIC))
def test_one_float64_argument_makes_the_result_float64(name, key):
    arguments = valid(name)
    # Small integers are the same numbers in float32, so the mixed result is exact to float64.
    mixed = {k: value.float() for k, value in arguments.items()} | {key: arguments[key]}
    got = results(name, mixed)
    assert all(value.dtype == torch.float64 for value in got)
    agree(got, results(name, arguments))


# Kinds of integers and of memory are the business of the one converter: core/test_arrays.py.


@every_call
def test_integers_are_widened_to_float64(name):
    arguments = valid(name)
    widened = {key: value.long().tolist() for key, value in arguments.items()}
    agree(results(name, widened), results(name, arguments))


@every_call
def test_numpy_layouts(name):
    """Read-only, rows in reversed order in memory, and a gap after every entry."""
    arguments = valid(name)
    arrays = {key: value.numpy() for key, value in arguments.items()}
    for key, array in arrays.items():
        if array.ndim:
            arrays[key] = np.repeat(array[::-1].copy()[::-1], 2, axis=-1)[..., ::2]
        arrays[key].flags.writeable = False
    agree(results(name, arrays), results(name, arguments))


@every_call
def test_torch_views(name):
    arguments = valid(name)
    views = {
        key: value.mT.contiguous().mT if value.ndim else value for key, value in arguments.items()
    }
    agree(results(name, views), results(name, arguments))


@every_call
def test_batches_are_computed_element_by_element(name):
    arguments = valid(name)
    expected = results(name, arguments)
    stacked = {key: torch.stack([value] * 3) for key, value in arguments.items()}
    for got in results(name, stacked), results(name, {k: v.numpy() for k, v in stacked.items()}):
        agree(got, [torch.stack([value] * 3) for value in expected])


@every_call
def test_distinct_batch_elements_do_not_mix(name):
    arguments = valid(name)
    # Homogeneity would hide a mix-up of scales; exchanging the two basis vectors does not.
    O = torch.eye(D, dtype=torch.float64)[[1, 0, 2, 3]]
    turned = {key: _turn(key, value, O) for key, value in arguments.items()}
    both = {key: torch.stack([arguments[key], turned[key]]) for key in arguments}
    separate = zip(results(name, arguments), results(name, turned), strict=True)
    agree(results(name, both), [torch.stack(pair) for pair in separate])


def _turn(key, value, O):
    if key in SYMMETRIC:
        return O @ value @ O.mT
    return O @ value if value.ndim else value


@every_call
def test_batches_broadcast(name):
    arguments = valid(name)
    keys = list(arguments)
    shapes = dict(zip(keys, [(2, 1), (3,), ()], strict=False))
    spread = {k: v.broadcast_to((*shapes[k], *v.shape)) for k, v in arguments.items()}
    batch = torch.broadcast_shapes(*shapes.values())
    expected = [value.expand(*batch, *value.shape) for value in results(name, arguments)]
    agree(results(name, spread), expected)


@pytest.mark.parametrize(("name", "key"), each(SCALARS))
def test_parameters_over_the_batch(name, key):
    array = np.array([0.25, 0.5])
    separate = zip(*(results(name, valid(name, **{key: value})) for value in array), strict=True)
    expected = [torch.stack(values) for values in separate]
    for parameter in array, array[::-1].copy()[::-1], torch.from_numpy(array), array.tolist():
        agree(results(name, valid(name, **{key: parameter})), expected)


@every_call
def test_an_empty_batch_gives_an_empty_batch(name):
    arguments = valid(name)
    shapes = [value.shape for value in results(name, arguments)]
    empty = {key: value.expand(0, *value.shape) for key, value in arguments.items()}
    assert [value.shape for value in results(name, empty)] == [(0, *shape) for shape in shapes]


@every_call
def test_inputs_are_not_modified(name):
    arguments = valid(name)
    tensors = {key: value.clone() for key, value in arguments.items()}
    arrays = {key: value.numpy().copy() for key, value in arguments.items()}
    for value in results(name, tensors) + results(name, arrays):
        value[...] = 7.0  # the result owns its memory too
    for key, value in arguments.items():
        assert torch.equal(tensors[key], value)
        assert np.array_equal(arrays[key], value.numpy())


@pytest.mark.parametrize(("name", "key"), [c for c in each(VALID) if c[0] != "horizontal_basis"])
def test_gradients_reach_every_argument(name, key):
    arguments = valid(name)
    arguments[key] = arguments[key].clone().requires_grad_()
    got = results(name, arguments)
    assert all(value.requires_grad for value in got)
    # A sum could vanish by invariance; unequal weights on all entries do not.
    total = sum((v * torch.arange(1.0, 1.0 + v.numel()).reshape(v.shape)).sum() for v in got)
    (gradient,) = torch.autograd.grad(total, arguments[key])
    assert bool(torch.isfinite(gradient).all())
    assert bool(gradient.any())
    as_numpy = {k: v if k == key else v.numpy() for k, v in arguments.items()}
    if key != next(iter(arguments)):  # NumPy leads: the graph ends here, without a complaint
        assert all(isinstance(value, np.ndarray) for value in results(name, as_numpy))


# What must be refused


def spoil(value, bad):
    value = value.clone()
    value.view(-1)[-1] = bad
    return value


@pytest.mark.parametrize(("name", "key"), each(FACTORS | DIRECTIONS | SYMMETRIC | {"t"}))
def test_non_finite_entries(name, key):
    broken = spoil(VALID[key], float("nan"))
    for value, size in [
        (broken, broken.numel()),
        (torch.stack([VALID[key], broken]), 2 * broken.numel()),
    ]:
        arguments = valid(name, **{key: value})
        error = refuse(NonFiniteError, key, CALLS[name][0], arguments)
        assert error.got == f"1 of {size} not finite"


FACTOR_SHAPES = [(D,), (), (R, D), (D, 0), (0, 0), (0, R), (3, R, D)]
SQUARE_SHAPES = [(D,), (), (D, D + 1), (D - 1, D), (2, D, D - 1)]


@pytest.mark.parametrize(("name", "key"), each({"U"}))
def test_shapes_that_are_not_factors(name, key):
    for shape in FACTOR_SHAPES:
        arguments = valid(name, **{key: torch.ones(shape).double()})
        error = refuse(ShapeError, key, CALLS[name][0], arguments)
        assert str(shape) in error.got
        assert "(..., d, r)" in error.expected


@pytest.mark.parametrize(("name", "key"), each({"V"} | DIRECTIONS))
def test_shapes_that_do_not_fit_the_factor(name, key):
    for shape in [(D,), (), (D, R + 1), (D + 1, R), (R, D), (0, R), (3, D, 1)]:
        arguments = valid(name, **{key: torch.ones(shape).double()})
        error = refuse(ShapeError, key, CALLS[name][0], arguments)
        assert str(shape) in error.got
        assert f"(..., {D}, {R})" in error.expected


@pytest.mark.parametrize(("name", "key"), each(SYMMETRIC))
def test_shapes_that_are_no_fitting_square(name, key):
    leads = CALLS[name][1][0] == key  # then it sets d, and any square fits
    for shape in SQUARE_SHAPES if leads else [*SQUARE_SHAPES, (D + 1, D + 1), (1, 1)]:
        arguments = valid(name, **{key: torch.zeros(shape).double()})
        error = refuse(ShapeError, key, CALLS[name][0], arguments)
        assert str(shape) in error.got


@pytest.mark.parametrize("name", [n for n, (_, keys) in CALLS.items() if keys[0] in SYMMETRIC])
def test_matrices_without_rows(name):
    arguments = valid(name)
    empty = {k: torch.zeros(0, 0).double() if k in SYMMETRIC else v for k, v in arguments.items()}
    refuse(ShapeError, "G", CALLS[name][0], empty)


@pytest.mark.parametrize(("name", "key"), each(FACTORS | DIRECTIONS | SYMMETRIC))
def test_dtypes(name, key):
    arguments = valid(name, **{key: VALID[key].to(torch.complex128)})
    error = refuse(DtypeError, key, CALLS[name][0], arguments)
    assert "dtype" in error.got


@pytest.mark.parametrize(
    ("name", "key"),
    [c for c in each(FACTORS | DIRECTIONS | SYMMETRIC) if CALLS[c[0]][1][0] != c[1]],
)
def test_another_device(name, key):
    arguments = valid(name, **{key: VALID[key].to("meta")})
    error = refuse(DtypeError, key, CALLS[name][0], arguments)
    assert "meta" in error.got


NOT_NUMBERS = {
    "a string": "0.1",
    "None": None,
    "complex": 1j,
    "object": object(),
    "ragged": [[0.1], [0.2, 0.3]],
    "strings": np.array(["a"]),
    "objects": np.array([None]),
}


@pytest.mark.parametrize(("name", "key"), each(SCALARS))
def test_parameters_that_are_not_numbers(name, key):
    for bad in NOT_NUMBERS.values():
        refuse(PosquadError, key, CALLS[name][0], valid(name, **{key: bad}))


@pytest.mark.parametrize(("name", "key"), each({"step"}))
def test_steps_that_are_not_positive(name, key):
    for bad in 0.0, -1.0, float("nan"), float("inf"), [1.0, -1.0]:
        kind = DomainError if np.isfinite(bad).all() else (DomainError, NonFiniteError)
        for value in bad, torch.tensor(bad), np.array(bad):
            refuse(kind, key, CALLS[name][0], valid(name, **{key: value}))


@pytest.mark.parametrize("name", ["fiber_rotation", "horizontal_lift", "quotient_metric", "exp"])
def test_tolerances_that_are_not_nonnegative_numbers(name):
    for bad in float("nan"), -1e-3, "1e-3":
        arguments = valid(name, tolerance=bad)
        refuse(DomainError, "tolerance", CALLS[name][0], arguments)


PAIRS = [(name, *pair) for name in CALLS for pair in itertools.combinations(CALLS[name][1], 2)]


@pytest.mark.parametrize(("name", "a", "b"), PAIRS)
def test_batches_that_do_not_broadcast(name, a, b):
    arguments = valid(name)
    for key, size in [(a, 2), (b, 3)]:
        arguments[key] = arguments[key].expand(size, *arguments[key].shape)
    error = refuse(ShapeError, b, CALLS[name][0], arguments)
    assert set(error.argument.split(", ")) <= set(arguments)
    assert "broadcast" in error.expected
    assert f"{a}: (2,)" in error.got
    assert f"{b}: (3,)" in error.got


DEFICIENT = {
    "zero": lambda U: torch.zeros_like(U),
    "zero column": lambda U: U * torch.tensor([1.0, 0.0]).to(U),
    "repeated column": lambda U: U[:, [0, 0]],
    "dependent to rounding": lambda U: torch.stack([U[:, 0], U[:, 0] / 3 * 7 / 11], dim=1),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("name", "key"), [c for c in each(FACTORS) if c[0] != "differential"])
def test_rank_deficient_factors(name, key, dtype):
    good = {k: v.to(dtype) for k, v in valid(name).items()}
    for make in DEFICIENT.values():
        broken = make(VALID[key].to(dtype))
        expected = np.linalg.svd(broken.numpy(), compute_uv=False)
        scale = 60 * D * torch.finfo(dtype).eps * (1 + expected[0])
        for value, place in [
            (broken, ""),
            (torch.stack([VALID[key].to(dtype), broken]), "element 1 of 2"),
        ]:
            error = refuse(RankDeficientError, key, CALLS[name][0], good | {key: value})
            assert np.abs(error.singular_values.numpy() - expected).max() < scale
            assert "full column rank 2" in error.expected
            assert place in error.got


@pytest.mark.parametrize(("name", "key"), each(SYMMETRIC))
def test_asymmetric_matrices(name, key):
    for size in 1.0, 1e-9:
        skew = torch.zeros(D, D).double()
        skew[0, 1] = size
        broken = VALID[key] + skew
        for value in broken, torch.stack([VALID[key], broken]):
            arguments = valid(name, **{key: value})
            error = refuse(DomainError, key, CALLS[name][0], arguments)
            assert "symmetric" in error.expected
            assert f"{size / float(broken.abs().max()):.1e}"[-3:] in error.got
    # Asymmetry of a few roundings, as any product of matrices has, is no fault.
    arguments = valid(name, **{key: VALID[key] * (1 + 1e-15 * torch.ones(D, D).triu(1))})
    CALLS[name][0](**arguments)


@pytest.mark.parametrize("d", [0, -1, 2.0, True, "2", None, float("nan"), 10**3 * 1j])
def test_dimension_refuses_what_is_not_a_positive_integer(d):
    refuse(DomainError, "d", geometry.dimension, {"d": d, "r": 1})
    refuse(DomainError, "r", geometry.dimension, {"d": 5, "r": d})


def test_dimension_refuses_a_rank_above_the_size():
    error = refuse(DomainError, "r", geometry.dimension, {"d": 3, "r": 4})
    assert (error.expected, error.got) == ("1 <= r <= d = 3", "4")
    assert geometry.dimension(np.int64(3), np.int32(3)) == 6


DEGREES = {  # of homogeneity when the factors, and tangent matrices with them, are scaled
    "differential": 1,
    "fiber_rotation": 0,
    "vertical_projection": 0,
    "horizontal_projection": 0,
    "horizontal_basis": 0,
    "horizontal_lift": 0,
    "quotient_metric": 0,
    "procrustes_alignment": 0,
    "procrustes_distance": 1,
    "exp": 1,
    "log": 1,
    "geodesic": 1,
    "exact_rank_margin": 0,
}


@pytest.mark.parametrize("name", DEGREES)
def test_extreme_scales(name):
    """Where U'U under- or overflows: the right answer or a refusal, never NaN or a raw error."""
    arguments = valid(name)
    keys = FACTORS | {"xi", "zeta"} | ({"Delta"} if name == "exp" else set())
    expected = results(name, arguments)
    for scale in 1e-200, 1e-60, 1e60, 1e200:
        scaled = {k: v * scale if k in keys else v for k, v in arguments.items()}
        try:
            got = results(name, scaled)
        except PosquadError:
            assert scale in (1e-200, 1e200)
        else:
            agree([value / scale ** DEGREES[name] for value in got], expected, tolerance=1e-12)


# Domain of exp, log and geodesic


def losing_rank(rng, d, r, t, *, condition=2.0, dtype=torch.float64):
    """U and horizontal Delta such that `U + tau Delta` first loses rank at `tau = t`.

    With `U = W diag(s) P'` and M symmetric, `Delta = W M diag(s) P'` is horizontal and
    `U + tau Delta = W (I + tau M) diag(s) P'`, singular where tau = -1 / eigenvalue of M.
    """
    eigenvalues = np.concatenate([[-1.0], np.linspace(-0.5, 1.0, r - 1)]) / t
    O = rotation(rng, r)
    M = (O * torch.from_numpy(eigenvalues)) @ O.mT
    W = torch.linalg.qr(normal(rng, d, r)).Q
    s = torch.logspace(0, -np.log10(condition), r).double()
    P = rotation(rng, r)
    return (W * s @ P.mT).to(dtype), ((W @ M * s) @ P.mT).to(dtype)


LOSSES = [(1, 1), (3, 1), (4, 2), (4, 4), (20, 3)]


@pytest.mark.parametrize(
    ("t", "dtype"),
    [
        (0.1, torch.float64),
        (0.9, torch.float64),
        (1.0, torch.float64),
        (0.5, torch.float32),
        (1.0, torch.float32),
    ],
)
@pytest.mark.parametrize(("d", "r"), LOSSES)
def test_exp_refuses_a_segment_that_loses_rank_and_says_where(rng, d, r, t, dtype):
    for _ in range(5):  # at t = 1 the loss lies on the edge of the segment: rounding decides there
        U, Delta = losing_rank(rng, d, r, t, dtype=dtype)
        error = refuse(DomainError, "Delta", geometry.exp, {"U": U, "Delta": Delta})
        assert float(error.got.split("t = ")[1].split(":")[0]) == pytest.approx(t, rel=1e-4)


@pytest.mark.parametrize("condition", [1e3, 1e6])
def test_exp_refuses_a_loss_of_rank_of_an_ill_conditioned_factor(rng, condition):
    for t in 0.3, 0.8:
        U, Delta = losing_rank(rng, 4, 4, t, condition=condition)
        refuse(DomainError, "Delta", geometry.exp, {"U": U, "Delta": Delta})


@pytest.mark.parametrize(("d", "r"), LOSSES)
def test_exp_accepts_a_segment_that_loses_rank_only_later(rng, d, r):
    for t in 1.0 + 1e-10, 1.0 + 1e-6, 1.2, 5.0:
        U, Delta = losing_rank(rng, d, r, t)
        assert ratio(geometry.exp(U, Delta) - (U + Delta), 1.0, d) < 60
        assert np.linalg.matrix_rank(geometry.exp(U, Delta).numpy()) == r


def test_exp_accepts_a_line_that_turns_inside_the_range_but_leaves_it(rng):
    # U'(U + t Delta) is singular at t = 1/2, but Delta has a part outside range(U).
    U = torch.eye(4, 2).double()
    Delta = -2 * U + torch.eye(4).double()[:, 2:]
    assert torch.equal(geometry.exp(U, Delta), U + Delta)


def test_exp_finds_the_loss_in_one_batch_element(rng):
    bad_U, bad = losing_rank(rng, 4, 2, 0.5)
    good_U, good = losing_rank(rng, 4, 2, 3.0)
    pair = {"U": torch.stack([good_U, bad_U]), "Delta": torch.stack([good, bad])}
    assert "t = 0.5" in refuse(DomainError, "Delta", geometry.exp, pair).got


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4])
def test_exp_refuses_a_vertical_direction(rng, condition, dtype):
    # Turning two small columns moves Q not at all, however small they are beside the largest.
    U = torch.diag(torch.tensor([1.0, 1.0 / condition, 1.0 / condition])).to(dtype)
    turn = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, 0.0]]).to(dtype)
    error = refuse(TangencyError, "Delta", geometry.exp, {"U": U, "Delta": U @ turn})
    assert error.distance == pytest.approx(1.0, rel=1e-3)  # all of it is vertical


@pytest.mark.parametrize("share", [1e-6, 0.1, 1.0])
def test_exp_says_how_far_a_direction_is_from_horizontal(rng, share):
    U, Z = normal(rng, 5, 3), 0.1 * normal(rng, 5, 3)
    S, C = (U.mT @ U).numpy(), (U.mT @ Z - Z.mT @ U).numpy()
    vertical = U @ torch.from_numpy(scipy.linalg.solve_continuous_lyapunov(S, C))
    Delta = Z - vertical + share * vertical
    distance = float(share * vertical.norm() / Delta.norm())
    error = refuse(TangencyError, "Delta", geometry.exp, {"U": U, "Delta": Delta})
    assert error.distance == pytest.approx(distance, rel=1e-6)
    assert torch.equal(geometry.exp(U, Delta, tolerance=1.01 * distance), U + Delta)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("d", "r", "shared"), [(2, 1, 0), (4, 2, 1), (6, 3, 2), (8, 4, 0)])
def test_cut_points_are_refused(rng, d, r, shared, dtype):
    # range(V) contains r - shared directions orthogonal to range(U): V'U is singular.
    O = rotation(rng, d)
    U = (O[:, :r] @ normal(rng, r, r)).to(dtype)
    V = (O[:, r - shared : 2 * r - shared] @ normal(rng, r, r)).to(dtype)
    for function, more in [(geometry.log, {}), (geometry.geodesic, {"t": 0.5})]:
        error = refuse(DomainError, "V", function, {"U": U, "V": V, **more})
        assert "cut point" in error.got
        both = {"U": torch.stack([U, U]), "V": torch.stack([U, V])}
        refuse(DomainError, "V", function, both | more)


def test_near_the_cut_locus_the_logarithm_is_defined(rng):
    U, angle = torch.tensor([[1.0], [0.0]]).double(), np.pi / 2 - 1e-6
    V = torch.tensor([[-np.cos(angle)], [-np.sin(angle)]])
    expected = torch.tensor([[np.cos(angle) - 1], [np.sin(angle)]])
    assert ratio(geometry.log(U, V) - expected, 1.0, 2) < 60


def test_the_logarithm_does_not_depend_on_the_scale_of_the_factors(rng):
    U, V = normal(rng, 5, 3), normal(rng, 5, 3)
    expected = geometry.log(U, V)
    for scale in 1e-60, 1e60:
        got = geometry.log(scale * U, scale * V) / scale
        assert ratio(got - expected, U.norm() + V.norm(), 5) < 600  # V'U has condition 10
        half = geometry.geodesic(scale * U, scale * V, 0.5) / scale
        assert ratio(half - U - expected / 2, U.norm() + V.norm(), 5) < 600


@pytest.mark.parametrize(("t", "where"), [(2.5, 2.0), ([0.5, 2.5], 2.0), (-3.0, -1.0)])
def test_geodesic_refuses_a_parameter_beyond_the_loss_of_rank(t, where):
    # Q runs from I to diag(1/4, 4): singular values 1 - t/2 and 1 + t vanish at t = 2 and t = -1.
    U, V = torch.eye(2).double(), torch.diag(torch.tensor([0.5, 2.0]).double())
    for inside in -0.875, 1.875:
        expected = torch.diag(torch.tensor([1 - inside / 2, 1 + inside]).double())
        assert ratio(geometry.geodesic(U, V, inside) - expected, 4.0, 2) < 60
    arguments = {"U": U, "V": V, "t": torch.tensor(t).double()}
    error = refuse(DomainError, "t", geometry.geodesic, arguments)
    # The parameter is the geodesic's own, not that of a segment the caller never sees.
    assert float(error.got.split("t = ")[1].split(":")[0]) == pytest.approx(where, rel=1e-5)
