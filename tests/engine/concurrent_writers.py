"""As a script: FOLDER WRITERS ROUNDS SEED. Several child processes at once make the run in one folder, again and again.

Half of the rounds begin with a run that was interrupted. Prints, as JSON, how each process of each round ended and
whether the round left the very bits of a run that was alone.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import contextlib

from isda.lab.engine.run_folder import FolderInUse
from isda.lab.train import Hook, Saving, Stopped, train
from resumable_runs import outcome, planned

EPOCHS = 2


class StopInTheMiddle(Hook):
    """Interrupts a run as a signal would."""

    def step(self, step: int) -> None:
        if step == 4:
            raise Stopped("enough")


def write(run: tuple[Any, Any], folder: Path, at: float, told: Path) -> None:
    """What one of the processes does; it leaves behind what it was told."""
    time.sleep(max(0.0, at - time.monotonic()))
    try:
        train(*run, folder, saving=Saving(steps=1))
        said = "finished"
    except FolderInUse as error:
        said = str(error)
    told.write_text(said)


def fork(*arguments: Any) -> int:
    """A child process that writes; its id."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            write(*arguments)
            status = 0
        finally:
            os._exit(status)
    return child


def one_round(run: tuple[Any, Any], place: Path, writers: int, chance: random.Random) -> dict[str, Any]:
    """Several writers of place/run; how each ended."""
    # At the very same moment, or within the time that a run takes.
    spread = chance.choice([0.0, 0.0, 0.02, 0.5])
    begin = time.monotonic() + 0.05 * writers
    children = {}
    for number in range(writers):
        told = place / f"told-{number}"
        children[fork(run, place / "run", begin + chance.uniform(0, spread), told)] = told
    statuses = {child: os.waitpid(child, 0)[1] for child in children}
    return {
        "processes": list(children),
        "statuses": list(statuses.values()),
        "told": [told.read_text() if told.exists() else "" for told in children.values()],
    }


def main(top: Path, writers: int, rounds: int, seed: int) -> None:
    """All rounds."""
    torch.set_num_threads(1)
    run, chance = planned("isda:lambda_0=2", EPOCHS), random.Random(f"{seed} {writers}")
    train(*run, top / "alone", saving=Saving(steps=1))
    whole, ends = outcome(top / "alone"), []
    with contextlib.suppress(Stopped):
        train(*run, top / "interrupted", saving=Saving(steps=1), hooks=[StopInTheMiddle()])
    for number in range(rounds):
        place = top / str(number)
        place.mkdir()
        if number % 2:
            shutil.copytree(top / "interrupted", place / "run")
        end = one_round(run, place, writers, chance)
        ends.append(end | {"equal": outcome(place / "run") == whole})
        shutil.rmtree(place)
    print(json.dumps(ends))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
