"""What every experiment owes the report: panels, tables, words, repeatability, and pictures."""

from __future__ import annotations

import copy
import dataclasses
import functools
import re
import tempfile
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from drawing_support import OnlySvg
from posquad.experiments.framework import describe_parameters
from posquad.experiments.registry import EXPERIMENTS
from posquad.report.figures import picture, save_figures, themed_svg
from posquad.report.formulas import as_html, as_plain
from posquad.report.palette import COLOURS, DARK

# Labels of the subfigures and tables of section 5, in the paper's order.
PAPER_PANELS = [
    "fig:exp1-orthogonal-invariance",
    "fig:exp1-exact-recurrence",
    "fig:exp1-discretization",
    "fig:exp2-rate-vs-curvature",
    "fig:exp2-metric-comparison",
    "fig:exp2-scaled-trajectories",
    "fig:exp3-basin-ratio",
    "fig:exp3-recovery-rates",
    "fig:exp4-conditioning-flow",
    "fig:exp4-rate-comparison",
    "fig:exp4-stability-map",
    "fig:exp5-residual-decay",
    "fig:exp5-projection-agreement",
    "fig:exp5-redundant-paths",
    "fig:exp6-trace-gap",
    "fig:exp6-entropy",
    "fig:exp6-finite-step",
    "fig:exp6-minimum-trace-face",
    "fig:exp6-full-psd",
]
PAPER_TABLES = {
    "tab:effective-curvature-rates": (5, 4),  # rows, columns
    "tab:spectral-initialization-recovery": (5, 5),
    "tab:conditioning-flow-rates": (4, 5),
    "tab:bregman-selection-results": (4, 5),
}

# The defaults with their full grids, but few seeds, samples and steps; the quick run, likewise.
FEWER = {
    "exp1": {"seeds": 2, "steps": 20},
    "exp2": {"seeds": 2, "n": 100, "rk4_step": 0.05},
    "exp3": {"trials": 3, "budgets": (10, 30, 100), "tabled_budget": 30, "flow_steps": 5},
    "exp4": {"map_steps": 50, "rk4_step": 0.1},
    "exp5": {"tolerance": 1e-9},
    "exp6": {"samples": 5},
    "exp7": {"seeds": 2, "n": 2, "d": 2, "max_steps": 60, "residual_tolerance": 1e-3}
    | {"law_problems": 2, "law_starts": (1.0, 1e-4, 1e-5, 1e-6)},
    "exp8": {"d": (3, 4, 5), "r": (1, 1, 2), "largest_ratios": (128, 64, 16), "trials": (3, 2, 2)},
}
MINIMAL = {
    "exp1": {"d": 2, "r": 1, "n": 3, "rotations": 1, "seeds": 2, "steps": 1, "etas": (1e-3, 5e-4)},
    "exp2": {"d": 2, "r": 1, "n": 20, "lambda_r": (0.5,), "seeds": 1, "records": 3},
    "exp3": {"d": 3, "r": 1, "ratios": (16,), "trials": 2, "budgets": (5,), "tabled_budget": 5,
             "flow_steps": 5},
    "exp4": {"d": 3, "kappa": (2.0,), "multipliers": (100.0,), "perturbations": (0.02,),
             "records": 3, "map_steps": 3},
    "exp5": {"epsilons": (0.3,), "tolerance": 1e-9},
    "exp6": {"epsilons": (0.3, 0.1), "tie_window": 2, "etas": (0.5, 0.25), "step_window": 2,
             "samples": 1},
    "exp7": {"dials": (0.5,), "epsilons": (0.5,), "seeds": 2, "n": 1, "d": 2, "law_dials": (0.1,),
             "law_problems": 1, "law_starts": (0.1,)},
    "exp8": {"d": (3,), "r": (1,), "ratios": (64,), "largest_ratios": (64,), "trials": (2,),
             "steps": (20,)},
}  # fmt: skip
KEYS = list(EXPERIMENTS)


