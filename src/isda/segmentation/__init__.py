"""Semantic segmentation: what it measures, how images of any size are labelled, and pictures of it."""
