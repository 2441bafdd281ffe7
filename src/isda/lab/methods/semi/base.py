"""Unlabelled batches, distances between predictions, and the base class of regularisers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from isda.lab.devices import on_host


def add_noise(images: Tensor, standard_deviation: float) -> Tensor:
    """Images plus fresh Gaussian noise; the images themselves if the deviation is 0."""
    return images if standard_deviation == 0 else images + standard_deviation * torch.randn_like(images)


@dataclass(frozen=True)
class UnlabelledBatch:
    """Views of N unlabelled samples. Images may also be embeddings (N, D) for a network that takes those.

    In the original publications the samples are drawn from all training images, labelled ones included.
    """

    images: Tensor
    """(N, C, H, W), augmented and normalised: the student's input."""
    second: Tensor | None = None
    """The same samples, augmented independently: for the Pi-model's second pass and the mean teacher."""
    indices: Tensor | None = None
    """(N,) positions in the training set: for temporal ensembling."""
    labelled_images: Tensor | None = None
    """(L, C, H, W) the labelled images of the step, if they share batch statistics: see `passed`."""

    def __post_init__(self) -> None:
        if self.second is not None and self.second.shape != self.images.shape:
            raise ValueError(
                f"second must have the shape of images {tuple(self.images.shape)}, got {tuple(self.second.shape)}"
            )
        indices = self.indices
        if indices is not None and (indices.dtype != torch.int64 or indices.shape != self.images.shape[:1]):
            raise ValueError(
                f"indices must be int64 of shape ({len(self.images)},), got {indices.dtype} of {tuple(indices.shape)}"
            )

    def needed(self, name: str) -> Tensor:
        """A view that the method requires."""
        view: Tensor | None = getattr(self, name)
        if view is None:
            raise ValueError(f"the unlabelled batch must have {name} for this method, got None")
        return view

    def passed(self, network: nn.Module, images: Tensor) -> Tensor:
        """The network's logits of a view, computed in one batch with the labelled images if there are any.

        In the publications of the Pi-model and the mean teacher every pass has the whole batch, labelled images
        included, so that all passes have the same batch statistics.
        """
        if self.labelled_images is None:
            return network(images)
        logits: Tensor = network(torch.cat([self.labelled_images, images]))
        return logits[len(self.labelled_images) :]

    def with_noise(self, standard_deviation: float) -> UnlabelledBatch:
        """A fresh draw of Gaussian noise on the first and on the second view."""
        if standard_deviation == 0:
            return self
        second = None if self.second is None else add_noise(self.second, standard_deviation)
        return replace(self, images=add_noise(self.images, standard_deviation), second=second)


@contextmanager
def frozen_batch_norm(network: nn.Module) -> Iterator[None]:
    """Batch normalisation keeps its running statistics while the block runs.

    In training mode it still normalises with the statistics of the batch, as Miyato et al. (2018) do in passes over
    perturbed images.
    """
    layers = [layer for layer in network.modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats]
    try:
        for layer in layers:
            layer.track_running_stats = False
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True


class RandomState:
    """The state of torch's generators (CPU and one device) at construction.

    Example:
        >>> state = RandomState(torch.device("cpu"))
        >>> first = torch.rand(3)
        >>> with state.replayed():
        ...     again = torch.rand(3)
        >>> torch.equal(first, again)
        True
    """

    def __init__(self, device: torch.device) -> None:
        self._devices = [] if on_host(device) else [device]
        self._cpu = torch.get_rng_state()
        self._states = [torch.get_device_module(device).get_rng_state(device) for device in self._devices]

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Draw the same numbers again in the block, then restore the generators."""
        kind = self._devices[0].type if self._devices else "cpu"
        with torch.random.fork_rng(self._devices, device_type=kind):
            torch.set_rng_state(self._cpu)
            for device, state in zip(self._devices, self._states, strict=True):
                torch.get_device_module(device).set_rng_state(state, device)
            yield


# Distances detach the target and never the student's logits: a consistency term can neither train its target nor lose
# its gradient.


def mean_squared_error(logits: Tensor, target: Tensor) -> Tensor:
    """(N,) 1/C sum_c (softmax(logits)_c - target_c)^2.

    The mean over classes, not their sum. Laine & Aila's 1 / (C |B|) and the sum / num_classes of the mean teacher's
    authors are this number; a weight tuned for the sum over classes has to be multiplied by C.

    Args:
        logits: (N, C) of the student.
        target: (N, C) probabilities; gets no gradient.
    """
    return (torch.softmax(logits, 1) - _constant(logits, target)).square().mean(1)


def kl_divergence(logits: Tensor, target: Tensor) -> Tensor:
    """(N,) KL(target || softmax(logits)) = sum_c target_c (log target_c - log softmax(logits)_c).

    Args:
        logits: (N, C) of the student.
        target: (N, C) probabilities; gets no gradient.
    """
    target = _constant(logits, target)
    return (torch.xlogy(target, target) - target * torch.log_softmax(logits, 1)).sum(1)


def entropy(logits: Tensor) -> Tensor:
    """(N,) entropy of the prediction, -sum_c p_c log p_c, with gradient."""
    return -(torch.softmax(logits, 1) * torch.log_softmax(logits, 1)).sum(1)


DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"mse": mean_squared_error, "kl": kl_divergence}


def _constant(logits: Tensor, target: Tensor) -> Tensor:
    if logits.ndim != 2 or target.shape != logits.shape:
        raise ValueError(f"logits and target must both be (N, C), got {tuple(logits.shape)} and {tuple(target.shape)}")
    return target.detach()


class RegulariserContext(NamedTuple):
    """The arguments that regularisers are created from."""

    network: nn.Module
    """The student, before it is wrapped or compiled."""
    samples: int
    """Size of the training set that indices of unlabelled batches refer to."""
    num_classes: int
    device: torch.device
    dtype: torch.dtype
    ramp_up_steps: int
    """Steps over which the weight of the regulariser grows."""


@dataclass(frozen=True, kw_only=True)
class NoRegulariserOptions:
    """The options of regularisers that have none."""


class Regulariser(nn.Module, ABC):
    """L_regularization of the paper's overall objective, without its weight eta_2.

    Whatever must survive a resume (teacher, ensemble) is in the state_dict.
    """

    name: ClassVar[str]
    """As users write it."""
    Options: ClassVar[type] = NoRegulariserOptions
    """A dataclass of its options."""

    @classmethod
    def create(cls, context: RegulariserContext, **options: Any) -> Regulariser:
        """The regulariser of a run; ``options`` as in Options."""
        return cls(**options)

    @abstractmethod
    def forward(self, network: nn.Module, view: UnlabelledBatch, logits: Tensor) -> Tensor:
        """The regulariser of one step, a scalar with gradient into the student.

        Args:
            network: the student, which may be wrapped or compiled; maps images to logits.
            view: the unlabelled samples.
            logits: (N, C) the student's logits of ``view.images``, with gradient: computed once for all terms.
        """

    def after_step(self, network: nn.Module, step: int) -> None:
        """After each optimiser step; ``step`` is how many steps came before it: 0, 1, 2, ..."""

    def after_epoch(self) -> None:
        """After each pass over the unlabelled samples."""

    def evaluated(self, network: nn.Module) -> nn.Module:
        """The network whose predictions are the method's result: the student, by default."""
        return network
