"""Helpers without knowledge of ISDA, used by every other package."""
