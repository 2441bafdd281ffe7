"""Intersection over union against sets of pixels, and absent classes as Cityscapes' script has them."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix, jaccard_score

from isda.lab.tasks.segmentation.evaluation import ConfusionMatrix

CLASSES = 5


def draw(shape=(3, 8, 9), classes=CLASSES, seed=0):
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(0, classes, shape, generator=generator)
    wrong = torch.rand(shape, generator=generator) < 0.4
    predicted = torch.where(wrong, torch.randint(0, classes, shape, generator=generator), truth)
    truth[torch.rand(shape, generator=generator) < 0.1] = 255
    return predicted, truth


def counted(*pairs, classes=CLASSES, **options):
    matrix = ConfusionMatrix(classes, **options)
    for predicted, truth in pairs:
        matrix.add(predicted, truth)
    return matrix


def test_figures_are_those_of_an_independent_confusion_matrix():
    predicted, truth = draw()
    matrix = counted((predicted, truth))
    keep = truth != 255
    mine, true = predicted[keep].numpy(), truth[keep].numpy()
    np.testing.assert_array_equal(matrix.counts.numpy(), confusion_matrix(true, mine))
    np.testing.assert_allclose(matrix.iou().numpy(), jaccard_score(true, mine, average=None), rtol=1e-15)
    assert matrix.mean_iou() == pytest.approx(jaccard_score(true, mine, average="macro"), rel=1e-15)
    assert matrix.pixel_accuracy() == pytest.approx(accuracy_score(true, mine), rel=1e-15)


def test_iou_is_intersection_over_union_of_sets_of_pixels():
    predicted, truth = draw(seed=1)
    for label, value in enumerate(counted((predicted, truth)).iou().tolist()):
        mine = {i for i, p in enumerate(predicted.flatten()) if p == label and truth.flatten()[i] != 255}
        true = {i for i, t in enumerate(truth.flatten()) if t == label}
        assert value == pytest.approx(len(mine & true) / len(mine | true))


def test_a_class_neither_there_nor_predicted_is_left_out_of_the_mean():
    matrix = counted((torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])), classes=3)
    assert matrix.iou().tolist()[:2] == pytest.approx([0.5, 0.5])
    assert math.isnan(matrix.iou()[2])
    assert matrix.mean_iou() == pytest.approx(0.5)
    assert matrix.iou_by_name(["road", "sky", "car"]) == pytest.approx({"road": 0.5, "sky": 0.5, "car": None})


def test_a_class_predicted_but_not_there_counts_as_nothing():
    matrix = counted((torch.tensor([0, 2, 1]), torch.tensor([0, 1, 1])), classes=3)
    assert matrix.iou().tolist() == pytest.approx([1.0, 0.5, 0.0])
    assert matrix.mean_iou() == pytest.approx(0.5)


def test_a_class_predicted_at_ignored_pixels_only_is_not_predicted():
    matrix = counted((torch.tensor([0, 2]), torch.tensor([0, 255])), classes=3)
    assert matrix.mean_iou() == pytest.approx(1.0)
    assert matrix.pixel_accuracy() == pytest.approx(1.0)


def test_another_label_can_be_the_ignored_one():
    matrix = counted((torch.tensor([0, 1]), torch.tensor([0, 11])), classes=2, ignore_index=11)
    assert matrix.counts.tolist() == [[1, 0], [0, 0]]


def test_parts_add_up_in_any_order_whatever_the_type_of_labels():
    pairs = [draw(seed=seed) for seed in range(3)]
    together = counted(*pairs).counts
    one, two = counted(pairs[2]), counted(*((p.to(torch.int32), t.to(torch.uint8)) for p, t in pairs[:2]))
    one.merge(two)
    assert torch.equal(one.counts, together)
    assert one.counts.dtype == torch.int64


def test_counts_beyond_the_integers_of_floating_point_stay_exact():
    matrix = counted((torch.tensor([0]), torch.tensor([0])), classes=1)
    matrix.counts += 2**53
    matrix.add(torch.tensor([0]), torch.tensor([0]))
    assert int(matrix.counts) == 2**53 + 2


def test_nothing_counted_is_no_number():
    matrix = counted((torch.tensor([1]), torch.tensor([255])))
    assert math.isnan(matrix.mean_iou())
    assert math.isnan(matrix.pixel_accuracy())


@pytest.mark.any_device
def test_any_device():
    predicted, truth = (part.to(torch.empty(0).device) for part in draw())
    matrix = counted((predicted, truth), device=predicted.device)
    assert torch.equal(matrix.counts.cpu(), counted(draw(), device="cpu").counts)


@pytest.mark.parametrize(
    ("predicted", "truth", "message"),
    [
        ([0, 1], [0], r"same shape, got \(2,\) and \(1,\)"),
        ([5], [0], r"predictions must be 0\.\.4, got 5"),
        ([0, 0], [1, -1], r"targets must be 0\.\.4 or 255, got -1"),
        ([0], [7], r"targets must be 0\.\.4 or 255, got 7"),
    ],
)
def test_bad_labels_are_named_and_change_nothing(predicted, truth, message):
    matrix = ConfusionMatrix(CLASSES)
    with pytest.raises(ValueError, match=message):
        matrix.add(torch.tensor(predicted), torch.tensor(truth))
    assert not matrix.counts.any()


def test_other_classes_are_refused():
    with pytest.raises(ValueError, match="other must count 5 classes, got 4"):
        ConfusionMatrix(5).merge(ConfusionMatrix(4))
    with pytest.raises(ValueError, match="classes must be 5 names, got 1"):
        ConfusionMatrix(5).iou_by_name(["road"])
    with pytest.raises(ValueError, match=r"num_classes must be an integer from 1 to 10\^9, got 0"):
        ConfusionMatrix(0)
