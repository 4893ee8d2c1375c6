"""The command line `posquad`: its group; each command is a module that is imported when used."""

from __future__ import annotations

import click

from posquad._version import __version__
from posquad.cli.failure import Commands

__all__ = ["main"]

_COMMANDS = {
    "certify": (
        "posquad.cli.certify",
        "Prove that an answer is the only one, or check a saved proof.",
    ),
    "claims": ("posquad.cli.claims", "Show the verdicts of a finished run."),
    "demo": ("posquad.cli.demo", "Write example data."),
    "dti": ("posquad.cli.dti", "Fit positive diffusion tensors to an image; write maps."),
    "experiment": ("posquad.cli.experiment", "Write the template of an experiment of your own."),
    "explore": ("posquad.cli.explore", "Open a page on which you can watch a network train."),
    "fit": ("posquad.cli.fit", "Fit a model to a data file; write the model and a report."),
    "info": ("posquad.cli.info", "Print versions and devices, for bug reports."),
    "predict": ("posquad.cli.predict", "Predict responses with a fitted model."),
    "reproduce": (
        "posquad.cli.reproduce",
        "Run the paper's experiments and judge its claims.",
    ),
    "sweep": ("posquad.cli.sweep", "Compute a function over a grid; nothing finished is lost."),
}


@click.group(
    cls=Commands,
    modules=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96},
)
@click.version_option(__version__, prog_name="posquad")
def main() -> None:
    """Positive quadratic networks f_U(x) = x'UU'x.

    For data, start with `posquad demo recovery` and `posquad fit recovery.csv`; for the paper, with
    `posquad reproduce --quick`. Every command has examples under --help.
    """
