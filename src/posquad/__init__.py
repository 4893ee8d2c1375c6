"""Positive quadratic networks f_U(x) = x'UU'x: geometry, dynamics, curvature and theory.

Names are imported when they are first used, so that `posquad --version` need not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from posquad._version import __version__ as __version__

if TYPE_CHECKING:
    from posquad import certificates as certificates
    from posquad import core as core
    from posquad import curvature as curvature
    from posquad import dipy as dipy
    from posquad import distributed as distributed
    from posquad import dynamics as dynamics
    from posquad import errors as errors
    from posquad import estimator as estimator
    from posquad import fullspace as fullspace
    from posquad import geometry as geometry
    from posquad import labels as labels
    from posquad import measurements as measurements
    from posquad import objectives as objectives
    from posquad import predictor as predictor
    from posquad import problems as problems
    from posquad import recovery as recovery
    from posquad import selection as selection
    from posquad import sharper as sharper
    from posquad import status as status
    from posquad import theory as theory
    from posquad.certificates import Certificate as Certificate
    from posquad.certificates import certify as certify
    from posquad.core.errors import IdentifiabilityWarning as IdentifiabilityWarning
    from posquad.core.errors import Interrupted as Interrupted
    from posquad.core.status import Status as Status
    from posquad.curvature import Spectrum as Spectrum
    from posquad.curvature import effective_spectrum as effective_spectrum
    from posquad.curvature import operator_bounds as operator_bounds
    from posquad.curvature import operator_deviation as operator_deviation
    from posquad.curvature import population_spectrum as population_spectrum
    from posquad.dynamics import Trajectory as Trajectory
    from posquad.dynamics import gradient_descent as gradient_descent
    from posquad.dynamics import gradient_flow as gradient_flow
    from posquad.dynamics import predictor_step as predictor_step
    from posquad.problems import Dense as Dense
    from posquad.problems import GaussianPopulation as GaussianPopulation
    from posquad.problems import LeastSquares as LeastSquares
    from posquad.problems import PopulationRisk as PopulationRisk
    from posquad.problems import RankOne as RankOne
    from posquad.problems import SmoothObjective as SmoothObjective
    from posquad.recovery import Recovery as Recovery
    from posquad.recovery import recover as recover
    from posquad.recovery import spectral_initializer as spectral_initializer

_NAMES = {
    "certificates": ("Certificate", "certify"),
    "core.errors": ("IdentifiabilityWarning", "Interrupted"),
    "core.status": ("Status",),
    "curvature": (
        "Spectrum",
        "effective_spectrum",
        "operator_bounds",
        "operator_deviation",
        "population_spectrum",
    ),
    "dynamics": ("Trajectory", "gradient_descent", "gradient_flow", "predictor_step"),
    "problems": (
        "Dense",
        "GaussianPopulation",
        "LeastSquares",
        "PopulationRisk",
        "RankOne",
        "SmoothObjective",
    ),
    "recovery": ("Recovery", "recover", "spectral_initializer"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
_SUBMODULES = (
    *("certificates", "core", "curvature", "dipy", "distributed", "dynamics", "errors"),
    *("estimator", "fullspace"),
    *("geometry", "labels", "measurements", "objectives", "predictor", "problems", "recovery"),
    *("selection", "sharper", "status", "theory"),
)


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"posquad.{name}")
    if name in _HOME:
        value = getattr(import_module(f"posquad.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'posquad' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_SUBMODULES})