def finished(key, changes):
    experiment = EXPERIMENTS[key]
    return experiment.run(experiment.parameters(**changes), lambda fraction: None)


@functools.cache
def run_of(size, key):
    """One run of each size in this module; what a run returns is not changed by a test."""
    if size == "quick" and not EXPERIMENTS[key].quick:
        return run_of("grid", key)
    changes = {
        "grid": FEWER[key],
        "quick": {**EXPERIMENTS[key].quick, **FEWER[key]},
        "minimal": MINIMAL[key],
    }
    return finished(key, changes[size])


@functools.cache
def picture_of(panel, size, key):
    """The figure of a panel, which no test changes."""
    return picture(panel, run_of(size, key))


def svg_text(figure, panel):
    with tempfile.TemporaryDirectory() as folder:
        plain = save_figures(OnlySvg(figure), Path(folder), panel.key)
        assert (Path(folder) / f"{panel.key}.svg").read_text(encoding="utf-8") == plain
    return themed_svg(plain)


@functools.cache
def svg_of(panel, key):
    return svg_text(picture_of(panel, "grid", key), panel)


SIZES = ["grid", "quick", "minimal"]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("key", KEYS)
def test_panels_draw_and_describe(size, key):
    """A warning of matplotlib, for instance an empty logarithmic axis, is an error here."""
    for panel in EXPERIMENTS[key].panels:
        figure = picture_of(panel, size, key)
        if size == "minimal":  # the grid is drawn below, and quick is a coarser grid
            figure.draw_without_rendering()
        assert len(figure.axes) == len(panel.heights)
        assert figure.axes[-1].get_xlabel()  # the axes above it share it
        assert all(axes.get_ylabel() for axes in figure.axes)
        words = panel.describe(run_of(size, key))
        assert len(words) >= 20
        assert not re.search(r"\b(nan|inf|None)\b", words), words


@pytest.mark.parametrize("key", KEYS)
def test_tables_have_rows_as_long_as_their_header(key):
    for size, table in product(SIZES, EXPERIMENTS[key].tables):
        rows = table.rows(run_of(size, key))
        assert rows
        for row in rows:
            assert len(row) == len(table.header)
            assert all(isinstance(cell, str) and cell for cell in row)
            assert not any("nan" in cell for cell in row)


@pytest.mark.parametrize("key", KEYS)
def test_remarks_hold_only_finite_numbers(key):
    for size in SIZES:
        for remark in run_of(size, key).remarks:
            assert not re.search(r"\b(nan|inf|None)\b", remark), remark


@pytest.mark.parametrize("key", KEYS)
def test_quantities_fit_their_dimensions(key):
    for measured in (run_of(size, key) for size in SIZES):
        for name, quantity in measured.quantities.items():
            lengths = tuple(len(measured.coords[dimension]) for dimension in quantity.dims)
            assert quantity.values.shape == lengths, name
            assert quantity.values.dtype.kind in "fib", name  # so that no file needs pickle


def test_all_panels_and_tables_of_the_paper_have_a_counterpart():
    panels = [p.label for e in EXPERIMENTS.values() for p in e.panels if p.label]
    assert panels == PAPER_PANELS
    tables = {t.label: (key, t) for key, e in EXPERIMENTS.items() for t in e.tables if t.label}
    assert list(tables) == list(PAPER_TABLES)
    for label, (rows, columns) in PAPER_TABLES.items():
        key, table = tables[label]
        assert len(table.header) == columns
        assert len(table.rows(run_of("grid", key))) == rows


def test_keys_are_unique_and_fit_a_file_name():
    panels = [p.key for e in EXPERIMENTS.values() for p in e.panels]
    tables = [t.key for e in EXPERIMENTS.values() for t in e.tables]
    for keys in (panels, tables):
        assert len(set(keys)) == len(keys)
        assert all(re.fullmatch(r"exp\d-[a-z0-9-]+", key) for key in keys)
    assert [e.number for e in EXPERIMENTS.values()] == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("key", KEYS)
