"""The paper's overall objective: L^L + eta_1 L^U + eta_2 L_regularization, as named terms that are already weighted."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from isda import ISDALoss
from isda.attach import Recorder
from isda.lab.choices import check_choice, expect_type
from isda.lab.methods.semi.base import Regulariser, UnlabelledBatch, add_noise, frozen_batch_norm
from isda.lab.methods.semi.defaults import RampedWeight


class Losses(NamedTuple):
    """The loss terms of one step."""

    terms: dict[str, Tensor]
    """Weighted scalars by name: "labelled", then "consistency" and "regulariser" if the method has them."""
    logits: Tensor
    """(N, C) of the labelled images, for the training error."""


class SemiSupervised(nn.Module):
    """A criterion for labelled images, the consistency bound of Prop. 2, and a regulariser for unlabelled ones.

    The covariances of the criterion learn from labelled features only, and one step uses one strength lambda for both
    bounds. lambda has the criterion's own schedule, the two weights have theirs; their step is in the
    state_dict.

    Args:
        network: the student itself, before it is wrapped or compiled.
        criterion: nn.CrossEntropyLoss, an ISDALoss or an ExplicitLoss (not attached), with reduction="mean".
        regulariser: None for labelled images (and consistency) alone.
        consistency_weight: eta_1; needs a criterion with covariances. The paper chooses it from 0.5, 1, 2.
        regulariser_weight: eta_2.
        passes: "joint" takes labelled and unlabelled images through the student in one batch, and labelled images
            along with every other view, through the teacher as well (Laine & Aila; Tarvainen & Valpola).
            "separate" takes them one after the other, each normalised by its own batch statistics, of which only the
            labelled ones enter the running averages (Miyato et al.).
        mean_over: what the labelled loss is a mean over: the "labelled" images, as in the paper, Verma et al. (2019),
            and Miyato et al., or the whole "batch", labelled and unlabelled: the labelled sum is divided by
            both, as Laine & Aila and Tarvainen & Valpola do.
        input_noise: standard deviation of Gaussian noise on all images, drawn anew for each view; 0.15 in Laine & Aila
            and Tarvainen & Valpola.

    Example:
        >>> from isda.lab import networks
        >>> from isda import ISDALoss
        >>> from isda.lab.methods.semi import MeanTeacher
        >>> network = networks.create("cnn-13", num_classes=10, width=0.05)
        >>> criterion = ISDALoss(10, network.feature_dim, lambda_0=0.5, total_steps=100)
        >>> objective = SemiSupervised(network, criterion, MeanTeacher(network), consistency_weight=1.0)
        >>> labelled, unlabelled, second = torch.randn(3, 4, 3, 16, 16)
        >>> targets = torch.tensor([0, 1, 2, 3])
        >>> terms, logits = objective(network, labelled, targets, UnlabelledBatch(unlabelled, second))
        >>> list(terms)
        ['labelled', 'consistency', 'regulariser']
        >>> sum(terms.values()).backward()  # and the optimiser's step
        >>> objective.after_step(network)
    """

    def __init__(
        self,
        network: nn.Module,
        criterion: nn.Module,
        regulariser: Regulariser | None = None,
        *,
        consistency_weight: RampedWeight | float = 0.0,
        regulariser_weight: RampedWeight | float = 1.0,
        passes: str = "joint",
        mean_over: str = "labelled",
        input_noise: float = 0.0,
    ) -> None:
        super().__init__()
        if getattr(criterion, "reduction", "mean") != "mean":
            raise ValueError(f"criterion must have reduction='mean', got {criterion.reduction!r}")
        if not input_noise >= 0:
            raise ValueError(f"input_noise must not be negative, got {input_noise!r}")
        self.criterion, self.regulariser = criterion, regulariser
        self.consistency_weight = _ramped(consistency_weight)
        self.regulariser_weight = _ramped(regulariser_weight)
        if self.consistency_weight.final and not isinstance(criterion, ISDALoss):
            raise ValueError(
                f"consistency_weight needs an ISDALoss or ExplicitLoss as criterion, got {type(criterion).__name__}"
            )
        self.passes = check_choice("passes", passes, ("joint", "separate"))
        self.mean_over = check_choice("mean_over", mean_over, ("labelled", "batch"))
        self.input_noise = float(input_noise)
        self.step = 0
        self._recorder: Recorder | None = None
        if isinstance(criterion, ISDALoss):
            self._recorder = Recorder(network)

    @property
    def needs_unlabelled(self) -> bool:
        """Whether there is any term for unlabelled images."""
        return self.regulariser is not None or self.consistency_weight.final > 0

    def forward(
        self, network: nn.Module, images: Tensor, targets: Tensor, unlabelled: UnlabelledBatch | None = None
    ) -> Losses:
        """The loss terms of one training step; their sum is what to minimise.

        Args:
            network: the student, which may be wrapped or compiled.
            images: labelled images.
            targets: (N,) their classes.
            unlabelled: unlabelled samples; ignored if no term needs them.
        """
        if not self.needs_unlabelled:
            logits = network(add_noise(images, self.input_noise))
            labelled, _ = self._labelled(logits, len(images), targets)
            return Losses({"labelled": labelled}, logits)
        if unlabelled is None:
            raise ValueError("unlabelled must be an UnlabelledBatch for this objective, got None")
        images, view = add_noise(images, self.input_noise), unlabelled.with_noise(self.input_noise)
        strength = None
        if self.consistency_weight.final:  # that of now: the call of the criterion advances it
            strength = expect_type(self.criterion, ISDALoss).current_strength()
        if self.passes == "joint":
            together = network(torch.cat([images, view.images]))
            logits, others = together.split([len(images), len(view.images)])
            view = replace(view, labelled_images=images)
            labelled, weight = self._labelled(together, len(images), targets)
        else:
            logits = network(images)
            labelled, weight = self._labelled(logits, len(images), targets)
            with frozen_batch_norm(network):
                others = network(view.images)
        share = len(images) / (len(images) + len(view.images)) if self.mean_over == "batch" else 1.0
        terms = {"labelled": share * labelled}
        if self.consistency_weight.final:
            criterion = expect_type(self.criterion, ISDALoss)
            consistency = criterion.consistency(others, weight=weight, strength=strength)
            terms["consistency"] = self.consistency_weight.at(self.step) * consistency
        if self.regulariser is not None:
            terms["regulariser"] = self.regulariser_weight.at(self.step) * self.regulariser(network, view, others)
        return Losses(terms, logits)

    def after_step(self, network: nn.Module) -> None:
        """After each optimiser step: moves the teacher, then the ramps."""
        if self.regulariser is not None:
            self.regulariser.after_step(network, self.step)
        self.step += 1

    def after_epoch(self) -> None:
        """After each pass over the unlabelled samples."""
        if self.regulariser is not None:
            self.regulariser.after_epoch()

    def evaluated(self, network: nn.Module) -> nn.Module:
        """The network whose predictions are the method's result: the teacher if there is one."""
        return network if self.regulariser is None else self.regulariser.evaluated(network)

    def measures(self) -> dict[str, float]:
        """The strength lambda and the weights as they are now."""
        measures = {}
        if isinstance(self.criterion, ISDALoss):
            measures["strength"] = self.criterion.strength
        if self.consistency_weight.final:
            measures["consistency_weight"] = self.consistency_weight.at(self.step)
        if self.regulariser is not None:
            measures["regulariser_weight"] = self.regulariser_weight.at(self.step)
        return measures

    def get_extra_state(self) -> Tensor:
        """The step, for the state_dict; it is kept on the host, so that ramps do not synchronise with a GPU."""
        return torch.tensor(self.step)

    def set_extra_state(self, state: Tensor) -> None:
        """Take the step from a state_dict."""
        self.step = int(state)

    def _labelled(self, logits: Tensor, count: int, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """The criterion of the first ``count`` rows, and the weight of the classifier if it was recorded."""
        if self._recorder is None:
            return self.criterion(logits[:count], targets), None
        found = self._recorder.find(logits)
        if found is None:
            raise ValueError("network must be in training mode, got a classifier in eval mode")
        features, weight, _ = found
        return self.criterion(logits[:count], targets, features=features[:count], weight=weight), weight


def _ramped(weight: RampedWeight | float) -> RampedWeight:
    return weight if isinstance(weight, RampedWeight) else RampedWeight(float(weight))
