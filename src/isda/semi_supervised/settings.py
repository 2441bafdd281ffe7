"""What a user can ask of a semi-supervised run beside what a classification run has."""

from __future__ import annotations

from dataclasses import dataclass

from isda.classification.settings import Settings as ClassificationSettings

__all__ = ["Settings"]


@dataclass(frozen=True, kw_only=True)
class Settings(ClassificationSettings):
    """Settings of a semi-supervised run; what is left out comes from the method's publication and the recipe."""

    method: str | None = None
    """supervised (the floor), pi-model, temporal-ensembling, mean-teacher, vat or fixmatch, each also with +isda;
    options follow a colon: mean-teacher+isda:eta_1=1,bound=tilted."""
    labels: int | None = None
    """How many images keep their label, equally many of each class, drawn with the seed."""
    unlabelled: int | None = None
    """Use this many further images without labels, drawn with the seed; all by default. An epoch is one pass over
    labelled and unlabelled images together."""
    labelled_per_batch: int | None = None
    """Labelled images in each step, which come on top of batch_size unlabelled ones; by default in the proportion of
    the method's publication."""
    held_out_labels: float | None = None
    """Hold out this share of the labelled images (0.25 in the paper) and evaluate on them instead of the test set, to
    choose settings with; leaving it out puts them back."""
    batch_size: int | None = None
    """Unlabelled images per step, over all processes together."""
    augment: str | None = None
    """none, translate or translate-flip."""
