"""The directives `label-map` and `number-index`: the paper's labels and what stands behind each."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from docstrings import anchor
from docutils import nodes
from labelrows import by_number, rows
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from posquad.labels import Label

SECTIONS = {
    2: "Section 2: geometry and dynamics",
    3: "Section 3: curvature and recovery",
    4: "Section 4: selection",
}


class LabelMap(SphinxDirective):
    """One section for each part of the paper, one entry for each labelled statement."""

    def run(self) -> list[nodes.Node]:
        """Write the page as reST."""
        self.env.note_dependency(str(files("posquad").joinpath("labels.toml")))
        lines: list[str] = []
        section = None
        for label in rows():
            if label.section != section:
                section = label.section
                title = SECTIONS.get(section, f"Section {section}")
                lines += [title, "=" * len(title), ""]
            lines += self._entry(label)
            place = self.env.current_document.docname, anchor(label.name)
            self.env.domains.standard_domain.anonlabels[anchor(label.name)] = place
            self.env.domains.standard_domain.labels[anchor(label.name)] = (*place, label.name)
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)

    @staticmethod
    def _entry(label: Label) -> list[str]:
        lines = [f".. index:: single: {label.number} ({label.title})", ""]
        lines += [f".. _{anchor(label.name)}:", "", f".. rubric:: {label.title}"]
        lines += ["   :class: label", "", f"{label.number} ``{label.name}``", ""]
        if label.functions:
            lines += [":Functions: " + ", ".join(f":py:obj:`{n}`" for n in label.functions)]
        if label.tests:
            names = [f"``{test.removeprefix('tests/')}``" for test in label.tests]
            lines += [":Tests: " + ", ".join(names)]
        if label.experiments:
            numbers = ", ".join(key.removeprefix("exp") for key in label.experiments)
            lines += [f":Experiments: {numbers}"]
        if label.note:
            lines += [f":Note: {label.note}"]
        return [*lines, ""]


class NumberIndex(SphinxDirective):
    """One row for each statement, by kind and number."""

    def run(self) -> list[nodes.Node]:
        """Write the table as reST."""
        self.env.note_dependency(str(files("posquad.core").joinpath("numbers.toml")))
        lines = [".. list-table::", "   :header-rows: 1", "   :widths: auto", ""]
        lines += self._row("number", "statement", "label", "functions", "experiments")
        for label in by_number():
            names = ", ".join(f":py:obj:`{n.rpartition('.')[2]} <{n}>`" for n in label.functions)
            shown = ", ".join(key.removeprefix("exp") for key in label.experiments)
            title = f":ref:`{label.title} <{anchor(label.name)}>`"
            lines += self._row(label.number, title, f"``{label.name}``", names, shown)
        return self.parse_text_to_nodes("\n".join(lines))

    @staticmethod
    def _row(*cells: str) -> list[str]:
        marks = ("   * -", *["     -"] * (len(cells) - 1))
        return [f"{mark} {cell}".rstrip() for mark, cell in zip(marks, cells, strict=True)]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("label-map", LabelMap)
    app.add_directive("number-index", NumberIndex)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
