"""What went into the classifier, found by the logits it belongs to."""

from isda.recording.found import Found
from isda.recording.graph import in_backward, in_transform
from isda.recording.layers import bias_of, is_product, sizes_of, weight_of
from isda.recording.recorder import Recorder, record_inputs
from isda.recording.sentences import BY_HAND, DATA_PARALLEL

__all__ = [
    "BY_HAND",
    "DATA_PARALLEL",
    "Found",
    "Recorder",
    "bias_of",
    "in_backward",
    "in_transform",
    "is_product",
    "record_inputs",
    "sizes_of",
    "weight_of",
]
