"""Commands as the fuzzers run them, in the process of the case, and what none of them may do whatever it is given."""

from __future__ import annotations

import contextlib
import http.client
import io
import itertools
import json
import math
import multiprocessing
import os
import signal
import tempfile
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from isda.lab.cli import main
from isda.lab.cli.main import COMMANDS, GROUPS
from isda.lab.engine.executors import local

STATUSES = (0, 1, 2)
SHOWN = 2000
NAMES = tuple(f"{name} {inner}" if inner else name for name in COMMANDS for inner in GROUPS.get(name, [""]))
"""Every command, those of groups with two words."""
HELP = frozenset({"-h", "--help", "--help-all"})
WRITTEN = ("--out", "--json", "--html", "--npz", "--predictions", "--report", "--show")
"""Options that name what a command writes."""
LAST_WORDS = Path(tempfile.gettempdir()) / f"isda-fuzz-{os.getpid()}"
"""Holds the words of the latest command of any process that was forked from this one."""
NOT_FINITE = ("nan", "inf", "-inf", "1e309")
PATHS = ("/run.json", "/map.json", "/image/0", "/class.json?label=0", "/view.json?row=0", "/picture.png?row=1")
ODD_PATHS = (
    *("/image/-1", "/image/99999999", "/class.json", "/class.json?label=nan", "/view.json?row=0&moves=nan"),
    *("/view.json?row=0&moves=1e308,1e308", "/view.json?moves=", "/picture.png?row=x", "/../config.json", "/%00"),
    *("/view.json?row=0&among=nothing", "/imagined.json?row=0", "/imagined.png?row=0&moves=1", "/" + "x" * 5000),
)


class Case(NamedTuple):
    """How one case ended."""

    command: str
    """Without its words, as in NAMES."""
    description: str
    status: int
    problem: str | None


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    """-1 for an exception that nobody caught."""
    out: str
    err: str
    problem: str | None = None
    """What is wrong with how a page was served."""

    def shown(self, problem: str) -> str:
        """A problem, with what the command has written."""
        return f"{problem}\n--- stdout:\n{self.out[-500:]}\n--- stderr:\n{self.err[-SHOWN:]}"


def fork_workers() -> None:
    """Let the worker processes of comparisons be forks of this one: new ones would import everything first."""
    local.get_context = lambda _: multiprocessing.get_context("fork")  # type: ignore[assignment]


def run(words: Sequence[str], paths: Sequence[str] = PATHS[:1]) -> Ended:
    """Run a command in this process; ``isda explore`` is asked for some paths, and then interrupted."""
    with contextlib.suppress(OSError):  # for whoever has to tell which command hangs
        LAST_WORDS.write_text(str(words))
    out, err = io.StringIO(), io.StringIO()
    answers: list[str] = []
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("always")
        try:
            with _visitor(out, paths, answers) if words[:1] == ["explore"] else contextlib.nullcontext():
                main(list(words))
            status = 0
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            if isinstance(ended.code, str):
                err.write(ended.code + "\n")
        except BaseException:
            err.write(traceback.format_exc())
            status = -1
    return Ended(status, out.getvalue(), err.getvalue(), answers[0] if answers else None)


@contextlib.contextmanager
def _visitor(out: io.StringIO, paths: Sequence[str], problems: list[str]) -> Iterator[None]:
    """Ask the server that this process is about to be, as soon as it says where it is, and interrupt it then."""
    over = threading.Event()

    def visit() -> None:
        while "http://" not in out.getvalue():
            if over.wait(0.01):
                return
        address = urlsplit("http://" + out.getvalue().split("http://")[1].split(",")[0])
        problems.extend(
            filter(None, (_asked(address.hostname or "", address.port or 0, path) for path in ("/", *paths)))
        )
        if not over.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=visit, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _asked(host: str, port: int, path: str) -> str | None:
    """What is wrong with an answer: no status of the server's own failure, and the page itself is there."""
    try:
        connection = http.client.HTTPConnection(host, port, timeout=60)
        connection.putrequest("GET", path)
        connection.endheaders()
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException) as error:
        return f"{path[:80]} was not answered: {error!r}"
    if (path == "/" and answer.status != 200) or answer.status >= 500:
        return f"{path[:80]} was answered by status {answer.status}"
    return None


def common_problem(words: Sequence[str], ended: Ended) -> str | None:
    """What no command may do, whatever it is given."""
    status, out, err, _ = ended
    if status == -1 or "Traceback" in out + err:
        return "a traceback"
    if "isda: internal error: " in out + err:
        return "an internal error"
    if status not in STATUSES:
        return f"status {status}"
    if status == 1 and not err.rstrip("\n").rpartition("\n")[2].startswith("isda: "):
        return "failed without a sentence"
    if "\x1b" in out + err and status != 2:  # what the user has written comes back in what is said of it
        return "escapes reach the terminal"
    if "warnings.warn(" in err:
        return "a warning with its line of code"
    if status == 0 and HELP.isdisjoint(words):
        return ended.problem or _not_written(words) or _not_json(words, out)
    return None


def _not_written(words: Sequence[str]) -> str | None:
    """Whether a command that succeeded has not written what its words name."""
    for option, name in itertools.pairwise(words):
        if option in WRITTEN and name != "-" and not os.path.lexists(name):
            return f"{option} {name!r} is not there"
    return None


def _not_json(words: Sequence[str], out: str) -> str | None:
    """Whether JSON that a command has written is not what other programs read as JSON, NaN for one."""
    texts = {}
    for option, name in itertools.pairwise(words):
        if option == "--json":
            texts[name] = out if name == "-" else Path(name).read_text()
    for path in Path("new").rglob("*.json*") if Path("new").is_dir() else ():
        texts[str(path)] = path.read_text()
    for name, text in texts.items():
        try:
            for line in text.splitlines() if name.endswith(".jsonl") else [text]:
                strict_json(line)
        except ValueError as error:
            return f"{name} is not JSON: {error}"
    return None


def strict_json(text: str) -> Any:
    """What a JSON text holds; NaN and infinities are no JSON."""

    def refuse(name: str) -> float:
        raise ValueError(f"{name} in JSON")

    return json.loads(text, parse_constant=refuse)


def not_finite(words: Sequence[str], allowed: Sequence[str] = ()) -> str | None:
    """Whether words that succeeded have a number that is not finite, other than for options that allow one."""
    option = ""
    for word in words:
        option = word if word.startswith("--") else option
        if word in NOT_FINITE and option not in allowed and not math.isfinite(float(word)):
            return f"{option} {word} was accepted"
    return None
