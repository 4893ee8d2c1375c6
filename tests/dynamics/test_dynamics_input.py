"""Bad input of dynamics and theory: refused before any work, with argument, expected and got."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from posquad import (
    LeastSquares,
    PopulationRisk,
    RankOne,
    SmoothObjective,
    gradient_descent,
    gradient_flow,
    theory,
)
from posquad.core.errors import (
    DomainError,
    DtypeError,
    NonFiniteError,
    PosquadError,
    RankDeficientError,
    ShapeError,
)
from posquad.core.status import Status
from posquad.theory import Signal, effective

NAN, INF = float("nan"), float("inf")
WRONG = (DtypeError, DomainError)  # for a value of a wrong type either says what is wrong


def _never(Q: Tensor) -> Tensor:
    raise AssertionError("the objective was evaluated before the input was checked")


UNTOUCHED = SmoothObjective(_never, 3)
U0 = np.array([[1.0, 0.0], [0.5, 1.0], [0.0, 0.25]])


def refuses(error: type | tuple, argument: str, call: Callable, *args: object, **kw: object):
    with pytest.raises(error) as caught:
        call(*args, **kw)
    problem = caught.value
    assert isinstance(problem, PosquadError)
    assert problem.argument == argument
    assert problem.expected
    assert problem.got
    assert str(problem) == f"{argument}: expected {problem.expected}; got {problem.got}"
    return problem


def flow(**changes: object) -> object:
    options = {"objective": UNTOUCHED, "U0": U0, "t_final": 1.0} | changes
    return gradient_flow(options.pop("objective"), options.pop("U0"), **options)


def descent(**changes: object) -> object:
    options = {"objective": UNTOUCHED, "U0": U0, "step": 0.1, "max_steps": 3} | changes
    return gradient_descent(options.pop("objective"), options.pop("U0"), **options)


BOTH = pytest.mark.parametrize("call", [flow, descent])

NOT_POSITIVE = [0, 0.0, -1, -1e-300, NAN, INF, -INF]
NOT_A_NUMBER = [None, "1", 1j, [1.0], {}, np.ones(1), np.array("a"), np.array(1j), torch.tensor(1j)]


# The objective and the factor.


@BOTH
@pytest.mark.parametrize("objective", [None, 3, "risk", np.eye(3), lambda U: U.sum()])
def test_objective_must_be_one(call: Callable, objective: object) -> None:
    refuses(DtypeError, "objective", call, objective=objective)


@BOTH
@pytest.mark.parametrize(
    ("factor", "error"),
    [
        (np.ones(3), ShapeError),
        (np.float64(1.0), ShapeError),
        (np.eye(4, 2), ShapeError),  # d of the objective is 3
        (np.eye(3, 4), ShapeError),  # r > d
        (np.ones((3, 0)), ShapeError),
        (np.full((3, 1), NAN), NonFiniteError),
        (np.array([[1.0], [INF], [0.0]]), NonFiniteError),
        (torch.full((3, 1), NAN), NonFiniteError),
        (1j * np.eye(3, 2), DtypeError),
        (torch.eye(3, 2, dtype=torch.complex128), DtypeError),
        (np.eye(3, 2, dtype=np.float16), DtypeError),
        (np.array([["a"], ["b"], ["c"]]), DtypeError),
        (None, DtypeError),
        ("U0", DtypeError),
        ([[1.0], [1.0, 2.0], [3.0]], (DtypeError, ShapeError)),  # ragged
        (np.zeros((3, 1)), RankDeficientError),
        (np.ones((3, 2)), RankDeficientError),
        (np.array([[1.0, 1.0], [1.0, 1.0 + 1e-16], [1.0, 1.0]]), RankDeficientError),
        (np.stack([np.eye(3, 2), np.ones((3, 2))]), RankDeficientError),
    ],
    ids=lambda v: "" if isinstance(v, type | tuple) else repr(v)[:24],
)
def test_initial_factor(call: Callable, factor: object, error: type) -> None:
    refuses(error, "U0", call, U0=factor)


@BOTH
def test_rank_deficiency_shows_the_singular_values(call: Callable) -> None:
    batch = np.stack([np.eye(3, 2), np.ones((3, 2))])
    problem = refuses(RankDeficientError, "U0", call, U0=batch)
    np.testing.assert_allclose(problem.singular_values, [np.sqrt(6), 0], atol=1e-15)
    assert "element 1 of 2" in problem.got


@pytest.mark.parametrize("call", [flow, descent])
@pytest.mark.parametrize("kind", ["responses", "inputs", "population"])
def test_batches_of_factor_and_objective_must_fit(call: Callable, kind: str) -> None:
    X, y = np.ones((5, 4, 3)), np.ones((5, 4))
    objective = {
        "responses": lambda: LeastSquares(RankOne(X[0]), y),
        "inputs": lambda: LeastSquares(RankOne(X), y[0]),
        "population": lambda: PopulationRisk(np.stack([U0] * 5)),
    }[kind]()
    with pytest.raises(ShapeError):
        call(objective=objective, U0=np.stack([U0] * 4))


def test_batches_of_step_and_objective_must_fit() -> None:
    objective = LeastSquares(RankOne(np.ones((4, 3))), np.ones((5, 4)))
    with pytest.raises(ShapeError):
        descent(objective=objective, step=np.full(2, 0.1))


def test_single_precision_objective_refuses_a_double_factor() -> None:
    objective = LeastSquares(RankOne(np.ones((4, 3), np.float32)), np.ones(4, np.float32))
    refuses(DtypeError, "U0", flow, objective=objective)


# Numbers.


@pytest.mark.parametrize("value", NOT_POSITIVE)
@pytest.mark.parametrize("name", ["t_final", "rtol", "rk4 step", "descent step", "divergence"])
def test_positive_numbers(name: str, value: float) -> None:
    call, argument, more = _entry(name)
    refuses((DomainError, NonFiniteError), argument, call, **{argument: value}, **more)


@pytest.mark.parametrize("value", [*NOT_A_NUMBER[1:], 10**400], ids=lambda v: repr(v)[:16])
@pytest.mark.parametrize("name", ["t_final", "rtol", "rk4 step", "divergence"])
def test_real_numbers(name: str, value: object) -> None:
    call, argument, more = _entry(name)
    refuses(WRONG, argument, call, **{argument: value}, **more)


@pytest.mark.parametrize("name", ["t_final", "rtol", "rk4 step", "descent step", "divergence"])
def test_none_is_not_a_number(name: str) -> None:
    call, argument, more = _entry(name)
    refuses(WRONG, argument, call, **{argument: None}, **more)


@pytest.mark.parametrize(
    "value",
    ["0.1", 1j, {}, [0.1, "a"], [[0.1], [0.1, 0.2]], np.array("a"), 10**400],
    ids=lambda v: repr(v)[:16],
)
def test_descent_step_must_be_real(value: object) -> None:
    refuses((*WRONG, ShapeError), "step", descent, step=value)


@pytest.mark.parametrize("step", [[0.1, 0.0], [0.1, -1.0], [0.1, NAN], np.array([INF, 0.1])])
def test_each_descent_step_must_be_positive(step: object) -> None:
    refuses((DomainError, NonFiniteError), "step", descent, step=step, U0=np.stack([U0, U0]))


def test_descent_steps_must_fit_the_batch() -> None:
    problem = refuses(ShapeError, "U0, step", descent, step=np.full(3, 0.1), U0=np.stack([U0, U0]))
    assert "(3,)" in problem.got
    assert "(2,)" in problem.got


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (flow, "loss_tolerance"),
        (flow, "gradient_tolerance"),
        (flow, "atol"),
        (descent, "loss_tolerance"),
        (descent, "gradient_tolerance"),
    ],
)
@pytest.mark.parametrize("value", [-1e-300, NAN, INF, "0", 1j])
def test_tolerances_are_not_negative(call: Callable, name: str, value: object) -> None:
    refuses(WRONG, name, call, **{name: value})


@BOTH
@pytest.mark.parametrize("value", [0, -1, 1.0, 2.5, NAN, "3", None, True, [3]])
def test_step_limit_is_a_positive_integer(call: Callable, value: object) -> None:
    refuses(WRONG, "max_steps", call, max_steps=value)


@pytest.mark.parametrize("value", [0, -1, 1.0, None, True])
def test_record_every_is_a_positive_integer(value: object) -> None:
    refuses(WRONG, "record_every", descent, record_every=value)


def test_numbers_of_other_kinds_are_numbers() -> None:
    risk = PopulationRisk(np.eye(3, 2))
    for t_final in (1, np.float32(1), Fraction(1), np.array(1.0), torch.tensor(1.0)):
        assert gradient_flow(risk, U0, t_final=t_final, times=[]).times[-1] == 1.0
    tracked = torch.tensor(1.0, requires_grad=True)
    assert gradient_flow(risk, U0, t_final=tracked, times=[]).times[-1] == 1.0
    limit = gradient_descent(risk, U0, step=np.float32(0.01), max_steps=np.int32(2))
    assert limit.status is Status.STEPS_EXHAUSTED


def _entry(name: str) -> tuple[Callable, str, dict]:
    return {
        "t_final": (flow, "t_final", {}),
        "rtol": (flow, "rtol", {}),
        "rk4 step": (flow, "step", {"method": "rk4"}),
        "descent step": (descent, "step", {}),
        "divergence": (descent, "divergence", {}),
    }[name]


# Options of the flow.


@pytest.mark.parametrize(
    "times",
    [
        [-0.1, 0.5],
        [0.5, 1.5],
        [0.5, 0.5],
        [0.5, 0.4],
        [[0.1, 0.2]],
        0.5,
        [0.1, NAN],
        [0.1, INF],
        np.array([0.1, 0.2j]),
        "soon",
        [0.1, "a"],
        [0.1, [0.2]],
        {},
    ],
    ids=lambda v: repr(v)[:24],
)
def test_times(times: object) -> None:
    refuses((DomainError, NonFiniteError, DtypeError, ShapeError), "times", flow, times=times)


def test_times_that_single_precision_cannot_tell_apart() -> None:
    single = U0.astype(np.float32)
    refuses(DomainError, "times", flow, U0=single, times=[0.5, 0.5 + 1e-12])


@pytest.mark.parametrize("method", ["euler", "RK4", None, 4, ["rk4"]])
def test_unknown_method(method: object) -> None:
    problem = refuses(WRONG, "method", flow, method=method)
    assert "'adaptive'" in problem.expected
    assert "'rk4'" in problem.expected


def test_step_goes_with_rk4_only() -> None:
    refuses(DomainError, "step", flow, method="rk4")
    refuses(DomainError, "step", flow, step=0.1)


# Callables.


@BOTH
@pytest.mark.parametrize("name", ["stop", "progress"])
@pytest.mark.parametrize("value", [3, "no", True, [len]])
def test_hooks_must_be_callable(call: Callable, name: str, value: object) -> None:
    refuses(DtypeError, name, call, **{name: value})


@BOTH
@pytest.mark.parametrize("value", [{"norm": 3}, {"norm": None}, [len], len, 3, "norm"])
def test_observables_must_be_named_callables(call: Callable, value: object) -> None:
    refuses(DtypeError, "observables", call, observables=value)


@pytest.mark.parametrize("answer", [None, "yes", np.ones(7, bool), [True, False, True]])
def test_answer_of_the_stopping_rule(answer: object) -> None:
    # Asked at time zero, so a rule that cannot be used is known before the first step.
    with pytest.raises(PosquadError) as caught:
        gradient_flow(PopulationRisk(U0), U0, t_final=1.0, stop=lambda U, t: answer)
    assert caught.value.argument == "stop"


@pytest.mark.parametrize("answer", [None, "large", {}])
def test_answer_of_an_observable(answer: object) -> None:
    with pytest.raises(PosquadError) as caught:
        gradient_flow(PopulationRisk(U0), U0, t_final=1.0, observables={"size": lambda U: answer})
    assert "size" in str(caught.value)


# Theory: numbers.

SIGNAL = Signal.from_eigenvalues(8, [1.0, 0.5])

TAKES_SIGNAL = {
    "C_star": lambda s: theory.C_star(s),
    "L_star": lambda s: theory.L_star(s, 2, 10),
    "N_star": lambda s: theory.N_star(s, 0.1),
    "alpha_star": lambda s: theory.alpha_star(s, 2),
    "beta_star": theory.beta_star,
    "descent_predictor_envelope": lambda s: theory.descent_predictor_envelope(s, 0.01, 1, 1e-6),
    "flow_predictor_envelope": lambda s: theory.flow_predictor_envelope(s, 0.01, 1),
    "descent_envelope": lambda s: theory.descent_envelope(s, 0.01, 1, 1e-6),
    "effective_curvature_bounds": theory.effective_curvature_bounds,
    "epsilon_star": theory.epsilon_star,
    "factor_predictor_bounds": lambda s: theory.factor_predictor_bounds(s, 2, 10),
    "flow_envelope": lambda s: theory.flow_envelope(s, 0.01, 1),
    "gamma_star": theory.gamma_star,
    "initialization_radius": theory.initialization_radius,
    "oracle_step": lambda s: theory.oracle_step(s, 2, 10),
    "rho_n": theory.rho_n,
    "rho_star": lambda s: theory.rho_star(s, 2, 10),
    "sample_scale": lambda s: theory.sample_scale(s, 0.1),
    "secant_bounds": lambda s: theory.secant_bounds(s, 2, 10),
    "sigma_star": theory.sigma_star,
    "truncation_bounds": lambda s: theory.truncation_bounds(s, 0.1),
}
TAKES_NUMBERS = {
    "deviation_probability",
    "deviation_sample_size",
    "empirical_coercivity",
    "kappa_d",
    "loss_bounds",
    "population_coercivity",
    "response_mean_probability",
}


def test_every_public_function_of_theory_is_tried_here() -> None:
    # Those of posquad.theory.effective are tried in test_sharper.py.
    elsewhere = {"Signal"} | set(effective.__all__)
    assert set(theory.__all__) == set(TAKES_SIGNAL) | TAKES_NUMBERS | elsewhere


@pytest.mark.parametrize("name", sorted(TAKES_SIGNAL))
@pytest.mark.parametrize("value", [np.eye(3, 2), None], ids=["factor", "None"])
def test_signal_must_be_one(name: str, value: object) -> None:
    # A factor in place of its Signal is the likely mistake; say so.
    refuses(DtypeError, "signal", TAKES_SIGNAL[name], value)


@pytest.mark.parametrize("value", [*NOT_POSITIVE, "2", None, 1j], ids=repr)
@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("epsilon", lambda v: theory.deviation_probability(10, 3, v)),
        ("epsilon", lambda v: theory.deviation_sample_size(3, v, 0.1)),
        ("epsilon", lambda v: theory.response_mean_probability(10, v)),
        ("m", lambda v: theory.rho_star(SIGNAL, v, 10)),
        ("M", lambda v: theory.rho_star(SIGNAL, 2, v)),
        ("m", lambda v: theory.alpha_star(SIGNAL, v)),
        ("m", lambda v: theory.L_star(SIGNAL, v, 10)),
        ("M", lambda v: theory.L_star(SIGNAL, 2, v)),
        ("m", lambda v: theory.oracle_step(SIGNAL, v, 10)),
        ("m", lambda v: theory.secant_bounds(SIGNAL, v, 10)),
        ("M", lambda v: theory.factor_predictor_bounds(SIGNAL, 2, v)),
        ("m", lambda v: theory.loss_bounds(v, 10)),
        ("M", lambda v: theory.loss_bounds(2, v)),
        ("m", lambda v: theory.C_star(SIGNAL, v)),
        ("m", lambda v: theory.flow_envelope(SIGNAL, 0.01, 1.0, m=v)),
        ("m", lambda v: theory.descent_envelope(SIGNAL, 0.01, 1, 1e-6, m=v)),
        ("step", lambda v: theory.descent_envelope(SIGNAL, 0.01, 1, v)),
        ("eigenvalues", lambda v: Signal.from_eigenvalues(3, [1.0, v])),
    ],
)
def test_positive_arguments_of_theory(argument: str, call: Callable, value: object) -> None:
    refuses((*WRONG, NonFiniteError), argument, call, value)


@pytest.mark.parametrize("value", [-1e-9, NAN, INF, "0", None])
@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("epsilon", lambda v: theory.empirical_coercivity(3, v)),
        ("epsilon", lambda v: theory.effective_curvature_bounds(SIGNAL, v)),
        ("gamma", lambda v: theory.truncation_bounds(SIGNAL, v)),
    ],
)
def test_nonnegative_numbers_of_theory(argument: str, call: Callable, value: object) -> None:
    refuses(WRONG, argument, call, value)


@pytest.mark.parametrize("value", [-1e-9, NAN, "0", None])
@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("distance", lambda v: theory.flow_envelope(SIGNAL, v, 1.0)),
        ("t", lambda v: theory.flow_envelope(SIGNAL, 0.01, v)),
        ("distance", lambda v: theory.descent_envelope(SIGNAL, v, 1, 1e-6)),
        ("k", lambda v: theory.descent_envelope(SIGNAL, 0.01, v, 1e-6)),
        ("t", lambda v: theory.flow_envelope(SIGNAL, 0.01, np.array([1.0, v]))),
    ],
)
def test_arguments_of_envelopes(argument: str, call: Callable, value: object) -> None:
    refuses((*WRONG, NonFiniteError), argument, call, value)


@pytest.mark.parametrize("value", [0, 1, -0.1, 1.5, NAN, INF, "0.1", None])
@pytest.mark.parametrize(
    "call",
    [
        lambda v: theory.deviation_sample_size(3, 1.0, v),
        lambda v: theory.N_star(SIGNAL, v),
        lambda v: theory.sample_scale(SIGNAL, v),
    ],
    ids=["deviation_sample_size", "N_star", "sample_scale"],
)
def test_probabilities(call: Callable, value: object) -> None:
    refuses(WRONG, "delta", call, value)


@pytest.mark.parametrize("value", [0, -3, 2.0, NAN, "3", None, True])
@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("d", theory.kappa_d),
        ("d", theory.population_coercivity),
        ("d", lambda v: theory.empirical_coercivity(v, 0.5)),
        ("d", lambda v: theory.deviation_probability(10, v, 1.0)),
        ("d", lambda v: theory.deviation_sample_size(v, 1.0, 0.1)),
        ("d", lambda v: Signal.from_eigenvalues(v, [1.0])),
        ("n", lambda v: theory.deviation_probability(v, 3, 1.0)),
        ("n", lambda v: theory.response_mean_probability(v, 1.0)),
    ],
)
def test_counts_of_theory(argument: str, call: Callable, value: object) -> None:
    refuses(WRONG, argument, call, value)


@pytest.mark.parametrize(
    "call",
    [
        theory.loss_bounds,
        lambda m, M: theory.rho_star(SIGNAL, m, M),
        lambda m, M: theory.L_star(SIGNAL, m, M),
        lambda m, M: theory.oracle_step(SIGNAL, m, M),
        lambda m, M: theory.secant_bounds(SIGNAL, m, M),
        lambda m, M: theory.factor_predictor_bounds(SIGNAL, m, M),
        lambda m, M: theory.C_star(SIGNAL, m, M),
    ],
)
def test_operator_bounds_must_be_ordered(call: Callable) -> None:
    refuses(DomainError, "m", call, 3.0, 2.0)


def test_default_upper_bound_still_limits_m() -> None:
    refuses(DomainError, "m", theory.C_star, SIGNAL, 12.0)  # M = d + 3 = 11


def test_step_above_the_oracle_step() -> None:
    limit = theory.oracle_step(SIGNAL, 1, 11)
    assert theory.descent_envelope(SIGNAL, 0.01, 1, limit) < 0.01
    problem = refuses(
        DomainError, "step", theory.descent_envelope, SIGNAL, 0.01, 1, step=1.001 * limit
    )
    assert f"{limit:.6e}" in problem.expected


@pytest.mark.parametrize("gamma", [0.25, 0.3, 10.0])
def test_truncation_needs_a_gap(gamma: float) -> None:
    refuses(DomainError, "gamma", theory.truncation_bounds, SIGNAL, gamma)


# Theory: the signal.


@pytest.mark.parametrize(
    ("d", "eigenvalues", "error"),
    [
        (3, [], ShapeError),
        (2, [1.0, 1.0, 1.0], ShapeError),
        (3, 5.0, (DtypeError, ShapeError)),
        (3, None, DtypeError),
        (3, "12", WRONG),
        (3, np.eye(2), (DomainError, ShapeError)),
    ],
)
def test_eigenvalues(d: int, eigenvalues: object, error: type) -> None:
    refuses(error, "eigenvalues", Signal.from_eigenvalues, d, eigenvalues)


@pytest.mark.parametrize(
    ("factor", "error"),
    [
        (np.ones((2, 3, 1)), ShapeError),
        (np.ones(3), ShapeError),
        (np.eye(2, 3), ShapeError),
        (np.ones((3, 2)), RankDeficientError),
        (np.full((3, 1), NAN), NonFiniteError),
        (1j * np.ones((3, 1)), DtypeError),
        (None, DtypeError),
    ],
)
def test_signal_factor(factor: object, error: type) -> None:
    refuses(error, "U_star", Signal.from_factor, factor)
