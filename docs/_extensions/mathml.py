"""Formulas as MathML, made at build time: a page needs no script and no network to show them."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

LOGGER = logging.getLogger(__name__)

# What the converter does not know, in terms of what it does.
SPELLINGS = (
    (re.compile(r"\\[lr]Vert\b"), r"\\Vert "),
    (re.compile(r"\\iff\b"), r"\\Longleftrightarrow "),
    (re.compile(r"\\dots\b"), r"\\ldots "),
)
# Operators that must neither stretch to their neighbours' height nor stand apart from them.
PRIME, DIVIDES = "\N{PRIME}", "\N{DIVIDES}"
BARS = re.compile(f"<mo[^>]*>([‖|∥{DIVIDES}{PRIME}])</mo>")
TIGHT = r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>'
BRACKETS = re.compile(r"<mo>([⟨⟩])</mo>")
# Names of functions stand apart from what they are applied to, unless it is in brackets.
APPLIED = re.compile(r"<mo>&ApplyFunction;</mo>(?!\s*<mo[^>]*>[\[({|‖⟨])")
FUNCTION = re.compile(r"<mi[^>]*>(\w{2,})</mi>(?=\s*<mo>&ApplyFunction;)")
THIN = "0.1667em"
ARGUMENT = re.compile(r"\s*(\\[A-Za-z]+|[^\s{}\\])")
FRACTION = re.compile(r"\\[td]?frac(?![A-Za-z])")


def braced(source: str) -> str:
    r"""Fractions with braces around both parts: TeX reads `\tfrac12` as a half, not as twelve."""
    found = FRACTION.search(source)
    if not found:
        return source
    head, rest = source[: found.end()], source[found.end() :]
    for _ in range(2):
        short = ARGUMENT.match(rest)
        if short:
            head, rest = f"{head}{{{short[1]}}}", rest[short.end() :]
        else:
            end = _group_end(rest)
            head, rest = f"{head}{{{braced(rest[rest.index('{') + 1 : end - 1])}}}", rest[end:]
    return head + braced(rest)


def _group_end(source: str) -> int:
    """Where the group that opens the text closes."""
    depth = 0
    for position, character in enumerate(source):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0 and character == "}":
            return position + 1
    raise MathError("group without closing brace")


def markup(source: str, node: nodes.Node, *, display: bool) -> str:
    """The formula as MathML; what the converter does not know is a warning, hence an error."""
    for pattern, replacement in SPELLINGS:
        source = pattern.sub(replacement, source)
    try:
        mathml = tex2mathml(braced(source), as_block=display).replace("'", PRIME)
    except (MathError, ValueError, IndexError, KeyError, AttributeError, TypeError) as problem:
        LOGGER.warning("formula %r: %s", source, problem, location=node, type="mathml")
        return ""
    return spaced(mathml)


def spaced(mathml: str) -> str:
    """The spaces of TeX, where the converter leaves them to the browser."""
    mathml = BRACKETS.sub(r'<mo stretchy="false">\1</mo>', BARS.sub(TIGHT, mathml))
    mathml = FUNCTION.sub(rf'<mo lspace="{THIN}" rspace="0">\1</mo>', mathml)
    return APPLIED.sub(f'<mspace width="{THIN}"></mspace>', mathml)


def keep_punctuation(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Tie a comma to the formula before it, so that no line begins with one."""
    for node in doctree.findall(nodes.math):
        place = node.parent.index(node) + 1
        after = node.parent[place] if place < len(node.parent) else None
        if isinstance(after, nodes.Text) and after[:1] and after[0] in ",.;:)?":
            node["punctuation"] = after[0]
            node.parent[place] = nodes.Text(after[1:])


def visit_math(translator: Any, node: nodes.math) -> None:
    """An inline formula."""
    mathml = markup(node.astext(), node, display=False)
    if "punctuation" in node:
        mathml = f'<span class="tied">{mathml}{node["punctuation"]}</span>'
    translator.body.append(mathml)
    raise nodes.SkipNode


def visit_math_block(translator: Any, node: nodes.math_block) -> None:
    """A displayed formula, with its number if it has a label."""
    translator.body.append(translator.starttag(node, "div", CLASS="math"))
    translator.body.append(markup(node.astext(), node, display=True))
    if node.get("number"):
        number = get_node_equation_number(translator, node)
        translator.body.append(f'<span class="eqno">({number})')
        translator.add_permalink_ref(node, "Link to this equation")
        translator.body.append("</span>")
    translator.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer under the name that `html_math_renderer` gives."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    app.connect("doctree-resolved", keep_punctuation)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
