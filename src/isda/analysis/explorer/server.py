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
    """Whether only this machine can reach a server that listens there.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
        (True, True, False)
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """Refuses requests by a name which is not this server's or from other sites, and adds headers to every answer.

    A page elsewhere can give its own name the address of this machine, and then read what is served here (DNS
    rebinding). The browser still sends that name as the Host. It can also have the browser ask for addresses of this
    machine, without seeing the answers; the browser says so by ``Sec-Fetch-Site: cross-site``.

    Args:
        app: what answers.
        host: where the server listens. On this machine alone, its addresses are heard; else also any address, which
            is no name, the machine's name and ``host`` itself.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        self.app, self.local = app, is_loopback(host)
        self.names = {"localhost"} if self.local else {"localhost", host.lower(), socket.gethostname().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; see the ASGI specification."""
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


_OTHER_NAME = PlainTextResponse("this server is not of that name\n", status_code=421)
_OTHER_SITE = PlainTextResponse(
    "this address was asked for by another site; to open it, type it into the browser\n", status_code=403
)


RETRY_AFTER = 2
"""Seconds after which a client that was turned away should ask again."""


class RequestAbandoned(Exception):
    """Nobody waits for the answer any more."""


class RequestWorkers:
    """Answers requests in threads, in the order in which they came.

    Whoever disconnects gives up their place. Work that waits is then not begun; work that has begun goes on in its
    thread, unless it looks at ``request.state.abandoned`` (a `threading.Event`) and raises `RequestAbandoned`.

    Args:
        threads: answers that are made at once.
        waiting: requests that may wait for a thread; further ones are answered with 503 and Retry-After.
    """

    def __init__(self, threads: int, waiting: int) -> None:
        self.free = threads + waiting
        """Places for further requests."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="isda-explore")
        self._idle = asyncio.Semaphore(threads)

    async def answer(self, make: Callable[[Request], Response], request: Request) -> Response:
        """What ``make`` returns for the request, 503 where there is no place, or nothing where the client has gone.

        Args:
            make: called in a thread; what it raises is raised.
            request: whose body is not read by anybody else.
        """
        if not self.free:
            told = f"too many requests at once; ask again in {RETRY_AFTER} seconds"
            return JSONResponse({"error": told}, status_code=503, headers={"Retry-After": str(RETRY_AFTER)})
        self.free -= 1
        request.state.abandoned = threading.Event()
        work = asyncio.ensure_future(self._in_turn(make, request))
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            return work.result() if work.done() else Response(status_code=204)
        finally:
            self.free += 1
            request.state.abandoned.set()
            work.cancel()
            gone.cancel()

    async def _in_turn(self, make: Callable[[Request], Response], request: Request) -> Response:
        """The answer, made when a thread is idle. A thread is busy until its work ends, whether it is wanted or not."""
        await self._idle.acquire()
        loop = asyncio.get_running_loop()

        def end(_: Future[Response]) -> None:
            with suppress(RuntimeError):  # the server has been stopped
                loop.call_soon_threadsafe(self._idle.release)

        making = self._pool.submit(make, request)
        making.add_done_callback(end)
        return await asyncio.wrap_future(making)


async def _disconnected(request: Request) -> None:
    """Return when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


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
