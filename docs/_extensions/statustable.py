"""The directive `status-table`: the rule by which `recover` grants a status, from the code."""

from __future__ import annotations

import inspect
from typing import Any

import granting
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from posquad.recovery import status


class StatusTable(SphinxDirective):
    """One column for each rule, from the first that is tried to the last."""

    def run(self) -> list[nodes.Node]:
        """Write the table as Markdown, the language of its page."""
        for module in (status, granting):
            self.env.note_dependency(inspect.getsourcefile(module) or "")
        (corner, *names), *rows = granting.table()
        lines = [":::{list-table}", ":header-rows: 1", ":stub-columns: 1"]
        lines += [":widths: auto", ":class: status-table", ""]
        for row in [[corner, *(f"`{name}`" for name in names)], *rows]:
            marks = ("* -", *["  -"] * (len(row) - 1))
            lines += [f"{mark} {cell}" for mark, cell in zip(marks, row, strict=True)]
        return self.parse_text_to_nodes("\n".join([*lines, ":::"]))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("status-table", StatusTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
