"""From settings to configurations: MMDetection's recipe, backbones of every source, and what is refused."""

from __future__ import annotations

import json
import shutil
import warnings

import pytest
import torch
from safetensors.torch import load_file
from small_detection import SMALL

from isda.lab.engine import learning_rate
from isda.lab.tasks.detection.backbone import create_detector, initialise
from isda.lab.tasks.detection.settings import DetectionSettings
from isda.lab.tasks.detection.task import Detection
from isda.lab.train import Settings as ClassifierSettings
from isda.lab.train import load_data
from isda.lab.train import resolve as resolve_classifier
from isda.lab.train import train as train_classifier

TASK = Detection()


@pytest.fixture(scope="module")
def data(shapes_set):
    return TASK.load(str(shapes_set))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A run of `isda train` on colour images."""
    import numpy as np

    folder = tmp_path_factory.mktemp("classifier")
    images = np.random.default_rng(0).integers(0, 255, (24, 16, 16, 3), dtype=np.uint8)
    labels = np.arange(24) % 3
    np.savez(folder / "tiny.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    settings = ClassifierSettings(
        data=str(folder / "tiny.npz"), network="fast-cnn", width=0.25, batch_size=8, epochs=1, augment="none"
    )
    loaded = load_data(settings)
    train_classifier(resolve_classifier(settings, loaded), loaded, folder / "run")
    return folder / "run"


def resolved(data, **changes):
    return TASK.resolve(DetectionSettings(**(SMALL | changes)), data)


def test_the_recipe_is_mmdetections(data):
    config = TASK.resolve(DetectionSettings(batch_size=2), data)
    assert (config.epochs, config.milestones, config.lr_factor, config.momentum) == (12, (8, 11), 0.1, 0.9)
    assert (config.weight_decay, config.lr) == pytest.approx((1e-4, 0.02 * 2 / 16))
    assert (config.network, config.backbone, config.method) == ("faster-rcnn", "resnet-50", "multi-task")
    assert (config.detector_options["min_size"], config.detector_options["max_size"]) == (800, 1333)
    small = resolved(data, batch_size=2, lr=0.1, scale="small", epochs=None)
    assert (small.lr, small.epochs) == (0.1, 1)


def test_the_learning_rate_rises_and_falls(data):
    config = resolved(data, batch_size=1, epochs=12, warm_up="10steps", lr=1.0)
    rates = [learning_rate(config, step) for step in range(config.total_steps)]
    assert rates[0] == pytest.approx(0.001)
    assert rates[5] == pytest.approx((0.001 + 1) / 2)
    assert rates[10] == rates[8 * 7 - 1] == 1
    assert rates[8 * 7] == pytest.approx(0.1)
    assert rates[11 * 7] == pytest.approx(0.01)
    job = TASK.start(config, data, _place())
    assert job.learning_rate(5) == rates[5]
    assert not job.optimiser.defaults["nesterov"]


def _place():
    from pathlib import Path

    from isda.lab.engine import Processes, RunContext

    return RunContext(Processes(0, 1, torch.device("cpu")), Path("not-there"))


def test_what_is_frozen_depends_on_the_weights(data, classifier):
    random, trained = resolved(data), resolved(data, backbone=str(classifier), backbone_options={})
    assert not random.detector_options["freeze_batch_norm"]
    assert random.detector_options["frozen_stages"] == 0
    assert trained.detector_options["freeze_batch_norm"]
    assert trained.detector_options["frozen_stages"] == 1
    asked = resolved(data, batch_norm="frozen", frozen_stages=2)
    assert asked.detector_options["freeze_batch_norm"]
    assert asked.detector_options["frozen_stages"] == 2


def test_a_detector_starts_from_the_run_of_a_classifier(data, classifier):
    config = resolved(data, backbone=str(classifier), backbone_options={})
    stored = json.loads((classifier / "config.json").read_text())
    assert (config.backbone, config.mean) == ("fast-cnn", tuple(stored["mean"]))
    weights = load_file(classifier / "model.safetensors")
    body = TASK.network_for(config, _place()).backbone.body.state_dict()
    assert body
    for name, value in body.items():
        assert torch.equal(value, weights[f"body.{name}"])


def test_a_method_may_say_what_it_starts_from(data, classifier):
    config = resolved(data, method=f"multi-task:backbone={classifier}", backbone=None, backbone_options={})
    assert config.backbone_weights == str(classifier / "model.safetensors")
    assert config.method_options == {"backbone": str(classifier)}
    assert resolved(data, method="multi-task").method_options == {}
    narrow = resolved(data, method="multi-task:backbone=resnet-8", backbone=None)
    assert (narrow.backbone, narrow.backbone_options) == ("resnet-8", {"width": 0.25})
    with pytest.raises(ValueError, match="backbone must be said by the settings or by the method, got it twice"):
        resolved(data, method="multi-task:backbone=resnet-8")


def test_other_weights_are_another_run(data, classifier, tmp_path):
    copied = shutil.copytree(classifier, tmp_path / "run")
    file = copied / "model.safetensors"
    one = resolved(data, backbone_weights=str(file))
    from safetensors.torch import save_file

    save_file({name: value + 1 for name, value in load_file(file).items()}, file)
    assert resolved(data, backbone_weights=str(file)).identity != one.identity


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"network": "mask-rcn"}, "network must be one of .*did you mean 'mask-rcnn'"),
        ({"backbone": "resnet-5"}, "unknown backbone 'resnet-5'; did you mean 'resnet-50'"),
        ({"backbone": "runs/nowhere"}, "no run in runs/nowhere"),
        ({"backbone_weights": "gone.pth"}, "backbone_weights must be torchvision, timm or a file, got 'gone.pth'"),
        ({"backbone_weights": "torchvision"}, "backbone_weights must be a file for fast-cnn"),
        ({"batch_size": 8}, "batch_size must be from 1 to 7, the training images with objects, got 8"),
        ({"batch_norm": "no"}, "batch_norm must be one of frozen, trained"),
        ({"warm_up": "-1"}, "warm_up must be a number of epochs, 2 or 0.5, or of steps, 100steps, got '-1'"),
        ({"compile": True}, "compile is not supported for detectors"),
        ({"method": "multi-taks"}, "method must be one of multi-task"),
        ({"method": "multi-task:width=1"}, "option of method multi-task"),
    ],
)  # fmt: skip
def test_what_is_refused(data, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        resolved(data, **changes)


@pytest.mark.slow
def test_torchvisions_weights_are_taken_from_its_cache(data, tmp_path, monkeypatch):
    """As torchvision keeps them once it has fetched them."""
    from torchvision.models import DenseNet121_Weights, densenet121

    theirs = densenet121()
    file = tmp_path / "hub" / "checkpoints" / DenseNet121_Weights.IMAGENET1K_V1.url.rpartition("/")[2]
    file.parent.mkdir(parents=True)
    torch.save(theirs.state_dict(), file)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    config = resolved(data, backbone="densenet-121", backbone_weights="torchvision", backbone_options={})
    detector = create_detector(config)
    initialise(detector, config)
    assert torch.equal(detector.backbone.body.norm5.weight, theirs.features.norm5.weight)
    assert torch.equal(detector.backbone.body.conv0.weight, theirs.features.conv0.weight)
    with pytest.raises(ValueError, match="backbone_weights must be a file for densenet-265, torchvision has none"):
        resolved(data, backbone="densenet-265", backbone_weights="torchvision", backbone_options={})


def test_a_run_has_its_own_weights(data, classifier):
    with pytest.raises(ValueError, match="is a run, which has its own weights and options"):
        resolved(data, backbone=str(classifier))


def test_masks_must_be_there_to_be_learnt(shapes_set, tmp_path):
    folder = shutil.copytree(shapes_set, tmp_path / "set")
    content = json.loads((folder / "train.json").read_text())
    del content["annotations"][0]["segmentation"]
    (folder / "train.json").write_text(json.dumps(content))
    data = TASK.load(str(folder))
    with pytest.raises(ValueError, match="network mask-rcnn needs the masks of all objects"):
        resolved(data)
    assert resolved(data, network="faster-rcnn").figures[0].name == "ap"


@pytest.mark.slow
def test_timm_backbones_are_built(data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        config = resolved(data, backbone="timm:resnet10t", backbone_options={})
    detector = create_detector(config)
    initialise(detector, config)
    assert detector.backbone.strides == [4, 8, 16, 32, 64]
