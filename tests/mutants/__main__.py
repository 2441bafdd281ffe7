"""How strong are the tests? python tests/mutants draws mutants of the library and counts those that a test notices.

Outcomes are kept in runs/mutants while neither the mutated file nor the tests that decided it change, so that a run
goes on where it was stopped. Takes an hour from nothing; one process.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from operator import attrgetter
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

from children import import_the_slow
from line_map import recorded_lines
from mutations import Mutant, draw
from packages import PACKAGES, ROOT
from score_table import Outcomes, reason_of, table, write
from trials import Trial, copy_sources, depends_on, try_mutant

KEPT = ROOT / "runs" / "mutants"
SAMPLES = {25: 100}
"""Seeds of the draws, and how many mutants each has."""


def main() -> None:
    """Read the options, try the mutants, print or write the table."""
    parser = argparse.ArgumentParser(description="Counts the mutants of the library that the tests notice.")
    parser.add_argument("--seed", type=int, help="one draw, printed; without it all, written to benchmarks/results")
    parser.add_argument("--count", type=int, default=100, help="how many mutants, with --seed (default 100)")
    parser.add_argument(
        "--packages", nargs="+", choices=[package.name for package in PACKAGES], help="only mutants of these packages"
    )
    parser.add_argument("--only", metavar="ID", nargs="+", help="only these mutants, tried again")
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # as an exception, which ends the child as well
    sizes = SAMPLES if options.seed is None else {options.seed: options.count}
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        copy = copy_sources(Path(scratch))
        drawn = {seed: draw(count, seed) for seed, count in sizes.items()}
        for chosen, key in ((options.packages, attrgetter("package")), (options.only, attrgetter("id"))):
            if chosen:
                drawn = {
                    seed: [mutant for mutant in mutants if key(mutant) in chosen] for seed, mutants in drawn.items()
                }
        samples = outcomes(drawn, copy, again=bool(options.only))
    if options.json:
        print(json.dumps([m._asdict() | t._asdict() for sample in samples.values() for m, t in sample], indent=1))
    elif options.seed is None and not options.only and not options.packages:
        write(samples)
    else:
        print(table(samples))


def outcomes(drawn: dict[int, list[Mutant]], copy: Path, *, again: bool) -> dict[int, Outcomes]:
    """Try every mutant in a copy of the sources, but for those whose outcome is known and still holds."""
    KEPT.mkdir(parents=True, exist_ok=True)
    kept = KEPT / "trials.jsonl"
    known = {} if again else _known(kept)
    import_the_slow()
    lines = recorded_lines(KEPT / "lines.json", {mutant.package for mutants in drawn.values() for mutant in mutants})
    samples: dict[int, Outcomes] = {}
    with kept.open("a") as file:
        for seed, mutants in drawn.items():
            samples[seed] = []
            for place, mutant in enumerate(mutants, 1):
                trial = known.get(mutant.id)
                if trial is None or not _holds(trial, mutant, copy):
                    trial = try_mutant(mutant, lines, copy)
                    file.write(json.dumps(trial._asdict()) + "\n")
                    file.flush()
                    _say(f"seed {seed}, {place} of {len(mutants)}", mutant, trial)
                samples[seed].append((mutant, trial))
    return samples


def _holds(trial: Trial, mutant: Mutant, copy: Path) -> bool:
    """Whether nothing that decided the outcome has changed. A survivor that changes nothing needs no second trial."""
    explained = not trial.is_caught and reason_of(mutant) is not None
    return explained or trial.of == depends_on(mutant, trial.by, copy)


def _known(kept: Path) -> dict[str, Trial]:
    """The latest outcome of every mutant tried."""
    lines = kept.read_text().splitlines() if kept.is_file() else []
    trials = [Trial(**json.loads(line)) for line in lines]
    return {trial.id: trial for trial in trials}


def _say(where: str, mutant: Mutant, trial: Trial) -> None:
    what = f"{mutant.file}:{mutant.line} {mutant.change}"
    how = trial.by if trial.is_caught else f"{mutant.text} | {reason_of(mutant) or 'a test is missing'}"
    print(f"{where}: {mutant.id} {what}: {trial.outcome} {trial.seconds:.0f} s {how}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
