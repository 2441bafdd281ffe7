"""Features of images by a network: they are those of the network itself, whichever way it was named."""

import json

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from isda.estimator.embedding_files import read_npz_rows
from isda.estimator.embeddings import embed, find_backbone
from isda.lab import networks
from isda.lab.data import DataSet, load
from small_runs import digits, isda, train_small

CPU = torch.device("cpu")
TIMM = "test_efficientnet"


@pytest.fixture(scope="module")
def colour() -> DataSet:
    pixels = torch.randint(0, 256, (12, 3, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(12) % 3
    return DataSet("colour", pixels, labels, pixels[:6], labels[:6], ("red", "green", "blue"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "small"
    assert train_small(folder, "--epochs", "1")[2] is None
    return folder


def test_a_timm_network_with_weights_from_a_file_makes_the_features_that_timm_makes(colour, tmp_path):
    torch.manual_seed(1)
    model = timm.create_model(TIMM, num_classes=7).eval()
    file = tmp_path / "weights.safetensors"
    save_file(model.state_dict(), file)
    backbone = find_backbone(f"timm:{TIMM}", colour, str(file), image_size=32, mean=[0.4], std=[0.2])
    made = embed(colour, backbone, CPU, batch_size=5)
    resized = torch.nn.functional.interpolate(
        colour.x_train.float(), size=(32, 32), mode="bilinear", align_corners=False
    ).round()
    with torch.no_grad():
        pixels = (resized / 255 - 0.4) / 0.2
        expected = model.forward_head(model.forward_features(pixels), pre_logits=True).numpy()
    assert made.x_train.shape == (12, model.num_features)
    # Interpolation of uint8 may round another way than that of floating point: one step of 255.
    np.testing.assert_allclose(made.x_train, expected, atol=0.02 * np.abs(expected).max())
    assert np.corrcoef(made.x_train.ravel(), expected.ravel())[0, 1] > 0.999
    assert made.provenance["weights"].startswith("weights.safetensors, sha256 ")


def test_a_network_of_this_package_sees_the_images_as_they_are(colour):
    backbone = find_backbone("resnet-8", colour)
    made = embed(colour, backbone, CPU)
    torch.manual_seed(0)
    network = networks.create("resnet-8", num_classes=1).eval()
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (colour.mean, colour.std))
    with torch.no_grad():
        expected = network.features((colour.x_train / 255 - mean) / std)
    np.testing.assert_allclose(made.x_train, expected.numpy(), atol=1e-5)
    assert made.provenance["weights"] == "random, seed 0"


def test_a_run_and_its_weights_under_the_name_of_its_network_make_the_same_features(run, tmp_path):
    whole = find_backbone(str(run), digits())
    made = embed(digits(), whole, CPU, train=40, test=20)
    trained = whole.source.trained
    with torch.no_grad():
        chosen = torch.from_numpy(made.x_test)
        logits = trained.network.classifier(chosen)
    assert logits.shape == (20, 10)
    network = networks.create("fast-cnn", num_classes=10, in_channels=1, width=0.25)
    assert network.feature_dim == made.x_train.shape[1]
    # Classified by the run's own last layer, its own features give the error that the run is known to have.
    every = embed(digits(), whole, CPU)
    with torch.no_grad():
        wrong = trained.network.classifier(torch.from_numpy(every.x_test)).argmax(1) != digits().y_test
    assert 100 * wrong.double().mean() == pytest.approx(json.loads((run / "result.json").read_text())["error"])


def test_as_many_images_of_each_class_as_asked_for(colour):
    made = embed(colour, find_backbone("resnet-8", colour), CPU, train=6, test=3)
    assert np.bincount(made.y_train).tolist() == [2, 2, 2]
    assert np.bincount(made.y_test).tolist() == [1, 1, 1]
    every = embed(colour, find_backbone("resnet-8", colour), CPU)
    kept = [np.flatnonzero((np.abs(every.x_train - row) < 1e-6).all(1))[0] for row in made.x_train]
    assert (every.y_train[kept] == made.y_train).all()
    with pytest.raises(ValueError, match=r"test: size=7 asks for|test: size must be in"):
        embed(colour, find_backbone("resnet-8", colour), CPU, test=7)


def test_grey_images_become_colour_for_a_network_of_colour():
    backbone = find_backbone(f"timm:{TIMM}", load("digits"), image_size=16)
    made = embed(load("digits"), backbone, CPU, train=10, test=10)
    assert backbone.provenance["mean"] == list(timm.create_model(TIMM).pretrained_cfg["mean"])
    assert np.isfinite(made.x_train).all()
    assert made.x_train.std(0).max() > 0


def test_features_that_are_not_finite_are_refused(colour, tmp_path):
    state = timm.create_model(TIMM).state_dict()
    state["conv_head.weight"].fill_(3e38)
    state["bn2.weight"].fill_(3e38)
    save_file(state, tmp_path / "broken.safetensors")
    backbone = find_backbone(f"timm:{TIMM}", colour, str(tmp_path / "broken.safetensors"), image_size=32)
    with pytest.raises(ValueError, match="features must be finite, got 12 train images of colour"):
        embed(colour, backbone, CPU)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda state: state.pop("conv_stem.weight"), "lacks 1 of .* the first of them conv_stem.weight"),
        (lambda state: state.update(strange=torch.zeros(1)), "which has no strange"),
        (lambda state: state.update({"bn1.weight": torch.zeros(3)}), r"bn1.weight is \(3,\), not \(\d+,\)"),
    ],
)
def test_weights_that_do_not_fit_are_refused(colour, tmp_path, change, told):
    state = timm.create_model(TIMM).state_dict()
    change(state)
    save_file(state, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=told):
        find_backbone(f"timm:{TIMM}", colour, str(tmp_path / "other.safetensors"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--network", "resnet-9"], "did you mean 'resnet-8'"),
        (
            ["--network", "runs/not-there"],
            "network must be timm:NAME, a name of `isda networks` or the folder of a run",
        ),
        (["--network", "resnet-8", "--pretrained", "not-there.pt"], "the weights not-there.pt are not a file"),
        (["--network", "resnet-8", "--pretrained", "timm"], "pretrained must be a file of weights for resnet-8"),
        (["--network", "resnet-8", "--image-size", "0"], "image_size must be in 1..10000, got 0"),
        (["--network", "timm:test_vit", "--image-size", "31"], "timm:test_vit cannot take images of size (31, 31)"),
        (["--network", "resnet-8", "--mean", "1", "2"], "mean must have one value, or one for each of 1 channels"),
        (["--network", "resnet-8", "--std", "0"], "std must be positive"),
        (["--network", "resnet-8", "--batch-size", "0"], "batch_size must be at least 1, got 0"),
        (["--network", "resnet-8", "--train", "100000"], "train: size must be in 1..1297"),
    ],
)
def test_the_command_says_what_is_wrong_and_writes_nothing(words, told, tmp_path):
    out, _, code = isda("embed", "--data", "digits", *words, "--out", tmp_path / "made.npz")
    assert told in str(code)
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_a_file_that_says_where_it_comes_from(run, tmp_path):
    file = tmp_path / "deep" / "digits.npz"
    words = ["embed", "--data", "digits", "--network", run, "--train", 50, "--test", 20, "--out", file]
    out, err, code = isda(*words, "--json", tmp_path / "made.json")
    assert (err, code) == ("", None)
    assert "50 training and 20 test images of digits" in out
    record = json.loads((tmp_path / "made.json").read_text())
    assert (record["train"], record["test"], record["classes"]) == (50, 20, 10)
    with np.load(file, allow_pickle=False) as held:
        assert json.loads(str(held["provenance"])) == record["provenance"]
        assert held["x_train"].shape == (50, record["features"])
    train, test = read_npz_rows(file)
    assert (len(train), len(test)) == (50, 20)
    assert record["provenance"]["network"] == "fast-cnn"
    refused = isda(*words, "--mean", "0.5")[2]
    assert f"mean must not be given with the run {run}, which determines it" in str(refused)


def test_random_weights_are_pointed_out(tmp_path):
    words = ["embed", "--data", "digits", "--network", "resnet-8", "--train", 10, "--test", 10]
    assert "random weights" in isda(*words, "--out", tmp_path / "a.npz")[1]
    isda(*words, "--out", tmp_path / "b.npz")
    first, second = (read_npz_rows(tmp_path / name)[0] for name in ("a.npz", "b.npz"))
    assert (first.features == second.features).all()