def test_parameters_are_documented_and_quick_ones_exist(key):
    experiment = EXPERIMENTS[key]
    for entry in describe_parameters(experiment.parameters()):
        assert entry["doc"]
        assert entry["source"] in ("paper", "chosen here")
    names = {f.name for f in dataclasses.fields(experiment.parameters)}
    assert set(experiment.quick) <= names
    assert experiment.question
    assert experiment.title


@pytest.mark.parametrize("key", KEYS)
def test_same_seed_same_arrays(key):
    again = finished(key, MINIMAL[key])
    assert list(again.quantities) == list(run_of("minimal", key).quantities)
    for name in again.quantities:
        np.testing.assert_array_equal(again[name], run_of("minimal", key)[name], err_msg=name)
    assert again.remarks == run_of("minimal", key).remarks


@pytest.mark.parametrize("key", KEYS)
def test_progress_never_goes_back(key):
    """Several multipliers, so that some descents of experiment 4 end long before the others."""
    changes = MINIMAL[key] | (
        {"multipliers": (1.0, 10_000.0), "map_steps": 60} if key == "exp4" else {}
    )
    told = []
    EXPERIMENTS[key].run(EXPERIMENTS[key].parameters(**changes), told.append)
    assert told == sorted(told)
    assert all(0 <= fraction <= 1 for fraction in told)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("exp1", "loss"),
        ("exp2", "effective"),
        ("exp3", "moment_error"),
        ("exp6", "sampled_trace"),
        ("exp7", "trace_gaps"),
        ("exp8", "radius"),
    ],
)
def test_other_seed_other_arrays(key, name):
    other = finished(key, {**MINIMAL[key], "seed": 1000})
    assert (other[name] != run_of("minimal", key)[name]).all()


@pytest.mark.parametrize("key", KEYS)
def test_svg_is_whole_repeatable_and_follows_the_page(key):
    for panel in EXPERIMENTS[key].panels:
        text = svg_of(panel, key)
        if panel is EXPERIMENTS[key].panels[0]:
            assert text == svg_text(picture(panel, run_of("grid", key)), panel)
        root = ElementTree.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.get("viewBox")
        style, rest = re.fullmatch(r"(?s).*?<style>(.*?)</style>(.*)", text).groups()
        assert "prefers-color-scheme:dark" in style.replace(" ", "")
        left = [colour for colour in DARK if colour in rest.lower()]
        assert not left, f"{panel.key} has colours that a dark page does not change: {left}"
        used = set(re.findall(r"var\((--[a-z0-9]+)\)", rest))
        assert used
        assert all(f"{name}:" in style for name in used)
        # Nothing may be loaded or run from inside an image.
        assert not re.search(r"<script|<image|(?:href|src)=\"(?!#)|@import|url\((?!#)", text)


@pytest.mark.parametrize("key", KEYS)
def test_only_colours_of_the_palette_are_drawn(key):
    """A colour of matplotlib's own would stay dark on a dark page."""
    for panel in EXPERIMENTS[key].panels:
        text = svg_of(panel, key)
        body = text[text.index("</style>") :]
        colours = {c.lower() for c in re.findall(r"#[0-9a-fA-F]{6}\b", body)}
        assert colours <= {"#ffffff"}, f"{panel.key}: {colours}"


def test_palette_is_one_to_one():
    assert len({*DARK, *DARK.values()}) == 2 * len(DARK)
    assert set(COLOURS) <= set(DARK)
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for pair in DARK.items() for colour in pair)


# What a reader is told.

SIZES_WITH_FINDINGS = ["grid", "quick"]
PUBLISHED = {
    "exp1-invariance", "exp1-recursion", "exp2-rate", "exp2-metrics", "exp3-rates", "exp3-budgets",
    "exp4-rates", "exp4-stability", "exp5-residual", "exp5-agreement", "exp6-trace-gap",
    "exp6-entropy", "exp6-face", "exp6-sampled",
}  # fmt: skip
"""The panels on which the paper prints a number that has a place there."""


