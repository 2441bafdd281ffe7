"""Semantic segmentation as a task: a class for every pixel, with ISDA per pixel."""
