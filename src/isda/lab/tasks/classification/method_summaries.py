"""Supervised methods of `isda train` and one line on each.

The methods themselves are classes in `isda.lab.tasks.classification.methods`; help and error messages need their names
without importing torch.
"""

from __future__ import annotations

COMPARED = ("cross-entropy", "isda", "isda-tilted")
"""What `isda compare` compares by default."""

_SINGLE = {
    "cross-entropy": "cross-entropy, the baseline",
    "isda": "implicit semantic data augmentation: the published bound (Prop. 1)",
    "isda-tilted": "ISDA with the tilted bound, which is never looser",
    "explicit": "explicit augmentation: features are drawn (eq. 5)",
    "large-margin": "large-margin softmax",
    "distribution-net": "features as distributions (DistributionNet)",
    "risda": "ISDA for long tails: covariances and shifts of confused classes (RISDA)",
    "metasaug": "ISDA for long tails with meta-learned covariances (MetaSAug)",
}
_COMBINABLE = {
    "label-smoothing": "label smoothing",
    "disturb-label": "labels of some images are drawn anew (DisturbLabel)",
    "focal": "focal loss",
    "lq": "Lq loss, robust to wrong labels",
    "confidence-penalty": "cross-entropy with a penalty of confident predictions",
    "center": "center loss",
    "mixup": "mixtures of two images",
    "cutmix": "a box of each image comes from another",
    "manifold-mixup": "mixtures of the outputs of an inner layer",
    "sam": "sharpness-aware minimisation: two passes per step",
    "logit-adjustment": "logit adjustment for long tails",
    "ldam": "margins by class size for long tails (LDAM)",
    "class-balanced": "weights by class size for long tails",
}

METHOD_SUMMARIES: dict[str, str] = {
    **_SINGLE,
    **_COMBINABLE,
    **{f"{name}+isda": f"{name} with ISDA's bound as its cross-entropy" for name in _COMBINABLE},
}
"""By name."""
