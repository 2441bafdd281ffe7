"""What is drawn is where it was found, in the colour of its class."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from isda.lab.data.coco import load
from isda.lab.tasks.common.pictures import save_picture
from isda.lab.tasks.detection.evaluation import class_colour, draw_beside_truth, draw_detections


def found(**changes):
    masks = torch.zeros(1, 1, 100, 200)
    masks[0, 0, 30:50, 60:90] = 1
    return {
        "boxes": torch.tensor([[60.0, 30.0, 90.0, 50.0]]),
        "labels": torch.tensor([2]),
        "scores": torch.tensor([0.9]),
        "masks": masks,
    } | changes


def test_boxes_and_masks_are_drawn_in_the_colour_of_the_class():
    picture = np.asarray(draw_detections(torch.zeros(3, 100, 200, dtype=torch.uint8), found(), ("cat", "dog")))
    assert picture.shape == (320, 640, 3)
    assert tuple(picture[round(3.2 * 50), round(3.2 * 75)]) == class_colour(2)
    inside = picture[round(3.2 * 40), round(3.2 * 75)]
    np.testing.assert_allclose(inside, np.array(class_colour(2)) / 2, atol=2)
    assert tuple(picture[300, 600]) == (0, 0, 0)


def test_what_scores_too_little_is_not_drawn():
    picture = draw_detections(
        torch.zeros(3, 100, 200, dtype=torch.uint8), found(scores=torch.tensor([0.4])), ("cat", "dog")
    )
    assert not np.asarray(picture).any()


def test_neighbouring_classes_have_colours_that_differ():
    colours = [np.array(class_colour(label)) for label in range(1, 81)]
    assert min(np.abs(one - two).max() for one, two in pairwise(colours)) > 60


def test_truth_and_prediction_stand_side_by_side(shapes_set, tmp_path):
    part = load(shapes_set).validation
    nothing = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64), "scores": torch.zeros(0)}
    picture = np.asarray(draw_beside_truth(part, 0, nothing, True, tuple(part.categories.values())))
    left, right = picture[:, :320].astype(int), picture[:, 324:].astype(int)
    assert (left != right).any()
    plain = draw_detections(part.image(0), nothing, ("a", "b", "c", "d"))
    assert (right == np.asarray(plain)).all()
    save_picture(plain, tmp_path / "made" / "one.png")
    assert (tmp_path / "made" / "one.png").read_bytes().startswith(b"\x89PNG")
