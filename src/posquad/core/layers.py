"""The order of the subpackages: each may import only itself and those earlier in the list."""

from __future__ import annotations

__all__ = ["LAYERS", "allowed", "subpackage_of"]

LAYERS = (
    "core",
    "geometry",
    "problems",
    "dynamics",
    "curvature",
    "theory",
    "selection",
    "certificates",
    "recovery",
    "distributed",
    "dipy",
    "estimator",
    "io",
    "report",
    "sweep",
    "experiments",
    "cli",
)


def subpackage_of(module: str) -> str:
    """Subpackage of a module, given its full name; empty for top-level modules.

    >>> subpackage_of("posquad.geometry.frames"), subpackage_of("posquad.errors")
    ('geometry', '')
    """
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS else ""


def allowed(importer: str, imported: str) -> bool:
    """Whether one subpackage may import another.

    >>> allowed("geometry", "core"), allowed("core", "geometry")
    (True, False)
    """
    return LAYERS.index(imported) <= LAYERS.index(importer)
