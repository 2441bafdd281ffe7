"""What `isda segment tune` chooses on the validation part, and which part the final runs are evaluated on."""

import json
import shutil

import pytest

from isda.lab.data.segmentation import load
from isda.lab.tasks.segmentation.settings import SegmentationSettings
from isda.lab.tasks.segmentation.task import Segmentation
from segmentation_runs import SMALL_WORDS, draw, drawn
from small_runs import isda

TASK = Segmentation()


def test_the_strengths_are_those_of_imagenet():
    assert TASK.grid(SegmentationSettings(method="isda"), drawn()) == {"lambda_0": (1.0, 2.5, 5.0, 7.5, 10.0)}
    assert TASK.grid(SegmentationSettings(method="cross-entropy"), drawn()) == {}
    assert TASK.options("isda")["lambda_0"] is float


def test_the_validation_part_chooses_and_the_test_part_judges_where_it_has_labels(tmp_path):
    found = TASK.held_out(SegmentationSettings(method="isda"), drawn())
    assert (found.choosing.evaluate_on, found.final.evaluate_on) == ("validation", "test")
    assert found.description == "the 5 images of the validation part"
    secret = load(draw(tmp_path / "secret", {"train": 4, "val": 2}))
    found = TASK.held_out(SegmentationSettings(method="isda"), secret)
    assert found.final.evaluate_on == "validation"
    assert "on which the final runs are evaluated too" in found.description


def test_without_a_validation_part_nothing_is_chosen(tmp_path):
    data = load(draw(tmp_path / "scenes", {"train": 4, "test": 2}))
    with pytest.raises(ValueError, match="a validation part with labels, which scenes does not have"):
        TASK.held_out(SegmentationSettings(method="isda"), data)


@pytest.mark.slow
def test_the_command_chooses_by_miou_and_ignores_the_test_part(tmp_path):
    top = tmp_path / "scenes"
    shutil.copytree(drawn().source, top)
    words = ["--data", top, "--method", "isda", "--search", "lambda_0=1,5", "--widen", 0, "--seeds", 1, "--threads", 1]
    out, _, code = isda("segment", "tune", *SMALL_WORDS, *words, "--json", "-", "--out", tmp_path / "tuned")
    assert code is None, code
    written = json.loads(out)
    (method,) = written["search"]["methods"]
    assert written["search"]["figure"]["name"] == "miou"
    assert method["chosen"] == max(method["trials"], key=lambda trial: trial["value"])["point"]
    assert written["comparisons"][0]["evaluated_on"] == "test"
