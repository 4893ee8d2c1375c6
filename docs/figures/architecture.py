"""The subpackages and which of them each one imports, read from the source."""

from __future__ import annotations

import matplotlib.pyplot as plt

from posquad.core.layers import LAYERS, subpackage_of
from posquad.core.sources import ROOT, imported_modules
from posquad.report.palette import COLOURS, INK, RULE


def subpackage_imports() -> dict[str, set[str]]:
    """For each subpackage the others that its modules import."""
    found: dict[str, set[str]] = {}
    for name in LAYERS:
        modules = {m for path in (ROOT / name).rglob("*.py") for m in imported_modules(path)}
        found[name] = {subpackage_of(module) for module in modules} - {name, ""}
    return found


def direct(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """The imports without those that also follow from another import."""
    reached: dict[str, set[str]] = {}
    for name in LAYERS:  # a subpackage imports only those before it in the list
        reached[name] = imports[name].union(*(reached[other] for other in imports[name]))
    return {
        name: {o for o in others if not any(o in reached[via] for via in others - {o})}
        for name, others in imports.items()
    }


def heights(imports: dict[str, set[str]]) -> dict[str, int]:
    """How many subpackages lie on the longest chain of imports below each one."""
    found: dict[str, int] = {}
    for name in LAYERS:
        found[name] = max((found[other] + 1 for other in imports[name]), default=0)
    return found


def draw():
    """Boxes on the level of their longest chain of imports; lines for imports not implied."""
    imports = subpackage_imports()
    height = heights(imports)
    levels = [
        [n for n in LAYERS if height[n] == level] for level in range(max(height.values()) + 1)
    ]
    place = {
        name: (2.4 * (k - (len(row) - 1) / 2), level)
        for level, row in enumerate(levels)
        for k, name in enumerate(row)
    }
    figure, axes = plt.subplots(figsize=(6.6, 0.72 * len(levels) + 0.6))
    for name, others in direct(imports).items():
        for other in others:
            (x0, y0), (x1, y1) = place[name], place[other]
            bend = 0.0 if y0 - y1 == 1 else -0.09 * (y0 - y1)
            axes.annotate(
                "", (x1, y1 + 0.3), (x0, y0 - 0.3),
                arrowprops={"arrowstyle": "-|>", "color": RULE, "lw": 1.3, "shrinkA": 0,
                            "shrinkB": 0, "connectionstyle": f"arc3,rad={bend}"},
            )  # fmt: skip
    box = {"boxstyle": "round,pad=0.35", "facecolor": "none", "edgecolor": COLOURS[0], "lw": 1.2}
    for name, (x, y) in place.items():
        axes.text(x, y, name, ha="center", va="center", color=INK, bbox=box)
    widest = max(len(row) for row in levels)
    axes.set(xlim=(-1.3 * widest, 1.3 * widest), ylim=(-0.6, len(levels) - 0.4))
    axes.axis("off")
    return figure
