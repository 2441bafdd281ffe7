"""Readers of data set files."""
