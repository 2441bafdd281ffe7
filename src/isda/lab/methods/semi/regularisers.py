"""Pi-model, temporal ensembling (Laine & Aila, 2017), mean teacher (Tarvainen & Valpola, 2017),
virtual adversarial training (Miyato et al., 2018).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from isda.lab import distributed
from isda.lab.choices import check_choice
from isda.lab.devices import send
from isda.lab.methods.semi.base import (
    DISTANCES,
    RandomState,
    Regulariser,
    RegulariserContext,
    UnlabelledBatch,
    entropy,
    frozen_batch_norm,
    kl_divergence,
    mean_squared_error,
)


class PiModel(Regulariser):
    """1 / (C |B|) sum_i ||p_i - q_i||^2 for the predictions p, q of two views under two draws of dropout.

    Both passes are the student's and both get gradient, as in the authors' code; that of the two together is in
    expectation twice that of one pass alone.
    """

    name = "pi-model"

    def forward(self, network: nn.Module, view: UnlabelledBatch, logits: Tensor) -> Tensor:
        """See Regulariser; runs the student on the second view."""
        second = view.passed(network, view.needed("second"))
        return (torch.softmax(logits, 1) - torch.softmax(second, 1)).square().mean()


@dataclass(frozen=True, kw_only=True)
class TemporalEnsemblingOptions:
    """What may follow ``temporal-ensembling:``."""

    alpha: float = 0.6
    """Share of the past."""


class TemporalEnsembling(Regulariser):
    """1 / (C |B|) sum_i ||p_i - z_i||^2 with z_i = Z_i / (1 - alpha^t), Z_i <- alpha Z_i + (1 - alpha) p_i per epoch.

    t counts the epochs in which sample i was seen, so that the bias correction is exact for every sample; if all
    are seen in every epoch it is the authors'. A sample that was not seen in an earlier epoch has no target yet and
    weight 0. If a sample is seen several times in an epoch, its mean prediction counts.

    With several processes each step exchanges its predictions: every process holds the same ensemble at any time, and
    the checkpoint of one is that of all.

    Args:
        samples: size of the training set that indices refer to.
        num_classes: C.
        alpha: share of the past, 0.6 in all experiments of the publication.
        device: of the ensemble.
        dtype: its type.
    """

    name = "temporal-ensembling"
    Options = TemporalEnsemblingOptions

    ensemble: Tensor
    epochs: Tensor
    predictions: Tensor
    seen: Tensor

    def __init__(
        self,
        samples: int,
        num_classes: int,
        alpha: float = 0.6,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if samples < 1 or num_classes < 1:
            raise ValueError(f"samples and num_classes must be positive, got {samples!r} and {num_classes!r}")
        if not 0 <= alpha < 1:
            raise ValueError(f"alpha must lie in [0, 1), got {alpha!r}")
        self.alpha = float(alpha)
        self.register_buffer("ensemble", torch.zeros(samples, num_classes, device=device, dtype=dtype))
        self.register_buffer("epochs", torch.zeros(samples, device=device, dtype=torch.int64))
        # Sums and counts of the current epoch.
        self.register_buffer("predictions", torch.zeros(samples, num_classes, device=device, dtype=dtype))
        self.register_buffer("seen", torch.zeros(samples, device=device, dtype=torch.int64))

    @classmethod
    def create(cls, context: RegulariserContext, **options: Any) -> TemporalEnsembling:
        """An ensemble of all training samples."""
        return cls(context.samples, context.num_classes, device=context.device, dtype=context.dtype, **options)

    def forward(self, network: nn.Module, view: UnlabelledBatch, logits: Tensor) -> Tensor:
        """See Regulariser; in training mode it also stores the predictions for the next epoch's targets."""
        indices = send(view.needed("indices"), self.ensemble.device)
        if logits.shape[1:] != self.ensemble.shape[1:]:
            raise ValueError(f"logits must be (N, {self.ensemble.shape[1]}), got {tuple(logits.shape)}")
        target, known = self.targets(indices)
        if self.training:
            self._store(indices, torch.softmax(logits.detach(), 1))
        return (known * mean_squared_error(logits, target)).mean()

    def targets(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """(N, C) bias-corrected targets, and (N,) 1 if there is one, 0 for samples not seen in an earlier epoch."""
        epochs = self.epochs[indices]
        known = (epochs > 0).to(self.ensemble.dtype)
        correction = 1 - self.alpha ** epochs.clamp_min(1).to(self.ensemble.dtype)
        return self.ensemble[indices] / correction.unsqueeze(1), known

    @torch.no_grad()
    def after_epoch(self) -> None:
        """Fold the epoch's predictions into the ensemble."""
        seen = self.seen > 0
        mean = self.predictions / self.seen.clamp_min(1).unsqueeze(1)
        self.ensemble.copy_(torch.where(seen.unsqueeze(1), torch.lerp(mean, self.ensemble, self.alpha), self.ensemble))
        self.epochs.add_(seen)
        self.predictions.zero_()
        self.seen.zero_()

    def _store(self, indices: Tensor, predictions: Tensor) -> None:
        predictions = predictions.to(self.predictions)
        indices, predictions = distributed.gather_rows(indices), distributed.gather_rows(predictions)
        self.predictions.index_add_(0, indices, predictions)
        self.seen.index_add_(0, indices, torch.ones_like(indices))


def averaging_decay(step: int, decay: float, ramp_up_decay: float | None = None, ramp_up_steps: int = 0) -> float:
    """min(1 - 1 / (t + 1), alpha) of step t = 0, 1, ...: a true mean at first, an exponential one later.

    Args:
        step: t.
        decay: alpha, once the ramp-up of the consistency weight is over.
        ramp_up_decay: alpha until then; the same by default.
        ramp_up_steps: how long that is.

    Example:
        >>> [averaging_decay(step, 0.999, 0.99, 40_000) for step in (0, 1, 1000, 40_000)]
        [0.0, 0.5, 0.99, 0.999]
    """
    alpha = decay if ramp_up_decay is None or step >= ramp_up_steps else ramp_up_decay
    return min(1 - 1 / (step + 1), alpha)


@dataclass(frozen=True, kw_only=True)
class MeanTeacherOptions:
    """What may follow ``mean-teacher:``; see MeanTeacher."""

    teacher_decay: float = 0.999
    ramp_up_teacher_decay: float | None = None
    distance: str = "mse"


class MeanTeacher(Regulariser):
    """mean_i d(student(x_i), teacher(x'_i)) where theta' <- a theta' + (1 - a) theta after each step.

    The teacher gets the second view, with dropout and batch statistics of its own, as the authors' does. Only weights
    are averaged; the teacher's running statistics come from its own passes (averaged over processes), so that they
    fit its weights. It is the teacher that is evaluated.

    Args:
        network: the student, from which the teacher starts.
        teacher_decay: alpha of `averaging_decay`; 0.999 in the publication, where the ramp-up on SVHN has 0.99.
        ramp_up_teacher_decay: alpha during the ramp-up.
        ramp_up_steps: length of the ramp-up.
        distance: "mse", the authors' choice, or "kl".
    """

    name = "mean-teacher"
    Options = MeanTeacherOptions

    def __init__(
        self,
        network: nn.Module,
        teacher_decay: float = 0.999,
        ramp_up_teacher_decay: float | None = None,
        ramp_up_steps: int = 0,
        distance: str = "mse",
    ) -> None:
        super().__init__()
        for name, alpha in (("teacher_decay", teacher_decay), ("ramp_up_teacher_decay", ramp_up_teacher_decay)):
            if alpha is not None and not 0 <= alpha < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {alpha!r}")
        self.teacher_decay, self.ramp_up_teacher_decay = teacher_decay, ramp_up_teacher_decay
        self.ramp_up_steps = ramp_up_steps
        self.distance = check_choice("distance", distance, tuple(DISTANCES))
        self.teacher = copy.deepcopy(network).requires_grad_(False)

    @classmethod
    def create(cls, context: RegulariserContext, **options: Any) -> MeanTeacher:
        """A teacher that starts from the student."""
        return cls(context.network, ramp_up_steps=context.ramp_up_steps, **options)

    def forward(self, network: nn.Module, view: UnlabelledBatch, logits: Tensor) -> Tensor:
        """See Regulariser; runs the teacher on the second view."""
        with torch.no_grad():
            target = torch.softmax(view.passed(self.teacher, view.needed("second")), 1)
        return DISTANCES[self.distance](logits, target).mean()

    @torch.no_grad()
    def after_step(self, network: nn.Module, step: int) -> None:
        """Move the teacher towards the student."""
        decay = averaging_decay(step, self.teacher_decay, self.ramp_up_teacher_decay, self.ramp_up_steps)
        for mean, parameter in zip(self.teacher.parameters(), network.parameters(), strict=True):
            mean.lerp_(parameter, 1 - decay)
        if distributed.world_size() > 1:
            self._share_statistics()

    def evaluated(self, network: nn.Module) -> nn.Module:
        """The teacher."""
        return self.teacher

    def _share_statistics(self) -> None:
        """Average the running statistics, which each process has computed on its own part of the batch."""
        buffers = [buffer for buffer in self.teacher.buffers() if buffer.is_floating_point()]
        if not buffers:
            return
        together = torch.cat([buffer.flatten() for buffer in buffers])
        dist.all_reduce(together)
        together /= distributed.world_size()
        for buffer, part in zip(buffers, together.split([buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(part.view_as(buffer))


@dataclass(frozen=True, kw_only=True)
class VATOptions:
    """What may follow ``vat:``; see VAT."""

    epsilon: float = 8.0
    xi: float = 1e-3
    power_iterations: int = 1
    entropy_minimisation: bool = False


class VAT(Regulariser):
    """mean_i KL(p(x_i) || p(x_i + r_i)), r_i = epsilon * the direction of norm 1 that raises it most.

    The direction is the dominant eigenvector of the KL's Hessian at r = 0, found by power iteration with finite
    differences: d <- the gradient of KL(p(x) || p(x + xi d)), normalised, from a random d. That the KL and its gradient
    vanish at r = 0 takes the same network in all passes: they have the same dropout masks (so do those of the authors'
    code, through its fixed seeds), and the same batch alone in batch normalisation, whose running statistics stay as
    they are. Hence the prediction at the clean images is made here, without gradient, rather than taken from the
    logits of a batch with labelled images in it.

    Args:
        epsilon: norm of the perturbation of one sample, in the units of the images. With augmentation 8 on whitened
            CIFAR-10 and 3.5 on SVHN with pixels in -0.5..0.5, without it 10 and 2.5 (the authors' code).
        xi: step of the finite difference. The authors' code has 1e-6, at which float32 rounds the difference away: what
            is left is a direction of rounding errors, which raises the KL too, but less. With 1e-3 float32 finds the
            direction that 1e-6 gives in float64.
        power_iterations: 1 in the authors' code.
        entropy_minimisation: add the mean entropy of the prediction, the publication's VAT + EntMin.
    """

    name = "vat"
    Options = VATOptions

    def __init__(
        self, epsilon: float = 8.0, xi: float = 1e-3, power_iterations: int = 1, entropy_minimisation: bool = False
    ) -> None:
        super().__init__()
        if not epsilon > 0 or not xi > 0:
            raise ValueError(f"epsilon and xi must be positive, got {epsilon!r} and {xi!r}")
        if int(power_iterations) != power_iterations or power_iterations < 0:
            raise ValueError(f"power_iterations must be an integer >= 0, got {power_iterations!r}")
        self.epsilon, self.xi = float(epsilon), float(xi)
        self.power_iterations, self.entropy_minimisation = int(power_iterations), entropy_minimisation

    def forward(self, network: nn.Module, view: UnlabelledBatch, logits: Tensor) -> Tensor:
        """See Regulariser; 2 + power_iterations passes of the student over the images."""
        images = view.images.detach()
        direction = torch.randn_like(images)
        state = RandomState(images.device)
        with frozen_batch_norm(network):
            with torch.no_grad():
                target = torch.softmax(network(images), 1)

            def divergence(perturbation: Tensor) -> Tensor:
                with state.replayed():
                    return kl_divergence(network(images + perturbation), target)

            for _ in range(self.power_iterations):
                step = (self.xi * _unit(direction)).requires_grad_()
                with torch.enable_grad():
                    (direction,) = torch.autograd.grad(divergence(step).sum(), step)
            loss = divergence(self.epsilon * _unit(direction)).mean()
        return loss + entropy(logits).mean() if self.entropy_minimisation else loss


def _unit(direction: Tensor) -> Tensor:
    """Each sample's direction at norm 1; zero where it has none."""
    flat = direction.flatten(1)
    # The squares of a gradient of 1e-23 would vanish in float32.
    tiny = torch.finfo(flat.dtype).tiny
    flat = flat / flat.abs().amax(1, keepdim=True).clamp_min(tiny)
    return (flat / flat.norm(dim=1, keepdim=True).clamp_min(tiny)).view_as(direction)
