"""Maps of deep features, by t-SNE or UMAP, and figures of how well they keep the classes apart."""

from isda.analysis.maps.embedding import METHODS, embed
from isda.analysis.maps.judged import Judged, judged_features
from isda.analysis.maps.separation import Separation, measure_separation

__all__ = ["METHODS", "Judged", "Separation", "embed", "judged_features", "measure_separation"]
