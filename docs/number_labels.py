"""Derive the numbers of the paper's statements from the order of its LaTeX source.

    python docs/number_labels.py paper.tex > src/posquad/core/numbers.toml

The paper is not part of the repository, so its numbers are kept in that table. The counters are
those of LaTeX: `\\newtheorem` and `\\numberwithin` in the preamble, the environments that the
journal's style file adds, sections, equations, and the captions of figures and tables.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# The style file of the journal declares these, sharing the counter of theorems. LaTeX keeps the
# declaration of the paper for a name that the paper has declared before.
STYLES = {
    "jmlr2e": {
        name: ("theorem", name.capitalize())
        for name in (
            *("lemma", "proposition", "remark", "corollary"),
            *("definition", "conjecture", "axiom"),
        )
    }
}
HEADINGS = ("section", "subsection", "subsubsection")
FLOATS = {"figure": "Figure", "table": "Table", "subfigure": "Figure"}
UNKNOWN = ("align", "gather", "multline", "eqnarray", "subequations", "alignat")
EVENT = re.compile(
    r"\\(?P<heading>(?:sub){0,2}section)(?P<star>\*)?\s*(?=[{\[])"
    r"|\\begin\{(?P<begin>\w+)\*?\}|\\end\{(?P<end>\w+)\*?\}"
    r"|\\label\{(?P<label>[^}]*)\}|\\(?P<caption>caption)\s*(?=[{\[])|\\(?P<appendix>appendix)\b"
)


@dataclass
class Counters:
    """The counters of LaTeX, and what each theorem-like environment uses."""

    theorems: dict[str, tuple[str, str]] = field(default_factory=dict)  # counter, title
    within: dict[str, str] = field(default_factory=dict)  # reset by a step of this counter
    values: dict[str, int] = field(default_factory=dict)

    def step(self, name: str) -> str:
        """Step a counter, reset those within it, and return its number."""
        self.values[name] = self.values.get(name, 0) + 1
        self._reset(name)
        return self.number(name)

    def _reset(self, outer: str) -> None:
        for name, holder in self.within.items():
            if holder == outer:
                self.values[name] = 0
                self._reset(name)

    def number(self, name: str) -> str:
        """Return the number of a counter, with those that it is within."""
        own = str(self.values.get(name, 0))
        return f"{self.number(self.within[name])}.{own}" if name in self.within else own


def declared(preamble: str) -> Counters:
    """Return the counters that a preamble declares."""
    counters = Counters(within={"subsection": "section", "subsubsection": "subsection"})
    pattern = re.compile(
        r"\\newtheorem\{(\w+)\}(?:\[(\w+)\])?\{([^}]*)\}(?:\[(\w+)\])?"
        r"|\\numberwithin\{(\w+)\}\{(\w+)\}|\\usepackage(?:\[[^]]*\])?\{(\w+)\}"
    )
    for name, shared, title, holder, inner, outer, package in pattern.findall(preamble):
        if name and name not in counters.theorems:
            counters.theorems[name] = (shared or name, title)
            if holder:
                counters.within[name] = holder
        elif inner:
            counters.within[inner] = outer
        for added, (shared_by_style, words) in STYLES.get(package, {}).items():
            counters.theorems.setdefault(added, (shared_by_style, words))
    return counters


def numbers(source: str) -> dict[str, str]:
    r"""Return the number of every label, such as `Theorem 3.1`, in the order of the source.

    >>> preamble = r"\newtheorem{theorem}{Theorem}[section]"
    >>> body = r"\section{A}\begin{theorem}\label{thm:a}\end{theorem}"
    >>> numbers(preamble + r"\begin{document}" + body + r"\end{document}")
    {'thm:a': 'Theorem 1.1'}
    """
    text = re.sub(r"(?<!\\)%.*", "", source)
    preamble, _, body = text.partition(r"\begin{document}")
    return dict(_labelled(declared(preamble), body))


def _labelled(counters: Counters, body: str) -> Iterator[tuple[str, str]]:
    # The meaning of a label is local to its environment, as in LaTeX.
    meanings, environments = [""], [""]
    for event in EVENT.finditer(body):
        if heading := event["heading"]:
            if not event["star"]:
                meanings[-1] = f"Section {counters.step(heading)}"
        elif event["appendix"]:
            raise ValueError("appendices are numbered by letters, which this script does not know")
        elif name := event["begin"]:
            if name in UNKNOWN:
                raise ValueError(f"the environment {name} numbers its rows, which is not supported")
            meanings.append(meanings[-1])
            environments.append(name)
            if name in counters.theorems:
                counter, title = counters.theorems[name]
                meanings[-1] = f"{title} {counters.step(counter)}"
            elif name == "equation":
                meanings[-1] = f"Equation ({counters.step('equation')})"
            elif name == "figure":
                counters.values["subfigure"] = 0
        elif event["caption"]:
            meanings[-1] = _captioned(counters, environments[-1], meanings[-1])
        elif name := event["end"]:
            if name == "document":
                return
            if environments.pop() != name:
                raise ValueError(f"\\end{{{name}}} closes another environment")
            meanings.pop()
        elif event["label"]:
            yield event["label"], meanings[-1]


def _captioned(counters: Counters, environment: str, before: str) -> str:
    if environment == "subfigure":  # its figure is numbered by a caption that follows
        counters.step("subfigure")
        letter = chr(ord("a") + counters.values["subfigure"] - 1)
        return f"Figure {counters.values.get('figure', 0) + 1}{letter}"
    if environment in FLOATS:
        return f"{FLOATS[environment]} {counters.step(environment)}"
    return before


def main() -> None:
    """Print the table for the source that the command line names."""
    found = numbers(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print("# The numbers of the paper's labels, made by docs/number_labels.py; do not edit.")
    print("\n[numbers]")
    for label, number in found.items():
        print(f'"{label}" = "{number}"')


if __name__ == "__main__":
    main()
