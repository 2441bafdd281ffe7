"""A trained network from its run folder: the very weights, the very figures, and clear words where there is none."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from isda.lab.train import load_trained, train
from small_runs import digits, small_config

CPU = torch.device("cpu")


def copy_of(run, tmp_path):
    return shutil.copytree(run, tmp_path / "copy")


def save_digit(index, path, factor=1):
    image = digits().x_test[index, 0].repeat_interleave(factor, 0).repeat_interleave(factor, 1)
    Image.fromarray(image.numpy()).save(path)
    return path


def test_it_has_the_weights_and_the_configuration_of_the_run(finished_run):
    trained = load_trained(finished_run)
    assert trained.config == small_config()
    assert not trained.network.training
    stored = load_file(finished_run / "model.safetensors")
    state = trained.network.state_dict()
    assert state.keys() == stored.keys()
    assert all(torch.equal(state[name], stored[name]) for name in stored)


def test_it_measures_what_the_run_measured_last(finished_run):
    result = json.loads((finished_run / "result.json").read_text())
    measures = load_trained(finished_run).measure(digits(), CPU)
    expected = {"error": result["error_last"], **{name: result[name] for name in ("error_top5", "nll", "calibration")}}
    assert measures == pytest.approx(expected, rel=1e-9)


def test_a_run_with_images_held_out_is_measured_on_those(tmp_path):
    result = train(small_config(held_out=150, precision="float64"), digits(), tmp_path)
    trained = load_trained(tmp_path)
    assert next(trained.network.parameters()).dtype == torch.float64
    measured = trained.measure(digits(), CPU)
    assert measured["error"] == pytest.approx(result["error_last"])
    # Of 150 images.
    assert measured["error"] * 1.5 == pytest.approx(round(measured["error"] * 1.5))


def test_probabilities_are_those_of_the_network(finished_run, tmp_path):
    trained, data, config = load_trained(finished_run), digits(), small_config()
    paths = [save_digit(i, tmp_path / f"{i}.png") for i in range(12)]
    with torch.no_grad():
        images = (data.x_test[:12].float() / 255 - config.mean[0]) / config.std[0]
        expected = trained.network(images).softmax(1)
    torch.testing.assert_close(trained.probabilities(paths), expected, rtol=1e-5, atol=1e-6)


def test_images_of_another_size_are_brought_to_the_networks(finished_run, tmp_path):
    large = save_digit(0, tmp_path / "large.png", factor=4)
    with Image.open(large) as image:
        # Pillow's filter adapts to the factor, as antialiasing does.
        image.resize((8, 8), Image.Resampling.BILINEAR).save(tmp_path / "small.png")
    mine, theirs = load_trained(finished_run).probabilities([large, tmp_path / "small.png"])
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0.02)


def test_colour_pictures_are_seen_in_grey_by_a_grey_network(finished_run, tmp_path):
    trained = load_trained(finished_run)
    grey = save_digit(3, tmp_path / "grey.png")
    with Image.open(grey) as image:
        image.convert("RGB").save(tmp_path / "colour.png")
    first, second = trained.probabilities([grey, tmp_path / "colour.png"])
    torch.testing.assert_close(first, second, rtol=0, atol=1e-3)


def test_a_file_that_is_no_picture_is_named(finished_run, tmp_path):
    (tmp_path / "notes.png").write_text("milk, bread")
    with pytest.raises(ValueError, match=r"notes\.png cannot be read as an image"):
        load_trained(finished_run).probabilities([tmp_path / "notes.png"])


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ((*map(str, range(9)), "ten"), "the 10 classes of the run; digits lacks '9' and has 'ten'"),
        ((*map(str, range(10)), "ten"), "the 10 classes of the run; digits has 'ten'"),
        (tuple("abcdefghij"), "lacks '0', '1', '2', '3', '4' and 5 more and has 'a', 'b', 'c', 'd', 'e' and 5 more"),
        ((*map(str, range(10)), "9"), "in their order if names occur twice: digits"),
    ],
)
def test_other_classes_are_named(finished_run, classes, message):
    with pytest.raises(ValueError, match=message):
        load_trained(finished_run).measure(replace(digits(), classes=classes), CPU, own=False)


def test_classes_in_another_order_are_matched_by_name(finished_run):
    data = digits()
    turned = replace(data, y_train=9 - data.y_train, y_test=9 - data.y_test, classes=data.classes[::-1])
    trained = load_trained(finished_run)
    assert trained.measure(turned, CPU, own=False) == trained.measure(data, CPU, own=False)


@pytest.mark.parametrize("channels", [2, 4])
def test_image_files_have_no_two_or_four_channels(finished_run, tmp_path, channels):
    trained = load_trained(finished_run)
    many = replace(trained, config=replace(trained.config, channels=channels))
    with pytest.raises(ValueError, match=f"grey or colour images to predict image files, it takes {channels} c"):
        many.probabilities([save_digit(0, tmp_path / "digit.png")])


def test_an_empty_folder_is_no_run(tmp_path):
    with pytest.raises(ValueError, match=f"no run in {tmp_path}: a run folder holds config.json"):
        load_trained(tmp_path)


def test_an_unfinished_run_says_how_to_finish_it(finished_run, tmp_path):
    folder = copy_of(finished_run, tmp_path)
    (folder / "result.json").unlink()
    with pytest.raises(ValueError, match="not finished; resume it with its command and --resume"):
        load_trained(folder)


@pytest.mark.parametrize("damage", ["truncated", "empty", "another network's"])
def test_damaged_weights_are_named(finished_run, tmp_path, damage):
    weights = copy_of(finished_run, tmp_path) / "model.safetensors"
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif damage == "empty":
        weights.write_bytes(b"")
    else:
        save_file({"classifier.weight": torch.zeros(3, 3)}, weights)
    with pytest.raises(ValueError, match=r"model\.safetensors does not hold the weights of fast-cnn"):
        load_trained(weights.parent)


def test_weights_that_are_not_finite_are_named(finished_run, tmp_path):
    """Also where nothing tells whose they are: results of earlier versions have no digests."""
    weights = copy_of(finished_run, tmp_path) / "model.safetensors"
    stored = load_file(weights)
    save_file(stored | {"classifier.weight": stored["classifier.weight"] * float("nan")}, weights)
    (weights.parent / "result.json").write_text('{"error": 50.0}')
    with pytest.raises(
        ValueError, match=r"of fast-cnn: it must hold finite weights, but classifier\.weight has \d+ NaN"
    ):
        load_trained(weights.parent)


def test_missing_weights_are_named(finished_run, tmp_path):
    weights = copy_of(finished_run, tmp_path) / "model.safetensors"
    weights.unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors does not hold the weights of fast-cnn: No such file"):
        load_trained(weights.parent)
