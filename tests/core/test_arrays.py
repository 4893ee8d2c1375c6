"""The gate for arrays: what it lets in, in which form, and how it refuses the rest."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from posquad.core import arrays, errors
from posquad.core.arrays import like, tensors
from posquad.core.errors import (
    DomainError,
    DtypeError,
    FiberError,
    NonFiniteError,
    PosquadError,
    RankDeficientError,
    ShapeError,
    TangencyError,
)


def read_only() -> np.ndarray:
    array = np.arange(6.0).reshape(2, 3)
    array.flags.writeable = False
    return array


def unaligned() -> np.ndarray:
    """Doubles that begin one byte into a buffer, as in a packed binary record."""
    raw = np.zeros(6 * 8 + 1, dtype=np.uint8)
    array = raw[1:].view(np.float64)
    array[:] = np.arange(6.0)
    assert not array.flags.aligned
    return array


F32, F64 = torch.float32, torch.float64
ACCEPTED = {
    "float64": (np.arange(6.0), F64),
    "float32": (np.arange(6, dtype=np.float32), F32),
    "read-only": (read_only(), F64),
    "broadcast": (np.broadcast_to(np.arange(3.0), (2, 3)), F64),
    "big-endian float64": (np.arange(6, dtype=">f8"), F64),
    "big-endian float32": (np.arange(6, dtype=">f4"), F32),
    "big-endian integers": (np.arange(6, dtype=">i4"), F64),
    "negative stride": (np.arange(6.0)[::-1], F64),
    "strided": (np.arange(24.0).reshape(4, 6)[::2, ::3], F64),
    "Fortran order": (np.asfortranarray(np.arange(6.0).reshape(2, 3)), F64),
    "unaligned": (unaligned(), F64),
    "0-d": (np.array(2.5), F64),
    "float": (2.5, F64),
    "int": (3, F64),
    "list": ([[1.0, 2.0], [3.0, 4.0]], F64),
    "tuple of ints": ((1, 2), F64),
    "empty": (np.zeros((0, 3)), F64),
    "bool": (np.array([True, False]), F64),
    "uint16": (np.arange(6, dtype=np.uint16), F64),
    "uint64": (np.arange(6, dtype=np.uint64), F64),
    "int8": (np.arange(-3, 3, dtype=np.int8), F64),
    "int64": (np.arange(-3, 3), F64),
    "tensor": (torch.arange(6.0, dtype=F64), F64),
    "float32 tensor": (torch.arange(6.0), F32),
    "integer tensor": (torch.arange(6), F64),
    "uint16 tensor": (torch.arange(6).to(torch.uint16), F64),
    "bool tensor": (torch.tensor([True, False]), F64),
    "strided tensor": (torch.arange(24.0, dtype=F64).reshape(4, 6)[::2, ::3], F64),
    "list of tensors": ([torch.arange(3.0), torch.arange(3.0)], F32),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name):
    value, dtype = ACCEPTED[name]
    (tensor,) = tensors(a=value)
    assert tensor.dtype == dtype
    expected = value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    assert tensor.shape == expected.shape
    np.testing.assert_array_equal(tensor.numpy(), expected.astype(np.float64))


MISSING = np.ma.masked_array([1.0, 2.0], mask=[False, True])
GRADED = [torch.ones(2, requires_grad=True)]
REFUSED = {
    "None": (None, "NoneType"),
    "string": ("abc", "str"),
    "strings": (["1.0", "2.0"], "list"),
    "complex": (np.ones(2) * 1j, "complex128"),
    "complex tensor": (torch.ones(2) * 1j, "torch.complex64"),
    "float16": (np.ones(2, np.float16), "float16"),
    "float16 tensor": (torch.ones(2, dtype=torch.float16), "torch.float16"),
    "bfloat16 tensor": (torch.ones(2, dtype=torch.bfloat16), "torch.bfloat16"),
    "longdouble": (np.ones(2, np.longdouble), str(np.dtype(np.longdouble))),
    "objects": (np.array([1.0, None]), "object"),
    "dates": (np.array(["2020-01-01"], dtype="datetime64[D]"), "datetime64"),
    "structured": (np.zeros(2, dtype=[("a", "f8")]), "ndarray"),
    "dict": ({"a": 1.0}, "dict"),
    "function": (len, "builtin_function_or_method"),
    "generator": ((i for i in range(3)), "generator"),
    "integers beyond 64 bits": ([2**70], "list"),
    "ragged list": ([[1.0, 2.0], [3.0]], "list"),
    "masked array with missing entries": (MISSING, "MaskedArray"),
    "list of tensors that require grad": (GRADED, "list"),
    "sparse tensor": (torch.eye(3).to_sparse(), "sparse"),
    "tensor without data": (torch.ones(3, device="meta"), "meta"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    value, got = REFUSED[name]
    with pytest.raises(DtypeError) as caught:
        tensors(a=value)
    assert caught.value.argument == "a"
    assert got in caught.value.got


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_not_finite(bad, kind):
    with pytest.raises(NonFiniteError) as caught:
        tensors(a=kind(np.array([[1.0, bad], [bad, 2.0]])))
    assert str(caught.value) == "a: expected finite entries; got 2 of 4 not finite"


@pytest.mark.parametrize(
    ("dtypes", "common"),
    [
        ((np.float32, np.float32), F32),
        ((np.float32, np.float64), F64),
        ((np.float64, np.float32), F64),
        ((np.int64, np.int32), F64),
        ((np.int64, np.float32), F64),  # integers are float64 from the start
    ],
)
def test_common_dtype(dtypes, common):
    one, two = tensors(one=np.ones(2, dtypes[0]), two=np.ones(3, dtypes[1]))
    assert one.dtype == two.dtype == common


def test_order_is_kept():
    one, two = tensors(one=[1.0], two=[2.0])
    assert (float(one), float(two)) == (1.0, 2.0)


def test_another_device_is_refused():
    """Stands for a CUDA tensor beside a CPU one, where there is no second device."""
    other = "cuda" if torch.cuda.is_available() else "meta"
    with pytest.raises(DtypeError, match=r"^b: expected"):
        tensors(a=torch.ones(2), b=torch.ones(2, device=other))


def test_no_copy_is_made_without_need():
    array = np.arange(6.0)
    assert tensors(a=array)[0].data_ptr() == array.ctypes.data
    tensor = torch.arange(6.0, requires_grad=True)
    assert tensors(a=tensor)[0] is tensor


def test_graphs_are_kept_when_widening():
    narrow = torch.ones(2, requires_grad=True)
    (wide, _) = tensors(a=narrow, b=np.ones(1))
    (gradient,) = torch.autograd.grad((3 * wide).sum(), narrow)
    assert torch.equal(gradient, torch.full((2,), 3.0))


def test_like_returns_the_kind_of_the_model():
    value = torch.arange(3.0, requires_grad=True) * 2
    assert like(torch.ones(1), value) is value
    for model in (np.ones(1), [1.0], 1.0):
        array = like(model, value)
        assert isinstance(array, np.ndarray)
        np.testing.assert_array_equal(array, [0.0, 2.0, 4.0])
    assert like(np.ones(1), torch.tensor(2.0)).shape == ()


# Shapes.


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (3, 3), (2, 3, 2), (0, 3, 2)])
def test_factor_shapes(shape):
    arrays.require_factor("U", torch.zeros(shape))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (3, 0), (0, 0), (4, 2, 3)])
def test_not_factor_shapes(shape):
    with pytest.raises(ShapeError) as caught:
        arrays.require_factor("U", torch.zeros(shape))
    message = f"U: expected shape (..., d, r) with 1 <= r <= d; got shape {shape}"
    assert str(caught.value) == message


@pytest.mark.parametrize("shape", [(4, 2), (3, 4, 2), (0, 4, 2)])
def test_trailing_shape(shape):
    arrays.require_shape("M", torch.zeros(shape), (4, 2), "(..., n, k)")


@pytest.mark.parametrize("shape", [(), (2,), (4,), (2, 4), (4, 2, 1), (1, 2)])
def test_wrong_trailing_shape(shape):
    with pytest.raises(ShapeError) as caught:
        arrays.require_shape("M", torch.zeros(shape), (4, 2), "(..., n, k)")
    message = f"M: expected shape (..., 4, 2), that is (..., n, k); got shape {shape}"
    assert str(caught.value) == message


@pytest.mark.parametrize("dtype", [F32, F64])
def test_symmetric_to_rounding(dtype):
    """Rounding of a product passes, a thousand times that does not, on the matrix's own scale."""
    eps = torch.finfo(dtype).eps
    M = torch.eye(3, dtype=dtype).repeat(2, 1, 1)
    M[1] *= 1e-6
    M[1, 0, 1] = 1e-6 * 100 * eps
    arrays.require_symmetric("M", M)
    M[1, 0, 1] = 1e-6 * 2e3 * eps
    with pytest.raises(DomainError, match="M: expected a symmetric matrix; got relative asymmetry"):
        arrays.require_symmetric("M", M)


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_symmetry_at_any_scale(scale):
    M = scale * torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=F64)
    arrays.require_symmetric("M", M)
    M[0, 1] *= -1
    with pytest.raises(DomainError, match="M: expected a symmetric matrix"):
        arrays.require_symmetric("M", M)


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 3, 3), (3, 3)])
def test_zero_and_empty_matrices_are_symmetric(shape):
    arrays.require_symmetric("M", torch.zeros(shape))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (3, 3, 2)])
