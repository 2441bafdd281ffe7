"""Supervised methods of `isda train` and one line on each.

The methods themselves are classes in `isda.lab.methods`; help and error messages need their names
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
}
_COMBINABLE = {
    "label-smoothing": "label smoothing",
    "disturb-label": "labels of some images are drawn anew (DisturbLabel)",
    "focal": "focal loss",
    "lq": "Lq loss, robust to wrong labels",
    "center": "center loss",
    "mixup": "mixtures of two images",
}

METHOD_SUMMARIES: dict[str, str] = {
    **_SINGLE,
    **_COMBINABLE,
    **{f"{name}+isda": f"{name} with ISDA's bound as its cross-entropy" for name in _COMBINABLE},
}
"""By name."""
