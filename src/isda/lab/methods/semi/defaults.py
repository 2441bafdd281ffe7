"""Ramps, and the settings of the original publications by method and data set, with their sources.

[LA] Laine & Aila, "Temporal ensembling for semi-supervised learning", ICLR 2017, and the authors' code (tempens).
[TV] Tarvainen & Valpola, "Mean teachers are better role models", NeurIPS 2017, and the authors' code
     (mean-teacher: cifar10_final_eval, svhn_final_eval).
[M]  Miyato, Maeda, Koyama & Ishii, "Virtual adversarial training", TPAMI 2018, and the authors' code (vat_tf).

The paper (ISDA) uses "exactly the same hyper-parameter settings" but trains all methods by one recipe of its own, so
optimisers and learning rates of these publications are not here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from isda.lab.choices import check_choice


def gaussian_ramp_up(step: int, steps: int) -> float:
    """exp(-5 (1 - t)^2) with t = step / steps in 0..1: from 0.0067 to 1.

    Laine & Aila ramp the unsupervised weight (and their learning rate) like this over the first 80 of 300 epochs,
    Tarvainen & Valpola (2017) over the first 40,000 of 150,000 or 180,000 steps.

    Example:
        >>> [round(gaussian_ramp_up(step, 10), 4) for step in (0, 5, 10, 99)]
        [0.0067, 0.2865, 1.0, 1.0]
    """
    return math.exp(-5.0 * (1.0 - _progress(step, steps)) ** 2)


def gaussian_ramp_down(step: int, steps: int) -> float:
    """exp(-12.5 t^2) with t = step / steps in 0..1, counted from where the ramp-down begins: from 1 to 3.7e-6.

    Laine & Aila ramp the learning rate down like this over the last 50 epochs.

    Example:
        >>> [round(gaussian_ramp_down(step, 10), 4) for step in (-5, 0, 5, 10)]
        [1.0, 1.0, 0.0439, 0.0]
    """
    return math.exp(-12.5 * _progress(step, steps) ** 2)


def linear_ramp_up(step: int, steps: int) -> float:
    """The share t = step / steps in 0..1: the schedule of ISDA's own strength lambda.

    Example:
        >>> [linear_ramp_up(step, 10) for step in (0, 5, 99)]
        [0.0, 0.5, 1.0]
    """
    return _progress(step, steps)


def _progress(step: int, steps: int) -> float:
    """The share t = step / steps, clamped to 0..1; a ramp of no steps is over at once."""
    if steps < 0:
        raise ValueError(f"steps must not be negative, got {steps!r}")
    return 1.0 if steps == 0 else min(max(step / steps, 0.0), 1.0)


RAMPS: dict[str, Callable[[int, int], float]] = {"gaussian": gaussian_ramp_up, "linear": linear_ramp_up}


@dataclass(frozen=True)
class RampedWeight:
    """The weight of a loss term: ``final`` times a ramp-up over the first ``steps``.

    Example:
        >>> weight = RampedWeight(8.0, "gaussian", steps=100)
        >>> round(weight.at(0), 4), weight.at(100)
        (0.0539, 8.0)
    """

    final: float
    """Once the ramp is over."""
    ramp: str = "gaussian"
    """One of RAMPS."""
    steps: int = 0
    """Length of the ramp; 0 for a constant weight."""

    def __post_init__(self) -> None:
        if not 0 <= self.final < math.inf:
            raise ValueError(f"final must be a finite number >= 0, got {self.final!r}")
        check_choice("ramp", self.ramp, tuple(RAMPS))
        if self.steps < 0:
            raise ValueError(f"steps must not be negative, got {self.steps!r}")

    def at(self, step: int) -> float:
        """The weight of step 0, 1, 2, ..."""
        return self.final * RAMPS[self.ramp](step, self.steps)


@dataclass(frozen=True, kw_only=True)
class MethodSettings:
    """How a publication runs its method on a data set."""

    weight: float
    """The publication's eta_2 once it is ramped up."""
    scaled_by_labels: bool = False
    """Whether that is multiplied by the share of samples that have labels."""
    mean_over: str = "labelled"
    """What the publication's labelled loss is a mean over, see SemiSupervised."""
    ramp_up: float = 0.0
    """Share of training over which the weight follows the Gaussian ramp-up."""
    passes: str = "joint"
    """See SemiSupervised."""
    input_noise: float = 0.0
    """See SemiSupervised."""
    labelled_per_batch: int | None
    """None: batches are drawn from all samples, labelled or not."""
    unlabelled_per_batch: int
    """If labelled_per_batch is None, the size of the whole batch."""
    labelled_too: bool = True
    """Whether the regulariser has labelled samples too."""
    second_view: bool = False
    """Whether the regulariser compares two views of a sample."""
    shared_flip: bool = False
    """Whether the second view is mirrored like the first; its translation is its own in any case."""
    image_deviation: float = 1.0
    """Standard deviation of the images that the option ``epsilon`` is for."""
    options: Mapping[str, float] = field(default_factory=dict)
    """Options of the regulariser."""

    def weight_for(self, labels: int, samples: int, total_steps: int, mean_over: str = "labelled") -> RampedWeight:
        """eta_2 of a run with this many labelled samples of all, and steps.

        With ``mean_over`` as in the publication it is the publication's number. If the publication divides the
        labelled sum by the whole batch and this run by the labelled part of it, eta_2 is divided by the share of that
        part in the publication's batch: the terms keep their proportion.

        Example:
            >>> teacher = defaults_for("mean-teacher", "cifar10")
            >>> teacher.weight_for(labels=4000, samples=50_000, total_steps=150_000, mean_over="batch")
            RampedWeight(final=8.0, ramp='gaussian', steps=40000)
            >>> teacher.weight_for(labels=4000, samples=50_000, total_steps=150_000).final
            100.0
        """
        if not 0 < labels <= samples:
            raise ValueError(f"labels must lie in 1..samples={samples}, got {labels!r}")
        scale = labels / samples if self.scaled_by_labels else 1.0
        if (self.mean_over, mean_over) == ("batch", "labelled"):
            scale /= self._labelled_share(labels, samples)
        return RampedWeight(self.weight * scale, steps=self.ramp_up_steps(total_steps))

    def ramp_up_steps(self, total_steps: int) -> int:
        """Length of the ramp-up in a run of this many steps."""
        return round(self.ramp_up * total_steps)

    def labelled_beside(self, unlabelled: int, labels: int, samples: int) -> int:
        """The number of labelled images in a step beside this many unlabelled ones, in the publication's proportion.

        If the publication draws batches from all samples it is the expected number: ``labels`` of ``samples`` have one.
        Methods without unlabelled images have as many labelled ones instead.

        Example:
            >>> [defaults_for(name, "cifar10").labelled_beside(128, 4000, 50_000) for name in ("vat", "mean-teacher")]
            [32, 10]
        """
        if self.labelled_per_batch is None:
            share = labels / samples
        else:
            share = self.labelled_per_batch / (self.unlabelled_per_batch or self.labelled_per_batch)
        return min(labels, max(1, round(share * unlabelled)))

    def _labelled_share(self, labels: int, samples: int) -> float:
        """The share of labelled images in a batch of the publication."""
        if self.labelled_per_batch is None:
            return labels / samples
        return self.labelled_per_batch / (self.labelled_per_batch + self.unlabelled_per_batch)


