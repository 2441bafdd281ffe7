"""Load on `isda explore`: many clients at once, some of which leave before their answer.

    python tests/explorer_load.py RUN [--requests 1000] [--clients 50]

starts a server of its own on 127.0.0.1, prints what became of the requests, and ends with status 1 where the server
failed: an answer that is an error of the server other than 503, a page that takes more than 2 s afterwards, or more
than 10% more memory than before.
"""

from __future__ import annotations

import argparse
import http.client
import json
import queue
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MOST_REQUESTS, MOST_CLIENTS, MOST_SECONDS = 10_000, 200, 120
"""Bounds on what may be asked of the machine."""
PATIENCE = 60
"""Seconds that a client waits for an answer."""
ABANDONED, TIMED_OUT = "abandoned", "timed out"


@dataclass(frozen=True)
class Load:
    """What became of the requests."""

    outcomes: dict[str, int]
    """Requests by HTTP status, ABANDONED or TIMED_OUT."""
    seconds: float
    slowest: float
    """Seconds of the slowest answer."""
    page_seconds: float
    """Of the page, asked for when all clients have gone."""
    before: float
    """MiB of memory of the server, when each kind of request has been answered."""
    after: float

    @property
    def failures(self) -> list[str]:
        """What the server must not do."""
        wrong = {name: count for name, count in self.outcomes.items() if name.startswith("5") and name != "503"}
        found = [f"{count} answers with status {name}" for name, count in wrong.items()]
        if self.outcomes.get(TIMED_OUT):
            found.append(f"{self.outcomes[TIMED_OUT]} requests without an answer in {PATIENCE} s")
        if self.page_seconds > 2:
            found.append(f"the page took {self.page_seconds:.1f} s")
        if self.after > 1.1 * self.before:
            found.append(f"memory grew from {self.before:.0f} to {self.after:.0f} MiB")
        return found

    def __str__(self) -> str:
        told = ", ".join(f"{name}: {count}" for name, count in sorted(self.outcomes.items()))
        return (
            f"{sum(self.outcomes.values())} requests in {self.seconds:.1f} s ({told}); slowest answer "
            f"{self.slowest:.1f} s; page afterwards {self.page_seconds:.2f} s; memory {self.before:.0f} -> "
            f"{self.after:.0f} MiB ({100 * (self.after / self.before - 1):+.1f}%)"
        )


@contextmanager
def explorer(run: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server of a run as a process of its own, and its port."""
    words = [sys.executable, "-m", "isda", "explore", str(run), "--no-open", "--device", "cpu", "--directions", "3"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        told = process.stdout.readline()
        assert "http://127.0.0.1:" in told, told
        yield process, int(told.split("http://127.0.0.1:")[1].split("/")[0])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def load(process: subprocess.Popen[str], port: int, requests: int = 1000, clients: int = 50, seed: int = 0) -> Load:
    """Send requests, each by the next of the clients that is free; every tenth is abandoned.

    Args:
        process: the server.
        port: of the server, on 127.0.0.1.
        requests: how many.
        clients: how many ask at once.
        seed: of the order of the requests.
    """
    if not (1 <= requests <= MOST_REQUESTS and 1 <= clients <= MOST_CLIENTS):
        raise ValueError(
            f"requests must be from 1 to {MOST_REQUESTS} and clients from 1 to {MOST_CLIENTS}, got {requests} and "
            f"{clients}"
        )
    images = sum(one["images"] for one in json.loads(_answer(port, "/run.json")[1])["classes"])
    paths = _paths(requests, images, random.Random(seed))
    # Caches fill and libraries are imported at first use.
    for path in [*dict.fromkeys(paths)][:100]:
        _answer(port, path)
    before, waiting = _memory(process.pid), queue.SimpleQueue[tuple[int, str]]()
    for number, path in enumerate(paths):
        waiting.put((number, path))
    ended: list[tuple[str, float]] = []
    start = time.monotonic()

    def client() -> None:
        while time.monotonic() - start < MOST_SECONDS:
            try:
                number, path = waiting.get_nowait()
            except queue.Empty:
                return
            sent = time.monotonic()
            outcome = _abandon(port, path, number) if number % 10 == 0 else _outcome(port, path)
            ended.append((outcome, time.monotonic() - sent))

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    over = time.monotonic()
    assert _outcome(port, "/") == "200"
    page = time.monotonic() - over
    # What was abandoned last may still be at work.
    assert _outcome(port, "/view.json?row=0") in ("200", "503")
    slowest = max((seconds for outcome, seconds in ended if outcome != ABANDONED), default=0.0)
    counts = dict(Counter(outcome for outcome, _ in ended))
    return Load(counts, over - start, slowest, page, before, _memory(process.pid))


def _paths(count: int, images: int, chance: random.Random) -> list[str]:
    """What a page asks for, in the shares of somebody who saves every tenth view."""

    def view() -> str:
        moves = ",".join(f"{chance.randint(-16, 16) / 4:g}" for _ in range(3))
        return f"row={chance.randrange(images)}&moves={moves}"

    kinds = (
        *(lambda: "/", lambda: "/explore.js", lambda: "/run.json", lambda: "/map.json"),
        *(lambda: f"/class.json?label={chance.randrange(10)}", lambda: f"/image/{chance.randrange(images)}"),
        *(lambda: f"/view.json?{view()}", lambda: f"/picture.png?{view()}"),
        lambda: f"/view.json?row={chance.randrange(images)}&draw={chance.randrange(100)}&strength=0.5",
    )
    return [kind() for kind in chance.choices(kinds, (1, 1, 1, 1, 2, 8, 4, 2, 2), k=count)]


def _answer(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _outcome(port: int, path: str) -> str:
    try:
        return str(_answer(port, path)[0])
    except TimeoutError:
        return TIMED_OUT


def _abandon(port: int, path: str, number: int) -> str:
    """Ask and leave without the answer, politely or not."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        time.sleep(0.01 * (number // 10 % 5))
        if number % 20:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return ABANDONED


def _memory(process: int) -> float:
    """MiB of memory that a process holds."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"process {process} must be alive to be measured, it has ended")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Load on `isda explore`, on 127.0.0.1.")
    parser.add_argument("run", type=Path, help="a run folder of a classifier with ten classes or more")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=50)
    words = parser.parse_args()
    with explorer(words.run) as (process, port):
        measured = load(process, port, words.requests, words.clients)
    print(measured)
    if measured.failures:
        sys.exit("; ".join(measured.failures))


if __name__ == "__main__":
    main()
