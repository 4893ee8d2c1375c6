r"""Sentences with formulas: TeX between dollar signs as MathML and as plain text."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from posquad.core.errors import DomainError
from posquad.experiments.claims import claims
from posquad.report.formulas import as_html, as_plain, mathml

FORMULAS = {
    r"\lambda_r": ("<msub><mi>λ</mi><mi>r</mi></msub>", "λ_r"),
    r"x^2": ("<msup><mi>x</mi><mn>2</mn></msup>", "x²"),
    r"\lambda_{\min}^{\mathrm{eff}}": (
        "<msubsup><mi>λ</mi><mi>min</mi><mi>eff</mi></msubsup>",
        "λ_min^eff",
    ),
    r"4\eta GQG": ("<mn>4</mn><mi>η</mi><mi>G</mi><mi>Q</mi><mi>G</mi>", "4η GQG"),
    r"\frac{a+1}{2}": (
        "<mfrac><mrow><mi>a</mi><mo>+</mo><mn>1</mn></mrow><mn>2</mn></mfrac>",
        "(a+1)/2",
    ),
    r"\sqrt{\lambda_r}": ("<msqrt><msub><mi>λ</mi><mi>r</mi></msub></msqrt>", "√λ_r"),
    r"B'q": ("<msup><mi>B</mi><mo>\N{PRIME}</mo></msup><mi>q</mi>", "B'q"),
    r"\hat\lambda": ("<mover><mi>λ</mi><mo>^</mo></mover>", "λ̂"),
    r"e^{-s}": ("<msup><mi>e</mi><mrow><mo>−</mo><mi>s</mi></mrow></msup>", "e^-s"),  # noqa: RUF001
    r"a < b": ("<mi>a</mi><mo>&lt;</mo><mi>b</mi>", "a < b"),
    r"\mathrm{d}": ('<mi mathvariant="normal">d</mi>', "d"),
    r"2.0\times 10^{16}": (
        "<mn>2.0</mn><mo>×</mo><msup><mn>10</mn><mn>16</mn></msup>",  # noqa: RUF001
        "2.0× 10^16",  # noqa: RUF001
    ),
}


@pytest.mark.parametrize("source", FORMULAS)
def test_formulas(source):
    markup, plain = FORMULAS[source]
    assert mathml(source) == f"<math>{markup}</math>"
    assert as_plain(f"at ${source}$.") == f"at {plain}."
    ElementTree.fromstring(mathml(source))


@pytest.mark.parametrize(
    "source", [r"\unknown", "x_", "{x", "x}", r"\frac{1}", r"\mathrm x", r"\mathrm{x", "^2^", "\\"]
)
def test_what_is_not_known_is_an_error(source):
    with pytest.raises(DomainError, match=r"^formula: expected TeX that the reports use; got "):
        mathml(source)


def test_the_rest_of_a_sentence_is_escaped():
    hostile = '<script>alert(1)</script> & "quotes"'
    text = as_html(f"{hostile} `{hostile}` $x$")
    assert "<script" not in text
    root = ElementTree.fromstring(f"<p>{text}</p>")
    assert "".join(root.itertext()) == f"{hostile} {hostile} x"
    assert [child.tag for child in root] == ["code", "math"]
    hidden = as_html(r"$\mathrm{<script>}$")
    assert "<script" not in hidden


def test_a_sentence_without_formulas_is_unchanged():
    assert (
        as_plain("It costs 5$ at 10%.") == as_html("It costs 5$ at 10%.") == "It costs 5$ at 10%."
    )


def test_every_statement_and_note_of_a_claim_is_known():
    for claim in claims():
        for text in (claim.statement, claim.note):
            assert "$" not in as_html(text), claim.id
            outside = re.sub(r"\$[^$]*\$", "", text)
            assert not re.search(r"lambda|epsilon|kappa|N_star|R²|\^", outside), claim.id