@pytest.mark.parametrize("key", KEYS)
def test_every_experiment_says_what_it_found(key):
    for size in SIZES_WITH_FINDINGS:
        words = EXPERIMENTS[key].finding(run_of(size, key))
        assert len(words) > 80
        assert words.endswith(".")
        assert not re.search(r"\b(nan|inf|None)\b", words), words
        as_html(words)  # its formulas are known


@pytest.mark.parametrize("key", KEYS)
def test_published_values_are_hollow_markers(key):
    for panel in EXPERIMENTS[key].panels:
        axes = picture_of(panel, "grid", key).axes
        hollow = [
            line
            for one in axes
            for line in one.lines
            if line.get_marker() not in ("", "None", None)
            and line.get_markerfacecolor() == "none"
            and len(line.get_xdata())
        ]
        assert bool(hollow) == (panel.key in PUBLISHED), panel.key
        labels = [t.get_text() for one in axes if one.get_legend() for t in one.get_legend().texts]
        assert any("published" in label for label in labels) == bool(hollow), panel.key


def test_hollow_markers_are_where_the_paper_says():
    """Table 1 of the paper, typed here once more."""
    panel = EXPERIMENTS["exp2"].panels[0]
    top, bottom = picture_of(panel, "grid", "exp2").axes
    (hollow,) = [line for line in top.lines if line.get_markerfacecolor() == "none"]
    np.testing.assert_array_equal(
        hollow.get_xdata(), [3.008130, 2.301692, 1.658780, 1.165631, 0.834176]
    )
    np.testing.assert_array_equal(
        hollow.get_ydata(), [3.008125, 2.301375, 1.659065, 1.165867, 0.834372]
    )
    (below,) = [line for line in bottom.lines if line.get_markerfacecolor() == "none"]
    printed = [0.999998, 0.999862, 1.000172, 1.000203, 1.000234]
    np.testing.assert_allclose(below.get_ydata() + 1, printed, rtol=0, atol=1e-6)


def test_the_third_panel_of_experiment_2_shows_the_deviation_from_the_exponential():
    """Drawn from an exact exponential it is zero; from another rate, a growing deviation."""
    panel = EXPERIMENTS["exp2"].panels[2]
    measured = copy.deepcopy(run_of("grid", "exp2"))
    for rate, largest in ((1.0, 0.0), (0.9, np.expm1(0.1 * 2.0))):
        s = np.broadcast_to(np.linspace(0, 2.0, measured["scaled_time"].shape[-1]),
                            measured["scaled_time"].shape)  # fmt: skip
        dims = measured.quantities["scaled_time"].dims
        measured.add("scaled_time", s, *dims)
        measured.add("scaled_error", np.exp(-rate * s), *dims)
        lines = [line.get_ydata() for line in picture(panel, measured).axes[0].lines]
        drawn = max(abs(np.asarray(values, dtype=float)).max() for values in lines)
        assert drawn == pytest.approx(largest, abs=1e-14)


@pytest.mark.parametrize("key", KEYS)
def test_every_formula_of_an_experiment_is_known(key):
    """Captions, remarks, headers, questions and parameters; a typing error in TeX is found here."""
    experiment = EXPERIMENTS[key]
    measured = run_of("grid", key)
    texts = [experiment.question, *measured.remarks, *(p.caption for p in experiment.panels)]
    texts += [p.describe(measured) for p in experiment.panels]
    texts += [cell for t in experiment.tables for cell in (t.title, *t.header)]
    texts += [entry["doc"] for entry in describe_parameters(experiment.parameters())]
    for text in texts:
        assert "$" not in as_html(text), text
        assert not set("$\\{}") & set(as_plain(text)), text
        # Names of variables belong into formulas or code.
        assert not re.search(
            r"(?<![`.\w$\\])(lambda_|epsilon\b|kappa\b|N_star|R²)", without_formulas(text)
        ), text


def without_formulas(text):
    """The text without its formulas and code."""
    return re.sub(r"\$[^$]*\$|`[^`]*`", "", text)
