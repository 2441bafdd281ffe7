"""RandAugment and AutoAugment with operations, magnitudes and signs drawn per image.

Operation spaces, magnitude ranges and sub-policies are read from torchvision, which is imported on first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from isda.lab.choices import check_choice
from isda.lab.data.augment.compose import check_images
from isda.lab.data.augment.draws import Draws, require_draws
from isda.lab.data.augment.operations import GREY, OPERATION_NAMES, Fill, apply_operations

AUTO_AUGMENT_LEVELS = 10  # a sub-policy names one of ten magnitude levels (AutoAugment, section 4)
POLICIES = ("cifar10", "svhn", "imagenet")


class OperationTable(NamedTuple):
    """The operations to draw from: tensors of one shape, (K,) for RandAugment, (sub-policy, step) for AutoAugment."""

    operation: Tensor
    """Positions in OPERATION_NAMES."""
    magnitude: Tensor
    """float64, 0 where the operation has none."""
    signed: Tensor
    """Whether the magnitude's sign is drawn too."""
    probability: Tensor
    """Of applying the operation."""

    def signed_magnitude(self, choice: Tensor, draws: Draws) -> Tensor:
        """Magnitudes of the chosen entries, (N, steps), each signed one negated with probability 1/2."""
        magnitude = self.magnitude[choice]
        negative = (draws.integers(2, count=magnitude.shape[1]) == 1) & self.signed[choice]
        return torch.where(negative, -magnitude, magnitude)


def _table(
    transform: type, entries: Sequence[tuple[str, float, int | None]], bins: int, height: int, width: int
) -> OperationTable:
    space = transform._AUGMENTATION_SPACE  # type: ignore[attr-defined]
    magnitudes = []
    for name, _, level in entries:
        levels = space[name][0](bins, height, width)
        magnitudes.append(0.0 if levels is None else float(levels[level]))
    return OperationTable(
        torch.tensor([OPERATION_NAMES.index(name) for name, _, _ in entries]),
        torch.tensor(magnitudes, dtype=torch.float64),
        torch.tensor([space[name][1] for name, _, _ in entries]),
        torch.tensor([probability for _, probability, _ in entries]),
    )


@lru_cache(maxsize=64)
def rand_augment_table(magnitude: int, bins: int, height: int, width: int) -> OperationTable:
    """The operations RandAugment chooses from, at one magnitude level, for images of one size."""
    from torchvision.transforms import v2

    entries = [(name, 1.0, magnitude) for name in v2.RandAugment._AUGMENTATION_SPACE]
    return _table(v2.RandAugment, entries, bins, height, width)


@lru_cache(maxsize=64)
def auto_augment_table(policy: str, height: int, width: int) -> OperationTable:
    """The (sub-policy, step) table of an AutoAugment policy for images of one size."""
    from torchvision.transforms import v2

    sub_policies = v2.AutoAugment(v2.AutoAugmentPolicy(policy))._policies
    entries = [step for sub_policy in sub_policies for step in sub_policy]
    flat = _table(v2.AutoAugment, entries, AUTO_AUGMENT_LEVELS, height, width)
    return OperationTable(*(column.view(len(sub_policies), -1) for column in flat))


class _DrawnOperations:
    """A transform that applies the operations that `draw` returns, one step after the other."""

    fill: Fill

    def draw(self, draws: Draws, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Operations and signed magnitudes, both (N, steps)."""
        raise NotImplementedError

    def __call__(self, images: Tensor, draws: Draws | None = None) -> Tensor:
        """(N, C, H, W) uint8 in and out, C 1 or 3."""
        check_images(images, torch.uint8)
        operation, magnitude = self.draw(require_draws(draws, len(images)), images.shape[2], images.shape[3])
        for step in range(operation.shape[1]):
            images = apply_operations(images, operation[:, step], magnitude[:, step], self.fill)
        return images


@dataclass(eq=False)
class RandAugment(_DrawnOperations):
    """`num_ops` operations per image, drawn uniformly with replacement (Cubuk et al., 2020).

    The authors' code has no RandAugment; colour and interpolation of new pixels are those of its AutoAugment.

    Args:
        num_ops: operations applied one after the other, N in the paper.
        magnitude: level of all operations, M in the paper, 0 .. num_magnitude_bins - 1.
        num_magnitude_bins: number of levels.
        fill: colour that geometric operations bring in from outside the image.
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    fill: Fill = GREY

    def __post_init__(self) -> None:
        if not 0 <= self.magnitude < self.num_magnitude_bins:
            raise ValueError(f"magnitude must be a level from 0 to {self.num_magnitude_bins - 1}, got {self.magnitude}")

    def draw(self, draws: Draws, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Operations (positions in OPERATION_NAMES) and signed magnitudes, both (N, num_ops)."""
        table = rand_augment_table(self.magnitude, self.num_magnitude_bins, height, width)
        choice = draws.integers(len(table.operation), count=self.num_ops)
        return table.operation[choice], table.signed_magnitude(choice, draws)


@dataclass(eq=False)
class AutoAugment(_DrawnOperations):
    """One sub-policy per image, each of its two steps applied with its own probability (Cubuk et al., 2019).

    Deviations from the authors' code, which has its own copy of the policies: rotations go either way, as Cubuk et al.
    say (its copy turns counter-clockwise only), and thresholds of Solarize end at 255, not 256.

    Args:
        policy: "cifar10" (which AutoAugment's paper uses on CIFAR-100 too), "svhn" or "imagenet".
        fill: colour that geometric operations bring in from outside the image.
    """

    policy: str
    fill: Fill = GREY

    def __post_init__(self) -> None:
        check_choice("policy", self.policy, POLICIES)

    def draw(self, draws: Draws, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Operations (positions in OPERATION_NAMES) and signed magnitudes, both (N, 2); a skipped step is Identity."""
        table = auto_augment_table(self.policy, height, width)
        choice = draws.integers(len(table.operation))[:, 0]
        applied = draws.uniform(count=2) < table.probability[choice]
        operation = torch.where(applied, table.operation[choice], 0)
        return operation, table.signed_magnitude(choice, draws)