# The floor of [LA] and [TV]: the same network and noise, labelled images only.
_SUPERVISED = MethodSettings(weight=0.0, input_noise=0.15, labelled_per_batch=100, unlabelled_per_batch=0)

# [LA] w_max M / N with M of N samples labelled; 80 of 300 epochs; minibatches of 100 from all samples; noise 0.15.
# The labelled loss is their sum over the labelled ones, divided by these 100. w_max is 100 for the Pi-model. The first
# epoch has weight 0 there, from 0.0067 of w_max on here. Both views of an image are mirrored or neither is (code).
_PI = MethodSettings(
    weight=100.0,
    scaled_by_labels=True,
    mean_over="batch",
    ramp_up=80 / 300,
    input_noise=0.15,
    labelled_per_batch=None,
    unlabelled_per_batch=100,
    second_view=True,
    shared_flip=True,
)

# [LA] w_max is 30 (code), but 100 on CIFAR-100 (publication); alpha = 0.6 in all runs.
_ENSEMBLE = replace(_PI, weight=30.0, second_view=False, options={"alpha": 0.6})

# [TV] CIFAR-10: 100 M / N, 40,000 of 150,000 steps, decay 0.999 from the start, consistency for labelled samples too;
# student and teacher each augment for themselves (code).
_TEACHER = replace(
    _PI, ramp_up=40 / 150, shared_flip=False, options={"teacher_decay": 0.999, "ramp_up_teacher_decay": 0.999}
)
# [TV] SVHN: weight 1 with 1 labelled sample in a batch of 100, 40,000 of 180,000 steps, decay 0.99 in the ramp-up.
_TEACHER_SVHN = MethodSettings(
    weight=1.0,
    mean_over="batch",
    ramp_up=40 / 180,
    input_noise=0.15,
    labelled_per_batch=1,
    unlabelled_per_batch=99,
    labelled_too=False,
    second_view=True,
    options={"teacher_decay": 0.999, "ramp_up_teacher_decay": 0.99},
)

