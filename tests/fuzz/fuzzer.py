"""As a script: KIND|all SEED CASES. Runs that many random cases and prints, as JSON, how they ended.

The parent imports everything and makes the run folders once; children that it forks run the cases, a few each, so that
a case costs milliseconds of start. A case that hangs or takes its child down is told from those that end. The report
counts the cases of each command, and those that succeeded.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from damage import damage_case, expectations
from options import options_case
from subjects import make_data, make_subjects
from tables import tables_case
from weights import make_weights, weights_case

from commands import LAST_WORDS, Case, fork_workers

SECONDS = 60.0
"""After which a case is said to hang."""
MEGABYTES = 3000
"""What a case may take beyond what the parent has: everything in it is tiny, but images of 224 pixels take 2 GB."""
PER_CHILD = 16
CASES = {"damage": damage_case, "options": options_case, "tables": tables_case, "weights": weights_case}
SHARES = {"damage": 4, "options": 7, "tables": 5, "weights": 4}
"""Of all cases, in twentieths."""


# -- children ----------------------------------------------------------------------------------------------------------


def child(kind: str, seed: int, indices: range, top: Path, expected: dict[str, Any], log: Path) -> None:
    """Run cases one after the other, and write down when each begins and how it ends."""
    with log.open("a") as file:
        for index in indices:
            file.write(json.dumps({"begins": index}) + "\n")
            file.flush()
            place = Path(tempfile.mkdtemp(dir=top))
            os.chdir(place)
            began, before = time.monotonic(), _megabytes()
            try:
                case = CASES[kind](top, seed + index, random.Random(f"{kind} {seed} {index}"), expected)
            except Exception:
                case = Case("", "", -1, f"the fuzzer itself failed\n{traceback.format_exc()}")
            if case.problem is None and _megabytes() > before + MEGABYTES:
                case = case._replace(problem=f"took {_megabytes() - before:.0f} MB")
            seconds = round(time.monotonic() - began, 2)
            record = {"kind": kind, "seed": seed, "case": index, "seconds": seconds} | case._asdict()
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.chdir(top)
            shutil.rmtree(place, ignore_errors=True)


def _megabytes() -> float:
    """The most memory that this process and those that it has waited for have taken."""
    own, workers = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(own, workers) / 1024


def fork(*arguments: Any) -> int:
    """A child process that runs cases; its id."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            child(*arguments)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return process


def await_child(process: int, log: Path) -> str | None:
    """Wait for a child; how it ended, if not well."""
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return None if status == 0 else f"the process ended with status {status}"
        if time.time() - log.stat().st_mtime > SECONDS:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return f"hangs for {SECONDS:.0f} s"
        time.sleep(0.01)


def fuzz(kind: str, seed: int, cases: int, top: Path, expected: dict[str, Any]) -> list[dict[str, Any]]:
    """Run all cases of a kind; how each ended."""
    log = top / "log.jsonl"
    records: list[dict[str, Any]] = []
    begin = 0
    while begin < cases:
        log.write_text("")
        end = min(begin + PER_CHILD, cases)
        problem = await_child(fork(kind, seed, range(begin, end), top, expected, log), log)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        records += [line for line in lines if "case" in line]
        if problem is not None:
            end = lines[-1]["begins"] + 1
            case = Case("", LAST_WORDS.read_text(), -1, problem)
            records.append({"kind": kind, "seed": seed, "case": end - 1, "seconds": 0} | case._asdict())
        for record in records[len(records) - (end - begin) :]:
            if record["problem"] or record["seconds"] > SECONDS / 4:
                print(json.dumps(record), file=sys.stderr, flush=True)
        begin = end
    return records


def report(records: list[dict[str, Any]]) -> dict[str, Any]:
    """What is printed: counts by kind and command, the slowest cases, and those that failed."""
    succeeded = [record for record in records if record["status"] == 0]
    return {
        "cases": Counter(record["kind"] for record in records),
        "succeeded": Counter(record["kind"] for record in succeeded),
        "commands": Counter(record["command"] for record in records),
        "commands_succeeded": Counter(record["command"] for record in succeeded),
        "seconds": round(sum(record["seconds"] for record in records), 1),
        "slowest": sorted(records, key=lambda record: -record["seconds"])[:5],
        "failures": [record for record in records if record["problem"]],
    }


def main_of_script(kind: str, seed: int, cases: int) -> None:
    """Make the folders, run the cases, print."""
    torch.set_num_threads(1)
    fork_workers()
    counts = {kind: cases}
    if kind == "all":
        counts = {name: cases * share // sum(SHARES.values()) for name, share in SHARES.items()}
        counts["options"] += cases - sum(counts.values())
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder).resolve()
        os.chdir(top)
        os.environ |= {"ISDA_DATA": str(top / "data"), "COLUMNS": "200", "NO_COLOR": "1"}
        make_data(top / "data")
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            make_subjects(top)
            make_weights(top)
            expected = expectations(top) if "damage" in counts else {}
            records = [record for name, count in counts.items() for record in fuzz(name, seed, count, top, expected)]
        os.chdir("/")
    LAST_WORDS.unlink(missing_ok=True)
    print(json.dumps(report(records)))


if __name__ == "__main__":
    main_of_script(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
