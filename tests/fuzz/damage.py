"""Random damage to one file of a run folder: bytes, types, values, and files that are gone or another's.

A command on the damaged folder must give a sentence that names the file, or the result of the whole folder.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subjects import COMPARED, SUBJECTS, Subject, command_words, left_behind, reseal

from commands import ODD_PATHS, PATHS, SHOWN, Case, common_problem, run

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 10**6, 10**30, -(10**30), 0.5, 1e308, -1e-308, math.nan, math.inf, -math.inf),
    *(
        "",
        "text",
        "nan",
        "isda",
        "resnet-8",
        "float64",
        "cifar10",
        "../..",
        "nowhere/at/all",
        "\x1b[31mred",
        "\x00",
        "é" * 300,
        "a.b:C",
    ),
    *([], [None], [1, "a"], {}, {"a": []}, [[[[[[]]]]]], [0.1, 0.2, 0.3], {"width": "wide"}, {"num_classes": 3}),
)
CONTENTS = (b"", b"[]", b"{}", b"null", b"0", b"\n", b'"text"', b"[" * 5000, b"\x00" * 64, bytes(range(128, 256)))


@dataclass(frozen=True)
class Damage:
    """What was done, and what it may do."""

    file: str
    """Relative to the folder."""
    what: str
    forged: bool = False
    """Whether the file was sealed anew: somebody's will, not damage, and not to be told from the truth."""
    gone: bool = False
    """Whether there is no such file any more."""


def damage_at_random(folder: Path, other: Path, chance: random.Random) -> Damage:
    """Damage one file, or folder, below ``folder``; ``other`` is a folder of the same shape of another run."""
    path = _chosen(folder, chance)
    name = path.relative_to(folder).as_posix()
    theirs = _counterpart(path, folder, other) if path.is_file() else None
    ways = [_remove, _replace_by_its_opposite]
    if path.is_file():
        ways += [_write, _truncate, _flip, _flip]
        if path.suffix in (".json", ".jsonl"):
            ways += [_change_a_value] * 8
    if theirs is not None and chance.random() < 0.15:
        shutil.copyfile(theirs, path)
        return Damage(name, "swapped with another run's")
    return chance.choice(ways)(path, name, chance)


def _chosen(folder: Path, chance: random.Random) -> Path:
    below = sorted(path for path in folder.rglob("*"))
    # The few files that commands read first, as often as all the others.
    often = [path for path in below if path.name in ("config.json", "metrics.jsonl", "result.json")]
    often += [path for path in below if path.suffix == ".safetensors" and path.parent == folder]
    return chance.choice(chance.choice([below, often]))


def _counterpart(path: Path, folder: Path, other: Path) -> Path | None:
    theirs = other / path.relative_to(folder)
    alike = sorted(other.rglob(f"*{path.suffix}")) if path.suffix else []
    return theirs if theirs.is_file() else next(filter(Path.is_file, alike), None)


def _remove(path: Path, name: str, chance: random.Random) -> Damage:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return Damage(name, "removed", gone=True)


def _replace_by_its_opposite(path: Path, name: str, chance: random.Random) -> Damage:
    was_folder = path.is_dir()
    _remove(path, name, chance)
    path.write_bytes(b"no folder") if was_folder else path.mkdir()
    return Damage(name, "a file for a folder" if was_folder else "a folder for a file", gone=True)


def _write(path: Path, name: str, chance: random.Random) -> Damage:
    content = chance.choice(CONTENTS)
    path.write_bytes(content)
    return Damage(name, f"has the content {content[:20]!r}")


def _truncate(path: Path, name: str, chance: random.Random) -> Damage:
    length = chance.randrange(max(1, path.stat().st_size))
    os.truncate(path, length)
    return Damage(name, f"truncated to {length} bytes")


def _flip(path: Path, name: str, chance: random.Random) -> Damage:
    content = bytearray(path.read_bytes())
    if not content:
        return _write(path, name, chance)
    places = [chance.randrange(len(content)) for _ in range(chance.choice([1, 1, 2, 20]))]
    for place in places:
        content[place] ^= 1 << chance.randrange(8)
    path.write_bytes(content)
    return Damage(name, f"bits flipped at {places}")


def _change_a_value(path: Path, name: str, chance: random.Random) -> Damage:
    """Right JSON with another value somewhere, or without a key; sealed anew now and then."""
    lines = path.suffix == ".jsonl"
    try:
        records = [json.loads(line) for line in (path.read_text().splitlines() if lines else [path.read_text()])]
    except ValueError:
        return _flip(path, name, chance)
    if not records:
        return _write(path, name, chance)
    record = chance.choice(records)
    *keys, last = chance.choice(_places(record))
    inner = record
    for key in keys:
        inner = inner[key]
    before = inner[last]
    if isinstance(inner, dict) and chance.random() < 0.2:
        del inner[last]
        what = f"{[*keys, last]} removed"
    else:
        inner[last] = value = chance.choice([*VALUES, *_near(before)])
        what = f"{[*keys, last]} was {str(before)[:30]!r}, is {str(value)[:30]!r}"
    forged = not lines and "sha256" in record and chance.random() < 0.4
    if forged:
        record.update(reseal(record))
    text = "".join(json.dumps(one) + "\n" for one in records) if lines else json.dumps(records[0], indent=1)
    path.write_text(text)
    return Damage(name, what + (", sealed anew" if forged else ""), forged)