# [M] weight 1, no ramp, one power iteration, 32 labelled and 128 unlabelled images in passes of their own. epsilon with
# augmentation: 8 on CIFAR-10 (10 without), whitened; 3.5 on SVHN (2.5 without), whose pixels [M] has in -0.5..0.5. On
# images normalised one by one to unit variance the same perturbation is 3.5 / 0.12 = 29, 0.12 being the mean standard
# deviation of an SVHN image.
_VAT = MethodSettings(
    weight=1.0,
    passes="separate",
    labelled_per_batch=32,
    unlabelled_per_batch=128,
    options={"epsilon": 8.0, "power_iterations": 1},
)
_VAT_SVHN = replace(_VAT, image_deviation=0.12, options={"epsilon": 3.5, "power_iterations": 1})

METHODS: dict[str, dict[str, MethodSettings]] = {
    "supervised": {"cifar10": _SUPERVISED},
    "pi-model": {"cifar10": _PI},
    "temporal-ensembling": {"cifar10": _ENSEMBLE, "cifar100": replace(_ENSEMBLE, weight=100.0)},
    "mean-teacher": {"cifar10": _TEACHER, "svhn": _TEACHER_SVHN},
    "vat": {"cifar10": _VAT, "svhn": _VAT_SVHN},
}
"""Method -> data set -> settings, if they differ from those for CIFAR-10."""


@dataclass(frozen=True, kw_only=True)
class InputSettings:
    """How the images of a data set are prepared for semi-supervised training."""

    normalisation: str
    """"zca" whitening, "per-image" to zero mean and unit variance, or "channel" as in supervised training."""
    flip: bool
    """Random horizontal flips; every set has random translations by up to 2 pixels."""


# [LA], [TV], and the paper's experimental setups, which say nothing of SVHN's normalisation.
INPUTS: dict[str, InputSettings] = {
    "cifar10": InputSettings(normalisation="zca", flip=True),
    "cifar100": InputSettings(normalisation="zca", flip=True),
    "svhn": InputSettings(normalisation="per-image", flip=False),
}
"""Data set -> preparation."""


def defaults_for(method: str, dataset: str) -> MethodSettings:
    """The settings of a method for a data set; those of CIFAR-10 by default.

    Example:
        >>> defaults_for("vat", "svhn").options["epsilon"]
        3.5
    """
    by_dataset = METHODS[check_choice("method", method, tuple(METHODS))]
    return by_dataset.get(_family(dataset), by_dataset["cifar10"])


def inputs_for(dataset: str) -> InputSettings:
    """The preparation of a data set's images; by default normalisation by channel, without flips."""
    return INPUTS.get(_family(dataset), InputSettings(normalisation="channel", flip=False))


def _family(dataset: str) -> str:
    """svhn-extra, svhn_small and the like are svhn."""
    return next((family for family in ("cifar100", "cifar10", "svhn") if dataset.startswith(family)), dataset)
