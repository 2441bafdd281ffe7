"""Attach a criterion to a model: find its classifier and record the classifier's inputs."""

from isda.attach.autograd_compat import in_backward, in_transform
from isda.attach.find import find_classifier, find_classifiers
from isda.attach.hook import DATA_PARALLEL_ERROR, EXPLICIT_CALL, bias_of, is_product, sizes_of, weight_of
from isda.attach.trace import RecordedFeatures, Recorder, record_inputs

__all__ = [
    "DATA_PARALLEL_ERROR",
    "EXPLICIT_CALL",
    "RecordedFeatures",
    "Recorder",
    "bias_of",
    "find_classifier",
    "find_classifiers",
    "in_backward",
    "in_transform",
    "is_product",
    "record_inputs",
    "sizes_of",
    "weight_of",
]
