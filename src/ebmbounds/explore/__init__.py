"""A trained pair to play with in the browser.

ebmbounds explore runs/mine
"""

import socket
from collections.abc import Callable
from pathlib import Path

from ebmbounds.errors import BadInput
from ebmbounds.explore.explorer import Explorer
from ebmbounds.machine import resolve_device


def explore(
    name: Path | str,
    *,
    checkpoint: str = "last",
    device: str = "auto",
    data: Path | str | None = None,
    host: str = "127.0.0.1",
    port: int = 8765,
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve the explorer of a run folder or a pretrained model until it is interrupted; `ready` is told the address."""
    try:
        import uvicorn

        from ebmbounds.explore.server import LOCAL, application
    except ModuleNotFoundError as missing:
        raise BadInput(
            f"the explorer needs the package {missing.name}: install it with pip install 'ebmbounds[app]'."
        ) from None
    explorer = Explorer.open(name, checkpoint, resolve_device(device), data)
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise BadInput(f"cannot listen on {host}:{port} ({error.strerror}): name another --port.") from None
    with listener:
        app = application(explorer, LOCAL if host in LOCAL else ("*",))
        ready(f"http://{host}:{listener.getsockname()[1]}")
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


__all__ = ["Explorer", "explore"]
