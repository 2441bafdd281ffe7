"""As a script: damage|options SEED CASES. Runs that many random cases and prints, as JSON, how they ended.

The parent imports everything and makes the run folders once; children that it forks run the cases, a few each, so that
a case costs milliseconds of start. A case that hangs or takes its child down is told from those that end.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import random
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
from damage import Damage, damage_at_random
from options import random_words
from subjects import COMPARED, SUBJECTS, Subject, command_words, left_behind, make_data, make_subjects

from isda.cli import main

SECONDS = 180.0
"""After which a case is said to hang."""
PER_CHILD = 16
STATUSES = (0, 1, 2)
SHOWN = 2000


def run(words: list[str]) -> tuple[int, str, str]:
    """The status, output and complaints of a command; an exception that nobody caught has the status -1."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("always")
        try:
            main(words)
            status = 0
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            if isinstance(ended.code, str):
                err.write(ended.code + "\n")
        except BaseException:
            err.write(traceback.format_exc())
            status = -1
    return status, out.getvalue(), err.getvalue()


def common_problem(status: int, out: str, err: str) -> str | None:
    """What no command may do, whatever it is given."""
    if status == -1 or "Traceback" in out + err:
        return "a traceback"
    if status not in STATUSES:
        return f"status {status}"
    if status == 1 and not err.rstrip("\n").rpartition("\n")[2].startswith("isda: "):
        return "failed without a sentence"
    if "\x1b" in out + err and status != 2:  # what the user has written comes back in what is said of it
        return "escapes reach the terminal"
    if "warnings.warn(" in err:
        return "a warning with its line of code"
    return None


# -- damaged run folders -----------------------------------------------------------------------------------------------


def damage_case(top: Path, chance: random.Random, expected: dict[str, Any]) -> tuple[str, str | None]:
    """One case in the current folder: what it was, and what is wrong with how it ended."""
    subject: Subject = chance.choice(SUBJECTS)
    command = chance.choice(subject.commands)
    folder = f"the-{subject.name}"
    shutil.copytree(top / subject.name, folder)
    shutil.copyfile(top / "data" / "image.png", "image.png")
    damage = damage_at_random(Path(folder), _other(top, subject), chance)
    if command == "compare" and damage.gone and chance.random() < 0.9:
        command = "report"  # the lost run would be made again, by a new process that first imports everything
    told = f"{command} on {subject.name}, {damage.file}: {damage.what}"
    status, out, err = run(command_words(command, folder))
    problem = common_problem(status, out, err)
    if problem is None and status == 0:
        problem = _difference(subject, command, damage, out, Path(folder), expected)
    elif problem is None:
        problem = _unnamed(command, damage, folder, err)
    return told, None if problem is None else f"{problem}\n--- stderr:\n{err[-SHOWN:]}"


def _other(top: Path, subject: Subject) -> Path:
    return top / "others" / subject.name.removesuffix("-earlier")


def _difference(
    subject: Subject, command: str, damage: Damage, out: str, folder: Path, expected: dict[str, Any]
) -> str | None:
    """Whether a command that succeeded has another result than with the whole folder, without a word."""
    name = damage.file.rpartition("/")[2]
    if damage.forged or not subject.sealed:
        return None  # nothing can tell
    if subject.interrupted and command == "report" and name == "metrics.jsonl":
        return None  # a log until the run is finished; going on with the run writes it again
    if subject.interrupted and command == "report" and damage.what.startswith("swapped") and name == "config.json":
        return None  # a whole configuration, and no result yet to tell whose; going on with the run is refused
    if subject.compared and command == "report" and damage.gone and name in ("config.json", "seed-0", *COMPARED):
        return None  # there is one run less, which nobody has named
    found, whole = left_behind(command, folder, out), expected[f"{subject.name} {command}"]
    if command == "report" and name == "result.json" and damage.gone and '"unfinished": [{' in json.dumps(found):
        return None  # listed as unfinished
    return None if found == whole else f"silently different: {str(found)[:SHOWN]} instead of {str(whole)[:SHOWN]}"


NEEDLESS = {
    "evaluate": ("tensorboard", "checkpoints", ".lock", "environment.json", "metrics.jsonl"),
    "predict": ("tensorboard", "checkpoints", ".lock", "environment.json", "metrics.jsonl"),
    "report": ("tensorboard", "checkpoints", ".lock", "model.safetensors", "whitening.safetensors"),
}
"""What commands do without."""


