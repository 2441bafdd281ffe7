"""Splits, normalisation, views and batches of labelled and unlabelled images.

An epoch is one pass over all images. Order and augmentation are functions of (seed, epoch, pass, sample).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from isda.lab.choices import expect_type
from isda.lab.data import DataSet, ZCAWhitening, normalise_per_image, semi_supervised_split, zca_whitening
from isda.lab.data.augment import (
    Compose,
    Draws,
    HorizontalFlip,
    Normalize,
    RandomTranslation,
    Transform,
)
from isda.lab.devices import send
from isda.lab.engine.processes import Processes
from isda.lab.methods.semi import UnlabelledBatch
from isda.lab.methods.semi.defaults import MethodSettings
from isda.lab.seeds import generator
from isda.lab.tasks.common.data import EvaluationImages, ImageBatch, to_network_input, training_and_evaluation
from isda.lab.tasks.semi_supervised.settings import SemiConfig


class SemiSplit(NamedTuple):
    """Positions among the training images, and the evaluation images."""

    labelled: Tensor
    unlabelled: Tensor
    """Images that are used without labels."""
    evaluation: EvaluationImages


def split_data(config: SemiConfig, data: DataSet) -> SemiSplit:
    """Draw the labelled images of a run, then those used without labels, from the images that are not held out.

    A share of the labelled images can be held out instead: the paper chooses its settings on 25% of them.
    """
    # At most one of the two is held out. If labelled images are, the test images are not accessed.
    if config.held_out_labels:
        left = torch.arange(len(data.y_train))
    else:
        left, evaluation = training_and_evaluation(data, config.held_out)
    split = semi_supervised_split(
        data.y_train[left], config.labels, config.seed, config.held_out_labels, config.unlabelled
    )
    if config.held_out_labels:
        evaluation = EvaluationImages(data.x_train, data.y_train, left[split.held_out])
    return SemiSplit(left[split.training], left[split.unlabelled], evaluation)


WHITENING_FILE = "whitening.safetensors"
"""In the folder of a run that whitens: the run can be used without the training data, and resumed to the bit."""

# Damps the directions that hold little but the rounding of pixels to 8 bits, see ZCAWhitening; this much in
# Laine & Aila's code, for pixels in 0..1 as well.
EPS = 1e-5

# Bounds the floating-point copy of uint8 images.
CHUNK = 1000


def whitening_for(
    config: SemiConfig, data: DataSet, folder: Path, processes: Processes, data_root: Path | None = None
) -> ZCAWhitening | None:
    """The whitening of a run: the copy in its folder, else that of the data set's training images; None if it has none.

    Whitening is a property of the data set, as its channel statistics are: it is fitted to all training images,
    whichever of them a run uses, and stored under the data root for other runs.
    """
    if config.normalisation != "zca":
        return None
    if (folder / WHITENING_FILE).is_file():
        return ZCAWhitening.read(folder / WHITENING_FILE, config.data_digest).to(processes.device)
    # The first process fits, the others read its file; if none could be written, its numbers are shared.
    if not processes.first:
        processes.wait()
    fitted = zca_whitening(data, data_root, EPS)
    if processes.first:
        processes.wait()
    fitted.to(processes.device)
    processes.share_buffers(fitted)
    return fitted


def normaliser_for(config: SemiConfig, whiten: ZCAWhitening | None = None) -> Transform:
    """The last transform of a pipeline, from pixels to inputs of the network."""
    if config.normalisation == "zca":
        if whiten is None:
            raise ValueError("whiten must be given for normalisation='zca', got None")
        return whiten
    if config.normalisation == "per-image":
        return _per_image
    return Normalize(config.mean, config.std)


def normalised(images: Tensor, normalise: Transform, device: torch.device) -> Tensor:
    """(N, C, H, W) float32 on a device, computed in chunks."""
    result = torch.empty(images.shape, dtype=torch.float32, device=device)
    for part, pixels in zip(result.split(CHUNK), images.split(CHUNK), strict=True):
        part.copy_(normalise(pixels.to(device)))
    return result


def _per_image(images: Tensor, draws: Draws | None = None) -> Tensor:
    return normalise_per_image(images)


WEAK: dict[str, tuple[Compose, Compose]] = {
    "none": (Compose(), Compose()),
    "translate": (Compose(), Compose(RandomTranslation(2))),
    "translate-flip": (Compose(HorizontalFlip()), Compose(RandomTranslation(2))),
}
"""The augmentations of semi-supervised methods by name: mirroring, then translation."""


@dataclass(frozen=True)
class Views:
    """The views of a method. The first is the same for all methods, so that their runs are paired."""

    augment: str
    """One of WEAK."""
    second: bool = False
    shared_flip: bool = False
    """Whether the second view is mirrored like the first."""

    def first(self, images: Tensor, draws: Draws) -> Tensor:
        """One view of normalised images."""
        flip, translate = WEAK[self.augment]
        return translate(flip(images, draws), draws)

    def all(self, images: Tensor, indices: Tensor, draws: Draws) -> UnlabelledBatch:
        """Every view that the method needs.

        Args:
            images: (N, C, H, W) normalised.
            indices: (N,) which of the run's images they are.
            draws: of the samples; each view draws on.
        """
        flip, translate = WEAK[self.augment]
        flipped = flip(images, draws)
        first, second = translate(flipped, draws), None
        if self.second:
            second = translate(flipped if self.shared_flip else flip(images, draws), draws)
        return UnlabelledBatch(first, second, indices)


# An image is augmented independently with its label and without.
LABELLED, UNLABELLED = 0, 1
# More than the number of images of any data set.
MOST_SAMPLES = 1 << 40


@dataclass(frozen=True)
class SemiBatch(ImageBatch):
    """Labelled images, and unlabelled ones if the method uses any."""

    unlabelled: UnlabelledBatch | None = None

    def to(self, dtype: torch.dtype, channels_last: bool) -> SemiBatch:
        """The batch with images of another type and memory format."""
        batch = self.unlabelled
        if batch is not None:
            views = {name: getattr(batch, name) for name in ("images", "second")}
            views = {
                name: to_network_input(view, dtype, channels_last) for name, view in views.items() if view is not None
            }
            batch = replace(batch, **views)
        return replace(self, images=to_network_input(self.images, dtype, channels_last), unlabelled=batch)


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
        pool: (P,) positions in the data set of all images of the run.
        images: (P, C, H, W) of the pool, normalised, on the training device.
        labelled: (L,) which of the pool, 0..P-1, have labels.
        targets: (L,) their labels, on the training device.
        unlabelled: (U,) which of the pool are used without labels.
        steps: of an epoch.
        labelled_size: labelled images per step, over all processes together.
        unlabelled_size: unlabelled images per step; 0 for methods that use none.
        views: augmentation.
        seed: of the run.
        rank: this process.
        world: number of processes; each gets a consecutive part of both halves of every batch.
    """

    pool: Tensor
    images: Tensor
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
        labelled, passes = self.labelled_order(epoch)
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

    def labelled_order(self, epoch: int) -> tuple[Tensor, Tensor]:
        """(steps, size) labelled images 0..L-1 of an epoch, and the number of the pass that each comes from."""
        return self._order(len(self.labelled), self.labelled_size, epoch, LABELLED)

    def _order(self, members: int, size: int, epoch: int, role: int) -> tuple[Tensor, Tensor]:
        """(steps, size) positions among the members, and the number of the pass that each comes from."""
        positions, passes = shuffled_passes(members, self.steps * size, self.seed, epoch, role)
        return positions.view(self.steps, size), passes.view(self.steps, size)

    def _unlabelled(self, which: Tensor, passes: Tensor, epoch: int) -> UnlabelledBatch:
        positions = self.unlabelled[which]
        draws = self._draws(positions, passes, epoch, UNLABELLED)
        return self.views.all(self._take(self.images, positions), positions, draws)

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
        split: the labelled and unlabelled images.
        settings: of the method's publication: its views, and whether labelled images are used without labels as well.
        normalise: from pixels to inputs of the network.
        processes: that train together.
        needs_unlabelled: whether the method uses unlabelled images.
    """
    pool = torch.cat([split.labelled, split.unlabelled]).sort().values
    labelled = torch.searchsorted(pool, split.labelled)
    pixels, device = expect_type(data.x_train, Tensor)[pool], processes.device
    return SemiBatches(
        pool=pool,
        images=normalised(pixels, normalise, device),
        labelled=labelled,
        targets=data.y_train[split.labelled].to(device),
        unlabelled=torch.arange(len(pool)) if settings.labelled_too else torch.searchsorted(pool, split.unlabelled),
        steps=config.steps_per_epoch,
        labelled_size=config.labelled_per_batch,
        unlabelled_size=config.batch_size if needs_unlabelled else 0,
        views=Views(config.augment, settings.second_view, settings.shared_flip),
        seed=config.seed,
        rank=processes.rank,
        world=processes.world,
    )
