"""How pretrained networks are fine-tuned on a folder of images: ours, the paper does not fine-tune classifiers."""

from __future__ import annotations

from dataclasses import replace

from isda.engine.recipe import Recipe

__all__ = ["ALL_LAYERS", "CLASSIFIER_ONLY", "fine_tuning_recipe"]

_COMMON = Recipe(
    epochs=20,
    batch_size=32,
    weight_decay=0.05,
    lr=2e-3,
    optimiser="adamw",
    schedule="cosine",
    warm_up=2.0,
    layer_decay=0.85,
    first_pass=True,
    average_last=1,
    covariance="diagonal",
    lambda_0=5.0,
    strengths=(0.5, 1.5, 5.0, 15.0),
)

ALL_LAYERS = {"adamw": _COMMON, "sgd": replace(_COMMON, optimiser="sgd", lr=0.02, weight_decay=1e-4)}
"""By optimiser, where the whole network is trained."""

CLASSIFIER_ONLY = {
    "adamw": replace(_COMMON, layer_decay=1.0),
    "sgd": replace(_COMMON, optimiser="sgd", lr=0.1, weight_decay=1e-4, layer_decay=1.0),
}
"""By optimiser, where all but the classifier is frozen."""


def fine_tuning_recipe(optimiser: str | None, freeze: bool) -> Recipe:
    """The recipe of an optimiser, AdamW unless one is named.

    Example:
        >>> fine_tuning_recipe(None, freeze=False).optimiser
        'adamw'
        >>> fine_tuning_recipe("sgd", freeze=True).lr
        0.1
    """
    return (CLASSIFIER_ONLY if freeze else ALL_LAYERS)[optimiser or "adamw"]
