"""The page's colours: enough contrast in both modes, and method colours that every eye can tell apart."""

import itertools
import re
from importlib.resources import files

import numpy as np
import pytest

from isda.lab.report.charts import COLOURS, VARIABLES

# Linear RGB as seen with a colour vision deficiency of full severity: Machado, Oliveira and Fernandes (2009), table 1.
VISION = {
    "full": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


@pytest.fixture(params=["light", "dark"])
def colours(request):
    text = files("isda.lab.report").joinpath("style.css").read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", text, re.DOTALL)
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", light if request.param == "light" else dark))


def linear(colour):
    value = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """WCAG 2.2, contrast ratio."""
    low, high = sorted(linear(colour) @ [0.2126, 0.7152, 0.0722] for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb):
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = to_xyz @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089]
    root = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


def test_text_stands_out_from_the_page(colours):
    assert contrast(colours["ink"], colours["paper"]) > 12
    assert contrast(colours["soft"], colours["paper"]) > 4.5


def test_curves_stand_out_from_the_page(colours):
    for style in range(len(COLOURS)):
        assert contrast(colours[f"c{style}"], colours["paper"]) > 3


@pytest.mark.parametrize("vision", VISION)
def test_curves_stand_out_from_one_another(colours, vision):
    seen = [lab(np.array(VISION[vision]) @ linear(colours[f"c{style}"])) for style in range(len(COLOURS))]
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(one - other) > 20


def test_charts_name_the_colours_of_the_page():
    text = files("isda.lab.report").joinpath("style.css").read_text(encoding="utf-8")
    light = re.findall(r":root \{(.*?)\}", text, re.DOTALL)[0]
    assert {name: f"--{variable}" for name, variable in VARIABLES.items()} == {
        colour: name for name, colour in re.findall(r"(--\w+): (#[0-9a-f]{6});", light)
    }