def test_not_square(shape):
    with pytest.raises(ShapeError, match=r"M: expected shape \(..., d, d\) with d >= 1; got shape"):
        arrays.require_symmetric("M", torch.zeros(shape))


def test_batches_that_broadcast():
    assert arrays.require_batch(a=torch.Size([3, 1]), b=torch.Size([4])) == (3, 4)
    assert arrays.require_batch(a=torch.Size([0]), b=torch.Size([1])) == (0,)


@pytest.mark.parametrize(("one", "two"), [((3,), (2,)), ((0,), (3,)), ((3, 1), (2, 4))])
def test_batches_that_do_not(one, two):
    with pytest.raises(ShapeError) as caught:
        arrays.require_batch(a=torch.Size(one), b=torch.Size(two))
    expected = "leading batch dimensions that broadcast"
    assert str(caught.value) == f"a, b: expected {expected}; got a: {one}, b: {two}"


@pytest.mark.parametrize("shapes", [(), ((),), ((2,),), ((2, 1), (3,)), ((1, 0), (4, 1, 1))])
def test_broadcast_shape_is_that_of_torch(shapes):
    sizes = [torch.Size(shape) for shape in shapes]
    common = arrays.broadcast_shape(*sizes)
    assert isinstance(common, torch.Size)
    assert common == torch.broadcast_shapes(*sizes)


