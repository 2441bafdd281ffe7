"""A bounded number of threads for the answers that take time: beyond it 503, and no work for clients that have gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

__all__ = ["Abandoned", "Workers"]

RETRY_AFTER = 2
"""Seconds after which a client that was turned away should ask again."""


class Abandoned(Exception):
    """Nobody waits for the answer any more."""


class Workers:
    """Answers requests in threads, in the order in which they came.

    Whoever disconnects gives up their place. Work that waits is then not begun; work that has begun goes on in its
    thread, unless it looks at ``request.state.abandoned`` (a `threading.Event`) and raises `Abandoned`.

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
