"""Adopt ISDA in a model you did not write: which layers are its classifier?"""

from isda.attach.finding import find_classifier, find_classifiers

__all__ = ["find_classifier", "find_classifiers"]
