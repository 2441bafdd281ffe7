"""Overlays: panels in the colours of their classes, a legend of what occurs, sizes that fit a page."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from isda.lab.tasks.segmentation.pictures import CAMVID, CITYSCAPES, GAP, LINE, SHARE, label_picture, overlay, palette

CLASSES = ["road", "sky", "car"]


def scene(height=60, width=240):
    image = torch.full((3, height, width), 100, dtype=torch.uint8)
    truth = torch.zeros(height, width, dtype=torch.int64)
    truth[: height // 2] = 1
    truth[:, :10] = 255
    prediction = torch.zeros_like(truth)
    return image, truth, prediction


def opened(data):
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    return np.array(Image.open(io.BytesIO(data)).convert("RGB"))


def test_panels_are_the_image_and_both_labellings_in_class_colours():
    picture = opened(overlay(*scene(), CLASSES))
    mixed = {name: (SHARE * np.array(CITYSCAPES[name]) + (1 - SHARE) * 100).round() for name in CLASSES}
    at = {name: GAP + index * (240 + GAP) for index, name in enumerate(("image", "truth", "prediction"))}
    for panel, row, expected in (
        ("image", 5, (100, 100, 100)),
        ("truth", 5, mixed["sky"]),
        ("truth", 50, mixed["road"]),
        ("prediction", 5, mixed["road"]),
    ):
        np.testing.assert_array_equal(picture[LINE + row, at[panel] + 120], expected)
    # An ignored pixel is dark in the truth and labelled in the prediction.
    np.testing.assert_array_equal(picture[LINE + 5, at["truth"] + 3], [round((1 - SHARE) * 100)] * 3)
    np.testing.assert_array_equal(picture[LINE + 5, at["prediction"] + 3], mixed["road"])


def test_the_legend_shows_the_classes_that_occur_and_no_others():
    picture = opened(overlay(*scene(), CLASSES))
    legend = picture[LINE + 60 :].reshape(-1, 3).tolist()
    assert list(CITYSCAPES["road"]) in legend
    assert list(CITYSCAPES["sky"]) in legend
    assert list(CITYSCAPES["car"]) not in legend


def test_without_truth_there_are_two_panels():
    image, _, prediction = scene()
    assert opened(overlay(image, None, prediction, CLASSES)).shape[1] == 2 * 240 + 3 * GAP


@pytest.mark.parametrize(("size", "panel"), [((60, 240), 240), ((1024, 2048), 480), ((3, 4), 200), ((10, 150), 300)])
def test_panels_have_a_width_that_can_be_looked_at(size, panel):
    assert opened(overlay(*scene(*size), CLASSES)).shape[1] == 3 * panel + 4 * GAP


def test_a_long_legend_takes_several_rows():
    names = [f"class with a long name {index}" for index in range(40)]
    image, _, prediction = scene()
    prediction.view(-1)[:40] = torch.arange(40)
    short, long = (opened(overlay(image, None, one, names)) for one in (torch.zeros_like(prediction), prediction))
    assert len(long) > len(short) + 5 * LINE


def test_names_in_any_script_can_be_drawn():
    assert opened(overlay(*scene(), ["улица", "ciel é", "<b>车"])).any()


def test_the_pixels_of_a_label_picture_are_the_classes():
    _, _, prediction = scene()
    prediction[0, :3] = torch.tensor([0, 1, 2])
    picture = Image.open(io.BytesIO(label_picture(prediction, CLASSES)))
    np.testing.assert_array_equal(np.array(picture), prediction.numpy())
    np.testing.assert_array_equal(np.array(picture.convert("RGB"))[0, :3], [CITYSCAPES[name] for name in CLASSES])


def test_colours_are_cityscapes_or_camvids_where_all_names_are_theirs():
    assert palette(["Traffic_Light", "road"]) == [(250, 170, 30), (128, 64, 128)]
    assert palette(["Sky", "SignSymbol", "Bicyclist"]) == [CAMVID[name] for name in ("sky", "sign symbol", "bicyclist")]
    assert palette(list(CAMVID)) == list(CAMVID.values())
    assert palette(["road", "dragon"])[0] != CITYSCAPES["road"]


def test_any_number_of_classes_gets_different_colours():
    colours = palette([f"class {index}" for index in range(256)])
    assert len(set(colours)) == 256
    few = np.array(colours[:20])
    apart = np.abs(few[:, None] - few).sum(-1)
    assert apart[~np.eye(20, dtype=bool)].min() > 40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i, t, p: (i.float(), t, p), r"image must be uint8 of shape \(3, H, W\), got torch.float32"),
        (lambda i, t, p: (i, t[1:], p), r"truth must have the image's shape \(60, 240\), got \(59, 240\)"),
        (lambda i, t, p: (i, t, p + 3), r"prediction must be classes 0\.\.2 or 255, got 3"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        overlay(*change(*scene()), CLASSES)


def test_colours_are_one_per_class():
    with pytest.raises(ValueError, match="colours must be 3, one per class, got 1"):
        overlay(*scene(), CLASSES, colours=[(0, 0, 0)])
    with pytest.raises(ValueError, match=r"labels must have shape \(H, W\), of at most 256 classes, got \(2,\) and 3"):
        label_picture(torch.zeros(2), CLASSES)
