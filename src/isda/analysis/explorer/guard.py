"""What stands before every answer: only requests of this server's own pages are heard, and these load nothing else."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Guard", "is_loopback"]

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
