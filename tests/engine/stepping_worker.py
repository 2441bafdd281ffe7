"""A few steps of methods in float64 without batch norm, by however many processes; as a script: FOLDER METHOD...

Every process must end with the same weights, of the method as well; the first leaves its own in FOLDER.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from many_processes_worker import plain_network
from safetensors.torch import save_file

from isda.lab.engine import RunContext
from isda.lab.train import Classification, Processes, Settings, join_processes, load_data, resolve

STEPS = 6


def run(folder: Path, processes: Processes, method: str) -> None:
    """Six steps; a batch of 33 leaves 17 and 16 to two processes."""
    settings = Settings(
        labels=99, batch_size=33, method=method, precision="float64", epochs=2, augment="crop", ema=0.9, lr=0.05
    )
    data = load_data(settings)
    task, config = Classification(plain_network()), resolve(settings, data)
    job = task.start(config, data, RunContext(processes, folder))
    for step in range(STEPS):
        batch = list(job.batches(step // config.steps_per_epoch))[step % config.steps_per_epoch]
        job.step(batch, step)
    groups = job.state().tensors
    tensors = {f"{group}.{name}": value for group, state in groups.items() for name, value in state.items()}
    for name, value in tensors.items():
        everywhere = processes.collect(value.contiguous())
        assert all(torch.equal(other, everywhere[0]) for other in everywhere), f"{method}: {name} differs"
    if processes.first:
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: value.contiguous() for name, value in tensors.items()}, folder / f"{method}.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with join_processes("cpu") as started:
        for text in sys.argv[2:]:
            run(Path(sys.argv[1]), started, text)
