"""Figures 7 and 14: features of runs on crops of larger images, inverted by a BigGAN whose weights are in a file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from isda.lab.analysis import observe
from isda.lab.analysis.inversion import biggan, open_biggan
from isda.lab.analysis.inversion.encoder import encoder_of_run
from isda.lab.data.augment import ResizeCenterCrop
from isda.lab.data.normalise import as_float
from reproduce.drawn_root import draw_root
from small_biggan import CLASSES, NOISE, HubBigGAN, TorchBigGAN, write_weights
from small_runs import isda

SMALL = ["--network", "fast-cnn", "--width", "0.125", "--epochs", "1", "--batch-size", "12", "--threads", "1"]
QUICK = ["--iterations", 3, "--images", 2, "--augmented", 2, "--device", "cpu"]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return draw_root(tmp_path_factory.mktemp("drawn"))


@pytest.fixture(scope="module")
def run(root) -> Path:
    """A run on crops of 224 pixels from files of several sizes."""
    folder = root / "run"
    method = ["--method", "isda:covariance=diagonal", "--augment", "imagenet"]
    _, err, code = isda("train", "--data", "imagenet", "--data-root", root, *SMALL, *method, "--out", folder)
    assert code is None, err
    return folder


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> tuple[str, str]:
    return write_weights(tmp_path_factory.mktemp("weights"))


@pytest.mark.parametrize("number", [0, 1], ids=["BigGAN-PyTorch", "pytorch-pretrained-biggan"])
def test_a_run_on_imagenet_is_inverted_by_a_biggan(root, run, words, number, tmp_path):
    command = ["visualize", run, "--generator", words[number], "--data-root", root, *QUICK]
    out, err, code = isda(*command, "--truncation", 0.5, "--out", tmp_path, "--json", "-")
    assert code is None, err
    record = json.loads(out)
    assert [row["class"] for row in record["rows"]] == list(observe(run, root).classes[:2])
    for row in record["rows"]:
        for result in row["step_2"]:
            assert result["feature_error"] <= result["feature_error_at_start"]
            positions = result["nearest_training_images"]
            assert len(set(positions)) == 5
            assert set(positions) <= set(range(24))
    assert Image.open(tmp_path / "augmented.png").height > 2 * 224
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", (tmp_path / "visualize.html").read_text(), re.DOTALL)
    assert ["Features of fast-cnn; gradient descent of at most 3 iterations" in one for one in captions] == [True] * 2


def test_generated_images_are_brought_to_what_the_network_takes(root, run):
    observed = observe(run, root)
    encoder = encoder_of_run(observed)
    # The crop of an image has the features of the image.
    images = observed.network_images(torch.arange(3))
    assert images.shape == (3, 3, 224, 224)
    assert torch.equal(images, ResizeCenterCrop(256, 224)(observed.images(torch.arange(3))))
    with torch.no_grad():
        features = encoder.features(encoder.normalise(as_float(images)))
    torch.testing.assert_close(features.double(), observed.features[:3], rtol=1e-4, atol=1e-4)
    # Generated images of any size have a gradient to every pixel.
    made = torch.rand(2, 3, 32, 32, requires_grad=True)
    pixels = encoder.normalise(encoder.fit(made))
    assert pixels.shape == (2, 3, 224, 224)
    encoder.features(pixels).square().sum().backward()
    assert (made.grad != 0).double().mean() > 0.9


def test_both_calls_get_scaled_noise_and_the_class(words):
    """By hand: z-hat times the truncation, and the embedded class."""
    latent, labels = torch.randn(4, NOISE), torch.tensor([0, 5, 2, 2])
    noise = (latent - latent.mean(1, keepdim=True)) / latent.std(1, keepdim=True)
    for truncation in (1.0, 0.4):
        torch_style, hub = (open_biggan(word) for word in words)
        assert isinstance(torch_style, TorchBigGAN)
        assert isinstance(hub, HubBigGAN)
        expected = torch_style.images(torch.cat([truncation * noise, torch_style.shared.weight[labels]], 1))
        made = biggan(torch_style, truncation=truncation)(latent, labels)
        torch.testing.assert_close(made, (expected + 1) / 2)
        inputs = torch.cat([truncation * noise, hub.embeddings.weight.T[labels]], 1)
        made = biggan(hub, truncation=truncation)(latent, labels)
        torch.testing.assert_close(made, (truncation * hub.generator(inputs) + 1) / 2)


def test_what_is_no_biggan_is_refused(run, root, words, tmp_path):
    def refused(word, *options):
        _, _, code = isda("visualize", run, "--generator", word, "--data-root", root, *QUICK, *options)
        return str(code)

    assert "could not be loaded" in refused("small_biggan.NoSuchGAN")
    assert "must be followed by its file or folder of weights" in refused(f"small_biggan.TorchBigGAN:{tmp_path}/none")
    assert "could not be opened" in refused("small_biggan.HubBigGAN")
    assert "truncation must be above 0 and at most 1" in refused(words[0], "--truncation", 2)
    (tmp_path / "weights.bin").write_bytes(b"nothing")
    assert "cannot be read as weights" in refused(f"small_biggan.TorchBigGAN:{tmp_path / 'weights.bin'}")
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "other.pth")
    assert "could not be opened" in refused(f"small_biggan.TorchBigGAN:{tmp_path / 'other.pth'}")
    with pytest.raises(ValueError, match="network must be a BigGAN"):
        biggan(nn.Linear(2, 2))


def test_classes_of_run_and_generator_must_agree(finished_run, words):
    _, _, code = isda("visualize", finished_run, "--generator", words[0], *QUICK)
    assert f"must make images of the 10 classes of the run, {words[0]} has {CLASSES}" in str(code)


@pytest.mark.slow
def test_figures_7_and_14_are_made_on_imagenet(root, words, tmp_path):
    common = ("--seeds", "1", "--data-root", root, "--out", tmp_path, "--threads", "1")
    command = ("reproduce", "figure-7", "figure-14", *common, "--biggan", words[1])
    _, err, code = isda(*command, "--json", tmp_path / "made.json")
    assert code is None, err
    for made in json.loads((tmp_path / "made.json").read_text()):
        assert not made["problems"]
        assert made["title"].endswith(": ImageNet.")
        assert "Augmented images of imagenet" in Path(made["pages"][1]).read_text()
