"""`python -m platoon` and the console script `platoon`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. `--version` is answered before the CLI library is imported."""
    if sys.argv[1:] == ["--version"]:
        from platoon import __version__

        print(__version__)
        return
    from platoon.cli.app import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
