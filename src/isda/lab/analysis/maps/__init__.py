"""Maps of the features of runs in the plane: `isda map`."""

from isda.lab.analysis.maps.embedding import Separation, embed, measure_separation, without_map
from isda.lab.analysis.maps.evaluation_features import EvaluationFeatures, evaluation_features
from isda.lab.analysis.maps.page import MAP_COLUMNS, FeatureMap, MapOptions, draw_maps, map_cells

__all__ = [
    "MAP_COLUMNS",
    "EvaluationFeatures",
    "FeatureMap",
    "MapOptions",
    "Separation",
    "draw_maps",
    "embed",
    "evaluation_features",
    "map_cells",
    "measure_separation",
    "without_map",
]
