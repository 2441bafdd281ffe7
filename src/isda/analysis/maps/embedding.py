"""From features to points of a plane: t-SNE (van der Maaten and Hinton, 2008), or UMAP where it is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isda.choices import check_choice
from isda.extras import missing

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["METHODS", "embed"]


def embed(features: Tensor, by: str = "tsne", *, perplexity: float = 30.0, seed: int = 0) -> Tensor:
    """(N, 2) float64 a place in the plane for each row of features (N, A); the same for the same seed.

    Args:
        features: any, in no particular order.
        by: tsne or umap.
        perplexity: of t-SNE; for UMAP the number of neighbours. It must be below N.
        seed: of the search.
    """
    check_choice("by", by, METHODS)
    if not 1 <= perplexity < len(features):
        raise ValueError(f"perplexity must be from 1 to below the {len(features)} images, got {perplexity:g}")
    # A feature's unit is arbitrary, and the spread along a coordinate says how much it matters: one scale for all.
    scaled = (features - features.mean(0)) / features.std().clamp_min(1e-12)
    return torch.as_tensor(METHODS[by](scaled.numpy(), perplexity, seed)).double()


def _tsne(features: Any, perplexity: float, seed: int) -> Any:
    from sklearn.manifold import TSNE

    return TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(features)


def _umap(features: Any, perplexity: float, seed: int) -> Any:
    try:
        from umap import UMAP
    except ImportError as error:
        raise ValueError(f"a map by umap needs {missing('umap')}; tsne needs nothing more") from error
    return UMAP(n_neighbors=max(2, round(perplexity)), random_state=seed, n_jobs=1).fit_transform(features)


METHODS: dict[str, Callable[[Any, float, int], Any]] = {"tsne": _tsne, "umap": _umap}
"""By name; each is given features, the perplexity and a seed."""
