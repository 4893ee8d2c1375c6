"""`python -m posquad` and the command `posquad`."""

import os
import sys

from posquad.cli.interrupts import leave_on_interrupt
from posquad.core.errors import MissingExtraError
from posquad.core.extras import import_extra


def main() -> None:
    """Start the command line, or name the extra that it needs."""
    leave_on_interrupt()
    try:
        for package in ("click", "rich"):
            import_extra(package, "lab")
        command = import_extra("posquad.cli.main", "lab").main
    except MissingExtraError as problem:
        words = f"{problem.argument}: install it with pip install 'posquad[lab]'"
        print(f"Error: the command line needs {words}", file=sys.stderr)
        raise SystemExit(2) from None
    try:
        command(prog_name="posquad")
    except SystemExit as end:
        if end.code == 130:
            # Python would still die of the signal if Ctrl-C came while code from a string ran, such
            # as the making of a dataclass during an import.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(130)
        raise


if __name__ == "__main__":
    main()
