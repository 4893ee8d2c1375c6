"""`python -m posquad` and the command `posquad`."""

import sys

from posquad.core.errors import MissingExtraError
from posquad.core.extras import optional


def main() -> None:
    """Start the command line, or say which extra it needs."""
    try:
        for package in ("click", "rich"):
            optional(package, "lab")
        command = optional("posquad.cli.main", "lab").main  # a second of imports
    except MissingExtraError as problem:
        print(f"Error: the command line needs {problem}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("Interrupted: nothing was written.", file=sys.stderr)
        raise SystemExit(130) from None
    command(prog_name="posquad")


if __name__ == "__main__":
    main()
