"""One generator and one critic for each of ten classes: grouped convolutions, torch.func.vmap, or a loop.

    python benchmarks/generators.py [--rounds 5]

Writes benchmarks/results/generators.md: CPU seconds of one thread for the networks' part of a step (images, scores of
real and generated ones, all gradients), as ratios to the loop; the three take turns, and the shortest of the rounds
counts.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from isda.lab.networks.generative import DiscriminatorBody, GeneratorBody

RESULT = Path(__file__).parent / "results" / "generators.md"
CLASSES, NOISE = 10, 100
CASES = ((8, 1, 0.25, 6), (8, 1, 1.0, 6), (28, 1, 0.25, 6), (32, 3, 0.25, 6), (32, 3, 0.5, 6), (32, 3, 0.25, 32))
"""Side, channels, width, images of each class."""


def ways(size: int, channels: int, width: float, each: int) -> dict[str, Callable[[], None]]:
    """The same work in three ways."""
    torch.manual_seed(0)
    images, noise = torch.randn(each, CLASSES, channels, size, size), torch.randn(each, CLASSES, NOISE)
    generators = [GeneratorBody(NOISE, channels, size, width) for _ in range(CLASSES)]
    critics = [DiscriminatorBody(channels, size, width) for _ in range(CLASSES)]
    all_generators = GeneratorBody(NOISE, channels, size, width, groups=CLASSES)
    all_critics = DiscriminatorBody(channels, size, width, groups=CLASSES)
    (one_generator, of_generators), (one_critic, of_critics) = (
        (copy.deepcopy(networks[0]).to("meta"), stack_module_state(networks)[0]) for networks in (generators, critics)
    )

    def loop() -> None:
        loss = torch.zeros(())
        for label in range(CLASSES):
            made = generators[label](noise[:, label])
            loss = loss + critics[label](made).sum() + critics[label](images[:, label]).sum()
        loss.backward()

    def grouped() -> None:
        made = all_generators(noise.flatten(1))
        (all_critics(made).sum() + all_critics(images.flatten(1, 2)).sum()).backward()

    def mapped() -> None:
        def generate(weights: dict[str, Tensor], latent: Tensor) -> Tensor:
            return functional_call(one_generator, weights, (latent,))

        def score(weights: dict[str, Tensor], seen: Tensor) -> Tensor:
            return functional_call(one_critic, weights, (seen,))

        made = vmap(generate, in_dims=(0, 1))(of_generators, noise)
        scores = vmap(score)(of_critics, made).sum() + vmap(score)(of_critics, images.transpose(0, 1)).sum()
        scores.backward()

    return {"loop": loop, "grouped": grouped, "vmap": mapped}


def shortest(actions: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """CPU seconds of each, the least of the rounds."""
    for action in actions.values():
        action()
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            started = time.process_time()
            action()
            times[name].append(time.process_time() - started)
    return {name: min(seconds) for name, seconds in times.items()}


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    lines = [
        "# One generator and critic for each of ten classes",
        "",
        "CPU time of a step's networks relative to a loop over classes, measured side by side, one thread. Made by",
        "`python benchmarks/generators.py`.",
        "",
        "| images | width | images of each class | loop | grouped | vmap |",
        "|---|---|---|---|---|---|",
    ]
    for size, channels, width, each in CASES:
        times = shortest(ways(size, channels, width, each), rounds)
        ratios = " | ".join(f"{times[name] / times['loop']:.2f}" for name in ("loop", "grouped", "vmap"))
        lines.append(f"| {channels}x{size}x{size} | {width:g} | {each} | {ratios} |")
        print(lines[-1], flush=True)
    RESULT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
