"""`python -m posquad` and the command `posquad`."""

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
    command(prog_name="posquad")


if __name__ == "__main__":
    main()
