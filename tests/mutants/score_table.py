"""The table of mutants: benchmarks/results/mutants.md."""

from __future__ import annotations

import json
from pathlib import Path

from mutations import Mutant
from packages import PACKAGES, ROOT
from trials import Trial

RESULT = ROOT / "benchmarks" / "results" / "mutants.md"
REASONS = Path(__file__).with_name("reasons.json")
Outcomes = list[tuple[Mutant, Trial]]
_UNKNOWN = "A test is missing."


def reason_of(mutant: Mutant) -> str | None:
    """Why a mutant changes nothing that a test could see, as reasons.json has it by file, line and change."""
    for entry in json.loads(REASONS.read_text(encoding="utf-8")):
        if (entry["file"], entry["line"], entry["change"]) == (mutant.file, mutant.text, mutant.change):
            return str(entry["reason"])
    return None


def table(samples: dict[int, Outcomes]) -> str:
    """The score of every package and sample, and the survivors, as Markdown."""
    rows = [["package", *(f"seed {seed}" for seed in samples)], ["---"] * (1 + len(samples))]
    for name in [*(package.name for package in PACKAGES), "all"]:
        drawn = [[trial for mutant, trial in pairs if name in (mutant.package, "all")] for pairs in samples.values()]
        rows.append([name, *map(_score, drawn)])
    parts = ["\n".join(f"| {' | '.join(row)} |" for row in rows)]
    for seed, pairs in samples.items():
        survivors = [_line(mutant) for mutant, trial in pairs if not trial.is_caught]
        parts.append(f"## Survivors of seed {seed}\n\n" + ("\n".join(survivors) or "None."))
    return "\n\n".join(parts) + "\n"


def write(samples: dict[int, Outcomes]) -> None:
    """Write the table with what it is about."""
    about = (
        "# Mutants",
        "Made by `make mutants` (`tests/mutants`). A mutant is the library with one arithmetic operator, comparison, "
        "boolean operator or constant changed, drawn at random. It is caught when a test of its package fails or no "
        "longer ends.",
        "The draw was counted before anybody had looked at it: no test was written for one of its mutants.",
    )
    RESULT.write_text("\n\n".join([*about, table(samples)]), encoding="utf-8")


def _line(mutant: Mutant) -> str:
    old, new = mutant.change.split(" → ")
    place = f"`{mutant.file}:{mutant.line}` `{mutant.text}`"
    return f"- {place}: `{old}` becomes `{new}` ({mutant.id}). {reason_of(mutant) or _UNKNOWN}"


def _score(trials: list[Trial]) -> str:
    caught = sum(trial.is_caught for trial in trials)
    return f"{caught} of {len(trials)} ({caught / max(1, len(trials)):.1%})"