def test_first_call_does_not_import_sympy():
    # torch.broadcast_shapes imports it, which takes 0.7 s.
    code = """
import sys
import numpy as np
from posquad import PopulationRisk, gradient_descent
gradient_descent(PopulationRisk(np.eye(3, 1)), np.full((2, 3, 1), 0.5), step=0.05, max_steps=2)
print("sympy" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


# Numbers.


@pytest.mark.parametrize(
    "value", [2, 2.0, np.float32(2), np.int8(2), np.array(2.0), torch.tensor(2.0), torch.tensor(2)]
)
def test_positive_numbers(value):
    number = arrays.positive_number("step", value)
    assert type(number) is float
    assert number == 2.0


GRADED_SCALAR = torch.tensor(2.0, requires_grad=True)
NOT_NUMBERS = {
    "nan": np.nan,
    "inf": np.inf,
    "negative": -1.0,
    "None": None,
    "string": "1",
    "complex": 1j,
    "array": np.ones(2),
    "tensor": torch.ones(1),
    "0-d string": np.array("abc"),
    "0-d numeral": np.array("3"),
    "0-d None": np.array(None),
    "0-d complex": np.array(1j),
    "complex tensor": torch.tensor(1j),
    "huge integer": 10**400,
}


@pytest.mark.parametrize("name", NOT_NUMBERS)
def test_not_positive_numbers(name):
    value = NOT_NUMBERS[name]
    for zero, kind in ((False, "> 0"), (True, ">= 0")):
        with pytest.raises(DomainError) as caught:
            arrays.positive_number("step", value, zero=zero)
        assert str(caught.value) == f"step: expected a finite number {kind}; got {value!r}"


def test_a_number_that_requires_grad():
    """Reads the value; torch's warning about it is not for the user of a step size."""
    assert arrays.positive_number("step", GRADED_SCALAR) == 2.0


