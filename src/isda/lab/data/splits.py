"""The paper's splits of a training set, as index tensors.

Randomness comes only from the seed (or torch.Generator) that is passed: the same labels and seed give the same
indices on every machine. Indices are ascending and on the device of `labels`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from isda.lab import seeds

Seed = int | torch.Generator


class HoldOut(NamedTuple):
    """A training set in two disjoint parts; training on everything again puts `held_out` back."""

    training: Tensor
    held_out: Tensor


class SemiSupervisedSplit(NamedTuple):
    """A training set in three disjoint parts: two labelled ones, and the rest, whose labels are not to be used."""

    training: Tensor
    held_out: Tensor
    unlabelled: Tensor

    @property
    def labelled(self) -> Tensor:
        """All labelled samples: `training` with `held_out` put back."""
        return torch.cat([self.training, self.held_out]).sort().values


def hold_out(labels: Tensor, size: int = 5000, seed: Seed = 0) -> HoldOut:
    """Hold out `size` samples with the class proportions of the whole, to choose hyper-parameters with.

    The paper holds out 5,000 of CIFAR's 50,000 training images to choose lambda_0, then trains on all of them.

    Example:
        >>> split = hold_out(torch.arange(10).repeat(6), size=20, seed=0)
        >>> len(split.training), len(split.held_out)
        (40, 20)
    """
    labels, generator = _check(labels), _generator(seed)
    if not 0 < size < len(labels):
        raise ValueError(f"size must be in 1..{len(labels) - 1} for {len(labels)} samples, got {size}")
    held_out = _draw(labels, _proportional(labels.bincount(), size, generator), generator)
    return HoldOut(_without(labels, held_out), held_out)


def balanced_sample(labels: Tensor, size: int, seed: Seed = 0) -> Tensor:
    """Indices of `size` samples with equally many of each class (within one, where `size` does not divide).

    Example:
        >>> labels = torch.arange(3).repeat(5)
        >>> labels[balanced_sample(labels, 6, seed=0)].bincount()
        tensor([2, 2, 2])
    """
    labels, generator = _check(labels), _generator(seed)
    available = labels.bincount().cpu()
    if not 0 < size <= len(labels):
        raise ValueError(f"size must be in 1..{len(labels)} for {len(labels)} samples, got {size}")
    quota = torch.full_like(available, size // len(available))
    quota[torch.randperm(len(available), generator=generator)[: size % len(available)]] += 1
    return _draw(labels, quota, generator)


def semi_supervised_split(
    labels: Tensor,
    labelled: int,
    seed: Seed = 0,
    held_out_fraction: float = 0.25,
    unlabelled: int | None = None,
) -> SemiSupervisedSplit:
    """Keep the labels of `labelled` samples, equally many of each class, and hold out 25% of those for choosing.

    As in the paper (section 6.1): choose with the quarter held out, then train the final runs with
    `held_out_fraction=0`. Which samples are labelled and which are not depends on the seed alone.

    Args:
        labels: (N,) of the whole training set.
        labelled: how many keep their label.
        seed: of the draws, or a generator.
        held_out_fraction: the share of the labelled samples that is held out.
        unlabelled: how many of the samples without a label are kept, drawn at random; all of them by default.

    Example:
        >>> split = semi_supervised_split(torch.arange(10).repeat(10), labelled=40, seed=0)
        >>> len(split.training), len(split.held_out), len(split.unlabelled)
        (30, 10, 60)
        >>> final = semi_supervised_split(torch.arange(10).repeat(10), labelled=40, seed=0, held_out_fraction=0)
        >>> torch.equal(final.training, split.labelled)
        True
    """
    if not 0 <= held_out_fraction < 1:
        raise ValueError(f"held_out_fraction must be in [0, 1), got {held_out_fraction}")
    size = round(labelled * held_out_fraction)
    if 0 < labelled == size:
        raise ValueError(f"held_out_fraction={held_out_fraction} leaves none of {labelled} labels for training")
    labels, generator = _check(labels), _generator(seed)
    chosen = balanced_sample(labels, labelled, generator)
    rest = _without(labels, chosen)
    if unlabelled is not None and not 0 <= unlabelled <= len(rest):
        raise ValueError(f"unlabelled must be in 0..{len(rest)} beside {labelled} labelled samples, got {unlabelled}")
    # Drawn first, and always, so that the held-out part does not change the other draws.
    order = torch.randperm(len(rest), generator=generator)[:unlabelled]
    held_out = chosen[:0]
    if size:
        held_out = chosen[_draw(labels[chosen], _proportional(labels[chosen].bincount(), size, generator), generator)]
    training = chosen[~torch.isin(chosen, held_out)]
    return SemiSupervisedSplit(training, held_out, rest[order.to(rest.device)].sort().values)


def _check(labels: Tensor) -> Tensor:
    if labels.dtype != torch.int64 or labels.dim() != 1 or len(labels) == 0 or labels.min() < 0:
        raise ValueError(
            "labels must be a non-empty int64 tensor (N,) without negative values, "
            f"got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    return labels


def _generator(seed: Seed) -> torch.Generator:
    return seed if isinstance(seed, torch.Generator) else seeds.generator(seed)


def _proportional(counts: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Samples per class: size * share rounded down, the rest to the largest remainders, ties at random."""
    share = size * counts.cpu().double() / int(counts.sum())
    quota = share.floor().long()
    lot = torch.randperm(len(quota), generator=generator)
    # Rounding makes equal remainders differ in the last digits, which would decide ties by class number.
    remainder = (share - quota).mul(1e9).round()
    largest = lot[remainder[lot].argsort(descending=True, stable=True)]
    quota[largest[: size - int(quota.sum())]] += 1
    return quota


def _draw(labels: Tensor, quota: Tensor, generator: torch.Generator) -> Tensor:
    """Indices of as many random samples of each class as its quota."""
    available = labels.bincount(minlength=len(quota)).cpu()
    short = (quota > available).nonzero().flatten().tolist()
    if short:
        raise ValueError(
            f"size={int(quota.sum())} asks for {int(quota[short[0]])} samples of class {short[0]}, which has "
            f"{int(available[short[0]])}"
        )
    chosen = []
    for label, count in enumerate(quota.tolist()):
        members = (labels == label).nonzero().flatten()
        order = torch.randperm(len(members), generator=generator)[:count]
        chosen.append(members[order.to(members.device)])
    return torch.cat(chosen).sort().values


def _without(labels: Tensor, indices: Tensor) -> Tensor:
    rest = torch.ones_like(labels, dtype=torch.bool)
    rest[indices] = False
    return rest.nonzero().flatten()
