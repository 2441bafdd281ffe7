"""The labels of unlabelled images are never used."""

from dataclasses import replace

import pytest
import torch

from isda.lab.tasks.semi_supervised import task as job
from isda.lab.tasks.semi_supervised.data import split_data
from isda.lab.train import train
from semi_runs import semi_config
from small_runs import digits


@pytest.fixture
def scrambled(monkeypatch):
    """A data set with wrong labels for all images but the labelled ones, and the same choice of those as before.

    The choice itself needs to know the classes: it stands for whoever labels equally many images of each.
    """

    def make(config):
        split = split_data(config, digits())
        labels = (digits().y_train + 1 + torch.arange(1297) % 9) % 10
        kept = torch.cat([split.labelled, split.evaluation.indices])
        labels[kept] = digits().y_train[kept]
        assert (labels == digits().y_train).sum() == len(kept)
        judged = split.evaluation._replace(labels=labels)
        monkeypatch.setattr(job, "split_data", lambda config, data: split._replace(evaluation=judged))
        return replace(digits(), y_train=labels)

    return make


@pytest.mark.parametrize("name", ["mean-teacher", "temporal-ensembling+isda", "vat+isda"])
def test_wrong_labels_of_unlabelled_images_change_nothing(name, scrambled, tmp_path):
    config = semi_config(method=name, held_out=100)
    train(config, digits(), tmp_path / "right")
    train(config, scrambled(config), tmp_path / "wrong")
    right, wrong = ((tmp_path / run / "model.safetensors").read_bytes() for run in ("right", "wrong"))
    assert right == wrong


def test_a_wrong_label_of_a_labelled_image_does(monkeypatch, tmp_path):
    """Else the test above could not fail."""
    config = semi_config(method="mean-teacher")
    split = split_data(config, digits())
    labels = digits().y_train.clone()
    labels[split.labelled[:5]] = (labels[split.labelled[:5]] + 1) % 10
    monkeypatch.setattr(job, "split_data", lambda config, data: split)
    train(config, digits(), tmp_path / "right")
    train(config, replace(digits(), y_train=labels), tmp_path / "wrong")
    right, wrong = ((tmp_path / run / "model.safetensors").read_bytes() for run in ("right", "wrong"))
    assert right != wrong
