"""Batches of labelled and of unlabelled images, the same whatever the number of processes and wherever a run resumes.

An epoch is one pass over the pool of all images, labelled or not; labelled images are shuffled and gone through again
and again meanwhile. Order and augmentation are functions of (seed, epoch, pass, sample): there is no state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isda.classification.batches import Batch, ready
from isda.data import DataSet
from isda.data.augment import Draws, Transform
from isda.devices import send
from isda.engine.processes import Processes
from isda.errors import of_type
from isda.seeds import generator
from isda.semi import UnlabelledBatch
from isda.semi.defaults import MethodSettings
from isda.semi_supervised.config import SemiConfig
from isda.semi_supervised.normalisation import normalised
from isda.semi_supervised.split import SemiSplit
from isda.semi_supervised.views import Views

__all__ = ["SemiBatch", "SemiBatches", "semi_batches", "shuffled_passes"]

# An image is augmented independently where it is used with its label and where it is used without.
LABELLED, UNLABELLED = 0, 1
# Beyond the number of images of any data set.
MOST_SAMPLES = 1 << 40


@dataclass(frozen=True)
class SemiBatch(Batch):
    """Labelled images, and unlabelled ones where the method sees any."""

    unlabelled: UnlabelledBatch | None = None

    def to(self, dtype: torch.dtype, channels_last: bool) -> SemiBatch:
        """The batch with images of another type and, if asked for, another order in memory."""
        view = self.unlabelled
        if view is not None:
            views = {name: getattr(view, name) for name in ("images", "second", "strong")}
            given = {name: ready(one, dtype, channels_last) for name, one in views.items() if one is not None}
            view = replace(view, **given)
        return replace(self, images=ready(self.images, dtype, channels_last), unlabelled=view)


def shuffled_passes(members: int, count: int, *seed: int) -> tuple[Tensor, Tensor]:
    """(count,) positions 0..members-1 in one shuffled pass after the other, and (count,) the number of the pass.

    Example:
        >>> positions, passes = shuffled_passes(3, 5, 0)
        >>> positions[:3].sort().values.tolist(), passes.tolist()
        ([0, 1, 2], [0, 0, 0, 1, 1])
    """
    source = generator(*seed)
    passes = [torch.randperm(members, generator=source) for _ in range(max(1, -(-count // members)))]
    return torch.cat(passes)[:count], torch.arange(count) // members


@dataclass(frozen=True, kw_only=True)
class SemiBatches:
    """The training batches of any epoch, from any step on.

    Args:
        pool: (P,) positions in the data set of all images that the run may see.
        images: (P, C, H, W) of the pool, normalised, on the training device.
        pixels: (P, C, H, W) uint8, if there are strong views.
        labelled: (L,) which of the pool, 0..P-1, have labels.
        targets: (L,) these labels, on the training device. There are no others here.
        unlabelled: (U,) which of the pool are used without labels.
        steps: of an epoch.
        labelled_size: labelled images per step, over all processes together.
        unlabelled_size: unlabelled images per step; 0 for methods that see none.
        views: augmentation.
        seed: of the run.
        rank: this process.
        world: number of processes; each gets a consecutive part of both halves of every batch.
    """

    pool: Tensor
    images: Tensor
    pixels: Tensor | None = None
    labelled: Tensor
    targets: Tensor
    unlabelled: Tensor
    steps: int
    labelled_size: int
    unlabelled_size: int
    views: Views
    seed: int
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        least = min(self.labelled_size, self.unlabelled_size or self.labelled_size)
        if least < self.world:
            raise ValueError(
                f"labelled_per_batch and batch_size must be at least {self.world}, the number of processes, got "
                f"{self.labelled_size} and {self.unlabelled_size}"
            )

    def epoch(self, epoch: int, start: int = 0) -> Iterator[SemiBatch]:
        """This process's part of each batch of an epoch, from step ``start`` on."""
        labelled, passes = self._order(len(self.labelled), self.labelled_size, epoch, LABELLED)
        others, other_passes = self._order(len(self.unlabelled), self.unlabelled_size, epoch, UNLABELLED)
        for step in range(start, self.steps):
            which = self._mine(labelled[step])
            positions = self.labelled[which]
            draws = self._draws(positions, self._mine(passes[step]), epoch, LABELLED)
            images = self.views.first(self._take(self.images, positions), draws)
            targets = self.targets[send(which, self.targets.device)]
            unlabelled = None
            if self.unlabelled_size:
                unlabelled = self._unlabelled(self._mine(others[step]), self._mine(other_passes[step]), epoch)
            yield SemiBatch(images, targets, self.pool[positions], unlabelled)

    def _order(self, members: int, size: int, epoch: int, role: int) -> tuple[Tensor, Tensor]:
        """(steps, size) positions among the members, and the number of the pass that each comes from."""
        positions, passes = shuffled_passes(members, self.steps * size, self.seed, epoch, role)
        return positions.view(self.steps, size), passes.view(self.steps, size)

    def _unlabelled(self, which: Tensor, passes: Tensor, epoch: int) -> UnlabelledBatch:
        positions = self.unlabelled[which]
        draws = self._draws(positions, passes, epoch, UNLABELLED)
        pixels = None if self.pixels is None else self._take(self.pixels, positions)
        return self.views.all(self._take(self.images, positions), pixels, positions, draws)

    def _draws(self, positions: Tensor, passes: Tensor, epoch: int, role: int) -> Draws:
        """Random numbers of the samples, fresh for every pass of the epoch."""
        return Draws.for_samples(self.pool[positions] + passes * MOST_SAMPLES, seed=self.seed, epoch=2 * epoch + role)

    def _mine(self, whole: Tensor) -> Tensor:
        return whole.tensor_split(self.world)[self.rank]

    def _take(self, images: Tensor, positions: Tensor) -> Tensor:
        return images[send(positions, images.device)]


def semi_batches(
    config: SemiConfig,
    data: DataSet,
    split: SemiSplit,
    settings: MethodSettings,
    normalise: Transform,
    processes: Processes,
    *,
    needs_unlabelled: bool,
) -> SemiBatches:
    """The batches of a run.

    Args:
        config: of the run.
        data: its data set, in memory.
        split: which images have labels and which are used without.
        settings: of the method's publication: its views, and whether labelled images are used without labels as well.
        normalise: from pixels to what the network sees.
        processes: who trains together.
        needs_unlabelled: whether the method sees unlabelled images at all.
    """
    pool = torch.cat([split.labelled, split.unlabelled]).sort().values
    labelled = torch.searchsorted(pool, split.labelled)
    pixels, device = of_type(data.x_train, Tensor)[pool], processes.device
    return SemiBatches(
        pool=pool,
        images=normalised(pixels, normalise, device),
        pixels=pixels.to(device) if settings.strong_view else None,
        labelled=labelled,
        targets=data.y_train[split.labelled].to(device),
        unlabelled=torch.arange(len(pool)) if settings.labelled_too else torch.searchsorted(pool, split.unlabelled),
        steps=config.steps_per_epoch,
        labelled_size=config.labelled_per_batch,
        unlabelled_size=config.batch_size if needs_unlabelled else 0,
        views=Views.of(config.augment, settings, normalise, (pixels.shape[2], pixels.shape[3])),
        seed=config.seed,
        rank=processes.rank,
        world=processes.world,
    )
