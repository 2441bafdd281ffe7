"""Reproduction of the paper's tables and figures at any scale, beside the printed numbers."""
