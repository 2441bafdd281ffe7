"""The predictions that a run leaves for pages: their file, and what runs write into it."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from isda.covariance import create
from isda.lab.tasks.classification.task import mean_margin_variance
from isda.lab.tasks.common.predictions import MISTAKES, PREDICTIONS_FILE, SIDE, Predictions
from isda.lab.train import Settings, load_data, resolve, train


def drawn(count=200, classes=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    wrong = torch.rand(count, generator=generator) < 0.3
    predicted = torch.where(wrong, (labels + 1) % classes, labels)
    return Predictions(torch.arange(count), labels, predicted, torch.rand(count, generator=generator))


def trained(folder, method="isda", epochs=2):
    settings = Settings(method=method, labels=100, batch_size=50, epochs=epochs, network_options={"width": "0.25"})
    data = load_data(settings)
    return train(resolve(settings, data), data, folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run on digits, and the content of its result.json."""
    folder = tmp_path_factory.mktemp("predictions") / "run"
    return folder, trained(folder)


def test_a_file_gives_back_what_was_written(tmp_path):
    images = torch.randint(256, (200, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    predictions = drawn().with_pictures(images)
    predictions.save(tmp_path / "file")
    again = Predictions.read(tmp_path / "file", 5)
    for name in ("indices", "labels", "predicted", "confidence"):
        torch.testing.assert_close(getattr(again, name), getattr(predictions, name), check_dtype=False, rtol=0, atol=0)
    assert all(map(torch.equal, again.pictures, predictions.pictures))
    assert (tmp_path / "file").stat().st_size < 12 * 200 + MISTAKES * 3 * 64 + 2500


def test_mistakes_are_the_most_confident_wrong_predictions():
    predictions = drawn()
    wrong = [
        (-float(confidence), row)
        for row, (label, guess, confidence) in enumerate(
            zip(predictions.labels, predictions.predicted, predictions.confidence, strict=True)
        )
        if label != guess
    ]
    assert predictions.mistakes.tolist() == [row for _, row in sorted(wrong)[:MISTAKES]]


def test_errors_of_classes_are_shares_of_wrong_predictions():
    predictions = drawn()
    expected = {}
    for index, name in enumerate("abcde"):
        of_class = predictions.labels == index
        expected[name] = 100 * float((predictions.predicted[of_class] != index).double().mean())
    assert predictions.errors("abcde") == pytest.approx(expected)
    assert "none" not in predictions.errors([*"abcde", "none"])


def test_large_images_are_reduced_and_other_channels_have_no_pictures():
    predictions = drawn(20)
    (first, *_) = predictions.with_pictures(torch.full((20, 1, 300, 150), 77, dtype=torch.uint8)).pictures
    assert first.shape == (1, SIDE, SIDE // 2)
    assert first.unique().tolist() == [77]
    assert predictions.with_pictures(torch.zeros(20, 4, 8, 8, dtype=torch.uint8)).pictures == ()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("labels", None, "it lacks labels"),
        ("labels", torch.zeros(3, dtype=torch.int16), "one length"),
        ("labels", torch.full((200,), 5, dtype=torch.int16), "labels must lie in 0..4, got 5 to 5"),
        ("predicted", torch.zeros(200), "must be integers"),
        ("confidence", torch.full((200,), float("nan")), "confidences must be float32 from 0 to 1"),
        ("mistake-00", torch.zeros(3, SIDE + 1, 2, dtype=torch.uint8), "mistake-00 must be an image"),
        ("mistake-00", torch.zeros(3, 2, 2), "mistake-00 must be an image"),
    ],
)
def test_other_files_are_refused(tmp_path, name, value, message):
    drawn().save(tmp_path / "file")
    tensors = load_file(tmp_path / "file") | {name: value}
    save_file({key: tensor for key, tensor in tensors.items() if tensor is not None}, tmp_path / "file")
    with pytest.raises(ValueError, match=message):
        Predictions.read(tmp_path / "file", 5)
    (tmp_path / "file").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match="does not hold the predictions"):
        Predictions.read(tmp_path / "file", 5)


def test_more_classes_than_sixteen_bits_count(tmp_path):
    labels = torch.tensor([0, 40_000])
    Predictions(torch.arange(2), labels, labels, torch.ones(2)).save(tmp_path / "file")
    assert Predictions.read(tmp_path / "file", 40_001).labels.tolist() == [0, 40_000]


def test_a_run_leaves_the_predictions_of_its_last_evaluation(finished):
    folder, result = finished
    classes = json.loads((folder / "config.json").read_text())["classes"]
    predictions = Predictions.read(folder / PREDICTIONS_FILE, len(classes))
    wrong = (predictions.predicted != predictions.labels).double()
    assert 100 * float(wrong.mean()) == pytest.approx(result["error_last"])
    assert result["per_class"]["error"] == pytest.approx(predictions.errors(classes))
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    bins = (predictions.confidence.double() * 15).long().clamp(max=14).numpy()
    gaps = np.bincount(bins, 1 - wrong.numpy() - predictions.confidence.double().numpy(), minlength=15)
    assert 100 * np.abs(gaps).sum() / len(wrong) == pytest.approx(last["test/calibration"], abs=1e-4)
    assert len(predictions.pictures) == min(MISTAKES, int(wrong.sum()))
    assert predictions.pictures[0].shape == (1, 8, 8)


def test_a_run_that_is_finished_again_leaves_the_same_file(finished):
    folder, result = finished
    content = (folder / PREDICTIONS_FILE).read_bytes()
    (folder / "result.json").unlink()
    (folder / PREDICTIONS_FILE).unlink()
    again = trained(folder)
    assert (folder / PREDICTIONS_FILE).read_bytes() == content
    assert again["per_class"] == result["per_class"]


def test_the_mean_margin_variance_is_that_of_the_definition():
    torch.manual_seed(0)
    model, head = create("full", 4, 6), torch.nn.Linear(6, 4)
    model.update(torch.randn(40, 6), torch.arange(40) % 4)
    weight = head.weight.detach().double()
    terms = []
    for own in range(4):
        matrix = model.covariance(own).double()
        for other in range(4):
            if other != own:
                difference = weight[other] - weight[own]
                terms.append(float(difference @ matrix @ difference))
    assert mean_margin_variance(model, head) == pytest.approx(np.mean(terms), rel=1e-5)


def test_runs_record_the_margin_variance_of_methods_that_have_one(finished, tmp_path):
    lines = [json.loads(line) for line in (finished[0] / "metrics.jsonl").read_text().splitlines()]
    assert all(line["margin_variance"] > 0 for line in lines)
    trained(tmp_path / "run", "cross-entropy", epochs=1)
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert "margin_variance" not in json.loads(line)
