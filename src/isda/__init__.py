"""Implicit semantic data augmentation: exact, cheap and drop-in for PyTorch."""
