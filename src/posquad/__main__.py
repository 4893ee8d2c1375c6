"""`python -m posquad` and the command `posquad`."""

import sys

from posquad._extras import optional
from posquad.errors import MissingExtraError


def main() -> None:
    """Start the command line, or say which extra it needs."""
    try:
        for package in ("click", "rich"):
            optional(package, "lab")
        command = optional("posquad.lab.cli", "lab").main  # a second of imports
    except MissingExtraError as problem:
        print(f"Error: the command line needs {problem}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("Interrupted: nothing was written.", file=sys.stderr)
        raise SystemExit(130) from None
    command(prog_name="posquad")


if __name__ == "__main__":
    main()
