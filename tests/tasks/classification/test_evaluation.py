"""Error, likelihood and calibration against naive oracles in numpy, and that parts add up to the whole."""

import numpy as np
import pytest
import torch
from torch import nn

from isda.lab.tasks.common.data import ImageBatch
from isda.lab.tasks.common.evaluation import Tally, evaluate
from small_runs import ALONE


def oracle(logits, targets):
    """The measures of each sample one after the other."""
    wrong = wrong_top5 = nll = 0.0
    confidences, hits = [], []
    for row, target in zip(logits.double().numpy(), targets.tolist(), strict=True):
        probabilities = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        ranking = sorted(range(len(row)), key=lambda j: -row[j])
        wrong += ranking[0] != target
        wrong_top5 += target not in ranking[:5]
        nll -= np.log(probabilities[target])
        confidences.append(probabilities.max())
        hits.append(ranking[0] == target)
    calibration = 0.0
    for k in range(15):
        inside = [i for i, c in enumerate(confidences) if k / 15 <= c < (k + 1) / 15 or (k == 14 and c == 1)]
        if inside:
            gap = np.mean([hits[i] for i in inside]) - np.mean([confidences[i] for i in inside])
            calibration += len(inside) / len(confidences) * abs(gap)
    n = len(targets)
    measures = {"error": 100 * wrong / n, "nll": nll / n, "calibration": 100 * calibration}
    return measures | ({"error_top5": 100 * wrong_top5 / n} if logits.shape[1] > 5 else {})


def random_batch(size, classes, spread=2.0):
    targets = torch.randint(classes, (size,))
    # Leaning towards the truth, so that there are hits in every bin.
    return spread * torch.randn(size, classes, dtype=torch.float64) + nn.functional.one_hot(targets, classes), targets


@pytest.mark.parametrize(("classes", "spread"), [(2, 1.0), (5, 2.0), (6, 0.3), (10, 3.0), (100, 2.0)])
def test_measures_equal_the_naive_ones(classes, spread):
    logits, targets = random_batch(300, classes, spread)
    tally = Tally(classes)
    tally.add(logits, targets)
    assert tally.measures() == pytest.approx(oracle(logits, targets), rel=1e-9)


def test_batches_add_up_to_the_whole():
    logits, targets = random_batch(211, 10)
    tally = Tally(10)
    for part in torch.arange(211).split(50):
        tally.add(logits[part], targets[part])
    assert tally.measures() == pytest.approx(oracle(logits, targets), rel=1e-9)


def test_sums_of_several_tallies_are_the_tally_of_all():
    logits, targets = random_batch(90, 10)
    parts = []
    for part in torch.arange(90).tensor_split(4):
        parts.append(Tally(10))
        parts[-1].add(logits[part], targets[part])
    total = Tally(10)
    total.sums += sum(part.sums for part in parts)
    total.bins += sum(part.bins for part in parts)
    assert total.measures() == pytest.approx(oracle(logits, targets), rel=1e-9)


def test_an_empty_part_changes_nothing():
    logits, targets = random_batch(30, 10)
    tally = Tally(10)
    tally.add(logits, targets)
    before = tally.measures()
    tally.add(logits[:0], targets[:0])
    assert tally.measures() == before


@pytest.mark.parametrize("certain", [True, False])
def test_a_perfect_and_a_hopeless_classifier(certain):
    logits = torch.eye(10) * 1000
    targets = torch.arange(10) if certain else (torch.arange(10) + 1) % 10
    tally = Tally(10)
    tally.add(logits, targets)
    expected = (0, 0, 0) if certain else (100, 1000, 100)
    measures = tally.measures()
    assert (measures["error"], measures["nll"], measures["calibration"]) == pytest.approx(expected)


def test_the_top_5_error_is_for_more_than_5_classes():
    assert "error_top5" not in _measures(5)
    assert "error_top5" in _measures(6)


def _measures(classes):
    tally = Tally(classes)
    tally.add(*random_batch(8, classes))
    return tally.measures()


def test_16_bit_logits_lose_nothing_but_their_own_rounding():
    logits, targets = random_batch(200, 10)
    short = logits.to(torch.bfloat16)
    tally = Tally(10)
    tally.add(short, targets)
    # float32 from the rounded logits on; the order of equal bfloat16 logits is open, so no errors here.
    assert tally.measures()["nll"] == pytest.approx(oracle(short.double(), targets)["nll"], rel=1e-5)


def batches_of(images, targets, sizes):
    places = torch.arange(len(targets)).split(sizes)
    return [ImageBatch(images[place], targets[place], place) for place in places]


@pytest.mark.parametrize("channels_last", [False, True])
def test_evaluation_runs_the_network_in_eval_mode_and_puts_it_back(channels_last):
    network = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Dropout(0.9), nn.Linear(48, 10)).train()
    images, targets = torch.randn(40, 3, 4, 4), torch.randint(10, (40,))
    state = {name: value.clone() for name, value in network.state_dict().items()}
    measures = evaluate(network, batches_of(images, targets, 16), 10, ALONE, channels_last)
    assert network.training
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())
    with torch.no_grad():
        assert measures == pytest.approx(oracle(network.eval()(images), targets), rel=1e-5)
    evaluate(network, batches_of(images, targets, 16), 10, ALONE)
    assert not network.training


def test_images_take_the_type_of_the_network():
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 7)).double()
    images, targets = torch.randn(9, 3, 2, 2), torch.randint(7, (9,))
    measures = evaluate(network, batches_of(images, targets, 4), 7, ALONE)
    with torch.no_grad():
        assert measures == pytest.approx(oracle(network(images.double()), targets), rel=1e-9)


def test_predictions_are_kept_on_request_and_have_no_confidence_where_logits_are_nan():
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [float("nan"), 0.0]])
    tally = Tally(2, keep=True)
    tally.add(logits[:2], torch.tensor([0, 0]))
    tally.add(logits[2:], torch.tensor([1]))
    predictions = tally.predictions(torch.tensor([0, 0, 1]), torch.tensor([7, 8, 9]), ALONE)
    assert predictions.predicted[:2].tolist() == [0, 1]
    expected = [*logits[:2].softmax(1).amax(1).tolist(), 0.0]
    assert predictions.confidence.tolist() == pytest.approx(expected)
    assert Tally(2).kept == []
