"""Hyper-parameter search on held-out data, independent of the task."""
