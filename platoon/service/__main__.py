"""`python -m platoon.service`: the embedded training service as a process. Numeric libraries run on one thread each,
so that answers are the same bit for bit on every machine load."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
KEY_VARIABLE = "PLATOON_SERVICE_KEY"
SWITCH_SECONDS = 0.0005  # the compute thread holds the interpreter most of the time; HTTP must not wait 5 ms for it


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="platoon serve", description="Serve a small model to the tinker SDK.")
    parser.add_argument("--model", default="platoon-tiny", help="model to serve (default: %(default)s)")
    parser.add_argument("--state", type=Path, default=Path("platoon-service"), help="directory of the checkpoints")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: any free one)")
    key = os.environ.get(KEY_VARIABLE)  # a command line can be read by everybody on the machine
    parser.add_argument("--key", default=key, help=f"refuse requests without this X-API-Key (or {KEY_VARIABLE})")
    parser.add_argument("--ready", type=Path, default=None, help="file to write the URL to once requests are served")
    parser.add_argument(
        "--die-with-parent", action="store_true", help="end when the process that started this one ends"
    )
    return parser.parse_args(argv)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket whose connections send at once. OSError when the address is not free.

    asyncio only switches Nagle's algorithm off for sockets that name their protocol; with it, every answer waits 40 ms.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; the exit code. In a process that has loaded numpy, replaces it by a fresh one."""
    given = list(sys.argv[1:] if argv is None else argv)
    options = arguments(given)
    pinned = all(os.environ.get(name) == "1" for name in ONE_THREAD)
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    if "numpy" in sys.modules and not pinned:
        os.execv(sys.executable, [sys.executable, "-m", "platoon.service", *given])
    sys.setswitchinterval(SWITCH_SECONDS)
    if options.die_with_parent:
        from platoon.service.lifetime import die_with_parent

        die_with_parent()
    from platoon.service.serve import serve

    try:
        listener = listen(options.host, options.port)
    except OSError as error:
        print(f"platoon: cannot listen on {options.host}:{options.port}: {error}", file=sys.stderr)
        return 1
    try:
        serve(options.model, options.state, listener, key=options.key, ready=options.ready)
    except ValueError as error:
        print(f"platoon: {error}", file=sys.stderr)
        return 78
    return 0


if __name__ == "__main__":
    sys.exit(main())
