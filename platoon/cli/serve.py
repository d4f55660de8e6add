"""`platoon serve`: the embedded training service."""

from __future__ import annotations

from pathlib import Path


def serve(
    *,
    model: str = "platoon-tiny",
    state: Path = Path("platoon-service"),
    host: str = "127.0.0.1",
    port: int = 0,
    key: str | None = None,
) -> int:
    """Serve a small model to the tinker SDK until interrupted; the URL is printed.

    Parameters
    ----------
    model
        The model to serve.
    state
        The directory of the checkpoints.
    host
        The address to listen on.
    port
        The port to listen on; 0 takes any free one.
    key
        Refuse requests without this X-API-Key.
    """
    from platoon.service.__main__ import main

    arguments = ["--model", model, "--state", str(state), "--host", host, "--port", str(port)]
    return main([*arguments, *(["--key", key] if key is not None else [])])
