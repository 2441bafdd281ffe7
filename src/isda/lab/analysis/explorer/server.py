"""HTTP server of the explorer: same-origin checks, a bounded thread pool (503 beyond it), uvicorn."""

from __future__ import annotations

import asyncio
import socket
import threading
import webbrowser
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Whether a server at this address can only be reached from this machine.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
        (True, True, False)
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """Rejects requests with a foreign host name or from other sites, and adds security headers to every response.

    A foreign page can let its own name resolve to this machine and then read what is served here (DNS rebinding); the
    browser still sends that name as the Host. It can also send requests to this machine without reading the responses;
    the browser then sends ``Sec-Fetch-Site: cross-site``.

    Args:
        app: the application.
        host: address of the server. If it is a loopback address, only loopback addresses and localhost are accepted as
            Host; else also any IP address, the machine's name and ``host`` itself.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        self.app, self.local = app, is_loopback(host)
        self.names = {"localhost"} if self.local else {"localhost", host.lower(), socket.gethostname().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; see the ASGI specification."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            answer: ASGIApp = _OTHER_NAME
        elif any(site.strip().lower() == "cross-site" for site in headers.getlist("sec-fetch-site")):
            answer = _OTHER_SITE
        else:
            answer = self.app
        return await answer(scope, receive, with_headers)

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            address = ip_address(name)
        except ValueError:
            return name in self.names
        return address.is_loopback or not self.local


_OTHER_NAME = PlainTextResponse("this server does not have that host name\n", status_code=421)
_OTHER_SITE = PlainTextResponse(
    "this request came from another site; type the address into the browser to open it\n", status_code=403
)


RETRY_AFTER = 2
"""Seconds after which a rejected client should try again."""


class RequestAbandoned(Exception):
    """The client of a request has disconnected."""


class RequestWorkers:
    """Handles requests in threads, in order of arrival.

    If a client disconnects, its request is dropped if it waits; if it has started, it continues in its thread unless it
    checks ``request.state.abandoned`` (a `threading.Event`) and raises `RequestAbandoned`.

    Args:
        threads: requests that are handled at the same time.
        waiting: requests that may wait for a thread; further ones get 503 and Retry-After.
    """

    def __init__(self, threads: int, waiting: int) -> None:
        self.capacity = threads + waiting
        """Number of further requests that are accepted."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="isda-explore")
        self._idle = asyncio.Semaphore(threads)

    async def answer(self, make: Callable[[Request], Response], request: Request) -> Response:
        """What ``make`` returns for the request, 503 without capacity, or 204 if the client has disconnected.

        Args:
            make: called in a thread; its exceptions are raised.
            request: its body must not be read elsewhere.
        """
        if not self.capacity:
            message = f"too many requests at once; try again in {RETRY_AFTER} seconds"
            return JSONResponse({"error": message}, status_code=503, headers={"Retry-After": str(RETRY_AFTER)})
        self.capacity -= 1
        request.state.abandoned = threading.Event()
        work = asyncio.ensure_future(self._in_turn(make, request))
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            return work.result() if work.done() else Response(status_code=204)
        finally:
            self.capacity += 1
            request.state.abandoned.set()
            work.cancel()
            gone.cancel()

    async def _in_turn(self, make: Callable[[Request], Response], request: Request) -> Response:
        """The response, computed when a thread is idle. A thread is busy until its work ends, abandoned or not."""
        await self._idle.acquire()
        loop = asyncio.get_running_loop()

        def end(_: Future[Response]) -> None:
            with suppress(RuntimeError):  # the server has been stopped
                loop.call_soon_threadsafe(self._idle.release)

        future = self._pool.submit(make, request)
        future.add_done_callback(end)
        return await asyncio.wrap_future(future)


async def _disconnected(request: Request) -> None:
    """Return when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 selects a free one."""
    if not 0 <= port <= 65535:
        raise ValueError(f"port must be from 0 to 65535, got {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"host and port must be an address that is free, got {host!r} and {port}: {error}") from error


def serve(
    application: Starlette, listener: socket.socket, host: str, announce: Callable[[str], None], *, show: bool
) -> None:
    """Serve until the process is interrupted; ``announce`` is called with the address of the page."""
    port = listener.getsockname()[1]
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    address = f"http://{f'[{name}]' if ':' in name else name}:{port}/"
    settings = uvicorn.Config(
        application,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        lifespan="off",
    )
    announce(address)
    if show:
        # In a thread: some browsers return only when they are closed.
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    # Raised after the server has handled its last request.
    with suppress(KeyboardInterrupt):
        uvicorn.Server(settings).run(sockets=[listener])
