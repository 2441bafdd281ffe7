"""A server for the page, until Ctrl-C."""

from __future__ import annotations

import socket
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress

import uvicorn
from starlette.applications import Starlette

__all__ = ["listen", "serve"]


def listen(host: str, port: int) -> socket.socket:
    """A socket at the address; port 0 is any that is free."""
    if not 0 <= port <= 65535:
        raise ValueError(f"port must be from 0 to 65535, got {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"host and port must be an address that is free, got {host!r} and {port}: {error}") from error


def serve(application: Starlette, place: socket.socket, host: str, told: Callable[[str], None], *, show: bool) -> None:
    """Answer requests until the process is interrupted.

    Args:
        application: what answers.
        place: where, as `listen` opened it.
        host: that it was opened with.
        told: called with the address of the page.
        show: open the page in a browser.
    """
    port = place.getsockname()[1]
    named = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    address = f"http://{f'[{named}]' if ':' in named else named}:{port}/"
    settings = uvicorn.Config(
        application,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        lifespan="off",
    )
    told(address)
    if show:
        # In a thread: some browsers come back only when they are closed.
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    # The server has answered its last request when it passes the interruption on.
    with suppress(KeyboardInterrupt):
        uvicorn.Server(settings).run(sockets=[place])
