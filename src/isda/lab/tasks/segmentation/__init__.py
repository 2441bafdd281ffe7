"""Semantic segmentation, with ISDA per pixel."""