def _places(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to all values in a record, each as often as it should be chosen."""
    found: list[tuple[Any, ...]] = []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        found.append((*before, key))
        if isinstance(one, dict | list):
            below = _places(one, (*before, key))
            found += below[:12]
    return found


def _near(value: Any) -> list[Any]:
    """Values of the same type that could be meant."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, value - 1, -value, value * 1000, str(value)]
    if isinstance(value, str):
        return [value + "x", value.upper(), value[:-1]]
    return []


# -- cases -------------------------------------------------------------------------------------------------------------

PAIRS = [(subject, command) for subject in SUBJECTS for command in subject.commands]
LOOKING = ("tensorboard", "checkpoints", ".lock", "environment.json", "predictions.safetensors", "metrics.jsonl")
NEEDLESS = {
    **dict.fromkeys(("evaluate", "predict", "embed", "directions", "explore", "export", "visualize"), LOOKING),
    "map": LOOKING[:-1],
    **dict.fromkeys(("segment evaluate", "segment predict", "detect evaluate", "detect predict"), LOOKING),
    **dict.fromkeys(("generate evaluate", "generate sample"), LOOKING),
    "report": ("tensorboard", "checkpoints", ".lock", "model.safetensors", "whitening.safetensors"),
}
"""What commands do without."""


def prepare(top: Path, subject: Subject) -> str:
    """Put a copy of a subject and what commands need beside it into the current folder; the name of the copy."""
    folder = f"the-{subject.name}"
    shutil.copytree(top / subject.name, folder)
    shutil.copyfile(top / "data" / "image.png", "image.png")
    Path("generator").symlink_to(top / "generation")
    return folder


def expectations(top: Path) -> dict[str, Any]:
    """What commands find or make with whole folders."""
    found = {}
    for subject, command in PAIRS:
        place = top / "whole"
        place.mkdir()
        os.chdir(place)
        folder = prepare(top, subject)
        ended = run(command_words(command, folder))
        assert ended.status == 0, (subject.name, command, ended.err)
        found[f"{subject.name} {command}"] = left_behind(command, Path(folder), ended.out)
        os.chdir(top)
        shutil.rmtree(place)
    return found


def damage_case(top: Path, number: int, chance: random.Random, expected: dict[str, Any]) -> Case:
    """One case in the current folder; as many in a row as there are commands on subjects have each once."""
    subject, command = PAIRS[number % len(PAIRS)]
    folder = prepare(top, subject)
    damage = damage_at_random(Path(folder), top / "others" / subject.name.removesuffix("-earlier"), chance)
    told = f"{command} on {subject.name}, {damage.file}: {damage.what}"
    words = command_words(command, folder)
    ended = run(words, chance.sample([*PATHS, *ODD_PATHS], 3))
    problem = common_problem(words, ended)
    if problem is None and ended.status == 0:
        problem = _difference(subject, command, damage, ended.out, Path(folder), expected)
    elif problem is None:
        problem = _unnamed(command, damage, folder, ended.err)
    return Case(command, told, ended.status, None if problem is None else ended.shown(problem))


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
    if command == "tightness" and damage.file.startswith("checkpoints"):
        return None  # one point of the curve less
    found, whole = left_behind(command, folder, out), expected[f"{subject.name} {command}"]
    if command == "report" and name == "result.json" and damage.gone and '"unfinished": [{' in json.dumps(found):
        return None  # listed as unfinished
    return None if found == whole else f"silently different: {str(found)[:SHOWN]} instead of {str(whole)[:SHOWN]}"


def _unnamed(command: str, damage: Damage, folder: str, err: str) -> str | None:
    """Whether a command that failed need not have, or does not say which file it failed at."""
    if damage.file.partition("/")[0] in NEEDLESS.get(command, ()):
        return "failed for a file that it does not need"
    last = err.rstrip("\n").rpartition("\n")[2]
    names = (damage.file.rpartition("/")[2], f"{folder} ", f"in {folder}", "is of another run", "holds a run with")
    names += ("classes of the run",)
    if command.endswith("train") and damage.gone and damage.file == "config.json":
        return None  # there is no run to go on with, and a new one needs settings that nobody has said
    if not any(name in last for name in names):
        return "the sentence does not name the file"
    return None
