"""The script that numbers the labels of a LaTeX source as LaTeX itself does."""

from __future__ import annotations

import os
import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NUMBERS = runpy.run_path(str(ROOT / "docs" / "number_labels.py"))["numbers"]

PREAMBLE = r"""
\newtheorem{definition}{Definition}
\newtheorem{theorem}{Theorem}[section]
\newtheorem{lemma}{Lemma}[section]
\numberwithin{definition}{section}
\numberwithin{equation}{section}
\usepackage{jmlr2e}
"""

BODY = r"""
\section{First}\label{sec:one}
\begin{equation} a \label{eq:a} \end{equation}
\begin{theorem}[Title] \label{thm:a}
  text \begin{equation} b \label{eq:b} \end{equation} % \label{eq:comment}
  100\% sure \label{thm:a-again}
\end{theorem}
\begin{remark}\label{rem:a} shares the counter of theorems \end{remark}
\begin{lemma}\label{lem:a}\end{lemma}
\begin{theorem} \label{thm:b} \end{theorem}
\section*{Not numbered}
\subsection{Part}\label{subsec:one-one}
\section{Second}
\subsection{Part}\label{subsec:two-one}
\begin{equation} c \label{eq:c} \end{equation}
\begin{theorem}\label{thm:c}\end{theorem}
\begin{definition}\label{def:a}\end{definition}
\begin{figure}
  \begin{subfigure} \caption{left} \label{fig:one-left} \end{subfigure}
  \begin{subfigure} \caption{right} \label{fig:one-right} \end{subfigure}
  \caption{both} \label{fig:one}
\end{figure}
\begin{table} \caption{cells} \label{tab:one} \end{table}
\begin{figure} \begin{subfigure} \caption{left} \label{fig:two-left} \end{subfigure}
  \caption{one} \label{fig:two} \end{figure}
After it, a label means the subsection again. \label{subsec:after}
\end{document}
\label{after:end}
"""

# Worked by hand from the rules of LaTeX.
EXPECTED = {
    "sec:one": "Section 1",
    "eq:a": "Equation (1.1)",
    "thm:a": "Theorem 1.1",
    "eq:b": "Equation (1.2)",
    "thm:a-again": "Theorem 1.1",
    "rem:a": "Remark 1.2",
    "lem:a": "Lemma 1.1",
    "thm:b": "Theorem 1.3",
    "subsec:one-one": "Section 1.1",
    "subsec:two-one": "Section 2.1",
    "eq:c": "Equation (2.1)",
    "thm:c": "Theorem 2.1",
    "def:a": "Definition 2.1",
    "fig:one-left": "Figure 1a",
    "fig:one-right": "Figure 1b",
    "fig:one": "Figure 1",
    "tab:one": "Table 1",
    "fig:two-left": "Figure 2a",
    "fig:two": "Figure 2",
    "subsec:after": "Section 2.1",
}


def document(preamble: str, body: str) -> str:
    return preamble + r"\begin{document}" + body


def test_numbers_are_those_that_latex_would_give():
    assert NUMBERS(document(PREAMBLE, BODY)) == EXPECTED


def test_without_the_style_file_a_remark_has_the_counter_that_the_paper_declares():
    preamble = PREAMBLE.replace("jmlr2e", "amsmath") + r"\newtheorem{remark}{Remark}"
    found = NUMBERS(document(preamble, BODY))
    assert (found["rem:a"], found["thm:b"]) == ("Remark 1", "Theorem 1.2")


def test_a_declaration_of_the_paper_wins_over_the_style_file():
    """LaTeX refuses to declare a name twice, and the paper declares its own before the style."""
    preamble = r"\newtheorem{theorem}{Theorem}\newtheorem{lemma}{Lemma}\usepackage{jmlr2e}"
    body = r"\begin{theorem}\end{theorem}\begin{lemma}\label{lem:a}\end{lemma}\end{document}"
    assert NUMBERS(document(preamble, body)) == {"lem:a": "Lemma 1"}
    later = r"\newtheorem{theorem}{Theorem}\usepackage{jmlr2e}"
    assert NUMBERS(document(later, body)) == {"lem:a": "Lemma 2"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (r"\begin{align} a \end{align}", "align"),
        (r"\appendix", "appendices"),
        (r"\begin{table}\end{figure}", "closes another"),
    ],
)
def test_what_it_cannot_number_is_an_error(body, message):
    with pytest.raises(ValueError, match=message):
        NUMBERS(document(PREAMBLE, body))


def test_the_table_is_that_of_the_paper_where_its_source_is_present():
    sources = [os.environ.get("POSQUAD_PAPER", ""), ROOT / "paper.tex", ROOT / "docs" / "paper.tex"]
    found = [Path(path) for path in sources if path and Path(path).exists()]
    if not found:
        pytest.skip("the source of the paper is not here; POSQUAD_PAPER can name it")
    table = tomllib.loads((ROOT / "src/posquad/core/numbers.toml").read_text(encoding="utf-8"))
    assert NUMBERS(found[0].read_text(encoding="utf-8")) == table["numbers"]