def test_zero_is_a_choice():
    assert arrays.positive_number("tolerance", 0, zero=True) == 0.0
    assert arrays.positive_integer("steps", 0, zero=True) == 0
    with pytest.raises(DomainError, match="got 0"):
        arrays.positive_number("tolerance", 0)
    with pytest.raises(DomainError, match="expected an integer >= 1; got 0"):
        arrays.positive_integer("steps", 0)


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3)])
def test_positive_integers(value):
    number = arrays.positive_integer("k", value)
    assert type(number) is int
    assert number == 3


@pytest.mark.parametrize("value", [True, 3.0, "3", None, -1, np.bool_(True), [3], np.nan])
def test_not_positive_integers(value):
    with pytest.raises(DomainError) as caught:
        arrays.positive_integer("k", value)
    assert str(caught.value) == f"k: expected an integer >= 1; got {value!r}"


# Errors.

EXAMPLES = [
    ShapeError("U", expected="a", got="b"),
    DtypeError("U", expected="a", got="b"),
    NonFiniteError("U", expected="a", got="b"),
    DomainError("U", expected="a", got="b"),
    errors.RowError("U", expected="a", got="b", found="b", row=3),
    errors.InfeasibleError("U", expected="a", got="b", farkas=torch.ones(2)),
    errors.MissingExtraError("U", expected="a", got="b"),
    RankDeficientError("U", expected="a", got="b", singular_values=torch.tensor([1.0, 0.0])),
    FiberError("U", expected="a", got="b", distance=0.5),
    TangencyError("U", expected="a", got="b", distance=0.5),
]


def test_every_error_is_in_the_examples():
    found = {
        e for e in vars(errors).values() if isinstance(e, type) and e.__module__ == errors.__name__
    }
    # These two are not about an argument.
    others = {errors.Interrupted, errors.IdentifiabilityWarning}
    assert found == {PosquadError, *others, *map(type, EXAMPLES)}


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_errors_say_argument_expected_and_got(error):
    assert str(error) == "U: expected a; got b"
    assert (error.argument, error.expected, error.got) == ("U", "a", "b")
    builtin = {DtypeError: TypeError, errors.MissingExtraError: ImportError}.get(
        type(error), ValueError
    )
    assert isinstance(error, PosquadError)
    assert isinstance(error, builtin)


@pytest.mark.parametrize(
    "error", [*EXAMPLES, errors.Interrupted(1.0)], ids=lambda e: type(e).__name__
)
def test_errors_travel_between_processes(error):
    """A pool returns an error by pickling it; one that cannot be restored breaks the pool."""
    for restored in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(restored) is type(error)
        assert str(restored) == str(error)
        assert vars(restored).keys() == vars(error).keys()