def _unnamed(command: str, damage: Damage, folder: str, err: str) -> str | None:
    """Whether a command that failed need not have, or does not say which file it failed at."""
    if damage.file.partition("/")[0] in NEEDLESS.get(command, ()):
        return "failed for a file that it does not need"
    last = err.rstrip("\n").rpartition("\n")[2]
    names = (damage.file.rpartition("/")[2], f"{folder} ", f"in {folder}", "is of another run", "holds a run with")
    if not any(name in last for name in names):
        return "the sentence does not name the file"
    return None


def expectations(top: Path) -> dict[str, Any]:
    """What commands find or make with whole folders."""
    found = {}
    for subject in SUBJECTS:
        for command in subject.commands:
            folder = f"the-{subject.name}"
            shutil.copytree(top / subject.name, folder)
            shutil.copyfile(top / "data" / "image.png", "image.png")
            status, out, err = run(command_words(command, folder))
            assert status == 0, (subject.name, command, err)
            found[f"{subject.name} {command}"] = left_behind(command, Path(folder), out)
            shutil.rmtree(folder)
    return found


# -- options -----------------------------------------------------------------------------------------------------------


def options_case(top: Path, chance: random.Random, expected: dict[str, Any]) -> tuple[str, str | None]:
    """One case in the current folder: its words, and what is wrong with how they ended."""
    words = random_words(chance)
    for name, subject in (("run", "supervised"), ("interrupted", "supervised-interrupted")):
        shutil.copytree(top / subject, name)
    shutil.copyfile(top / "data" / "image.png", "image.png")
    Path("table.csv").write_text(
        "a,b,label\n" + "".join(f"{n % 3},{n % 5},{'xy'[n % 2]}\n" for n in range(12)) + "1,2,\n"
    )
    status, out, err = run(words)
    problem = common_problem(status, out, err)
    config = Path("new") / "config.json"
    if problem is None and status == 0 and config.exists():
        problem = _unlike(words, json.loads(config.read_text()))
    elif problem is None and status != 0 and config.exists() and "step" not in err:
        problem = "failed after the folder was made"
    return str(words), None if problem is None else f"{problem}\n--- stdout:\n{out[-500:]}\n--- stderr:\n{err[-SHOWN:]}"


def _unlike(words: list[str], config: dict[str, Any]) -> str | None:
    """Whether a run was made with another number than the words say."""
    for option, text in itertools.pairwise(words):
        name = option.removeprefix("--").replace("-", "_")
        stored = config.get(name)
        if option.startswith("--") and isinstance(stored, int | float) and not isinstance(stored, bool):
            with contextlib.suppress(ValueError):
                if float(text) != float(stored):
                    return f"{option} {text} became {stored}"
    return None


CASES = {"damage": damage_case, "options": options_case}


# -- children ----------------------------------------------------------------------------------------------------------


def child(kind: str, seed: int, indices: range, top: Path, expected: dict[str, Any], log: Path) -> None:
    """Run cases one after the other, and write down when each begins and how it ends."""
    with log.open("a") as file:
        for index in indices:
            file.write(json.dumps({"begins": index}) + "\n")
            file.flush()
            place = Path(tempfile.mkdtemp(dir=top))
            os.chdir(place)
            began = time.monotonic()
            try:
                told, problem = CASES[kind](top, random.Random(f"{kind} {seed} {index}"), expected)
            except Exception:
                told, problem = "", f"the fuzzer itself failed\n{traceback.format_exc()}"
            record = {"case": index, "told": told, "problem": problem, "seconds": round(time.monotonic() - began, 2)}
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.chdir(top)
            shutil.rmtree(place, ignore_errors=True)


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


def fuzz(kind: str, seed: int, cases: int, top: Path) -> dict[str, Any]:
    """All cases: how many there were, and the failures."""
    expected = expectations(top) if kind == "damage" else {}
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
            told = f"case {end - 1}"
            records.append({"case": end - 1, "told": told, "problem": problem, "seconds": 0})
        begin = end
    counted = Counter(record["told"].partition(" ")[0].strip("[',") for record in records)
    return {
        "cases": len(records),
        "commands": counted,
        "slowest": sorted(records, key=lambda record: -record["seconds"])[:3],
        "failures": [record for record in records if record["problem"]],
    }


def main_of_script(kind: str, seed: int, cases: int) -> None:
    """Make the folders, run the cases, print."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        os.chdir(top)
        os.environ |= {"ISDA_DATA": str(top / "data"), "COLUMNS": "200", "NO_COLOR": "1"}
        make_data(top / "data")
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            make_subjects(top)
            report = fuzz(kind, seed, cases, top)
        os.chdir("/")
    print(json.dumps(report))


if __name__ == "__main__":
    main_of_script(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
