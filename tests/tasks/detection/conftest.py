"""Drawn shapes for all tests of detection."""

from __future__ import annotations

import pytest

from shapes import draw_set


@pytest.fixture(scope="session")
def shapes_set(tmp_path_factory):
    """Seven training and three validation images of 64x64 pixels; tests must not change it."""
    return draw_set(tmp_path_factory.mktemp("drawn") / "shapes", train=7, validation=3, size=64, largest=40)
