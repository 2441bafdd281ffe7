"""Opening a run to look into it: the images it has learnt from, as its network sees them."""

import numpy as np
import pytest
import torch

from isda.lab.analysis import observe
from isda.lab.cli import main


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("observed") / "run"
    words = "--labels 60 --epochs 1 --width 0.25 --batch-size 20 --lambda-0 1 --threads 1 --out"
    main(["train", *words.split(), str(folder)])
    return folder


def test_covariances_are_those_of_the_images_that_the_run_has_learnt_from(run):
    seen = observe(run)
    assert seen.labels.bincount().tolist() == [6] * 10
    assert torch.equal(seen.labels, seen.data.y_train[seen.indices])
    members = seen.features[seen.rows_of(3)].numpy()
    torch.testing.assert_close(seen.covariance.covariance(3), torch.from_numpy(np.cov(members.T, bias=True)))


def test_the_classifier_says_of_features_what_the_network_says_of_images(run):
    seen = observe(run)
    pixels = seen.trained.pipeline(seen.images(torch.arange(5)))
    said = seen.trained.network(pixels).double()
    torch.testing.assert_close(seen.logits(seen.features[:5]), said, rtol=1e-4, atol=1e-4)


def test_fewer_images_are_equally_many_of_each_class(run):
    assert observe(run, most=25).labels.bincount().tolist() == [2] * 10
    assert observe(run, most=25).indices.tolist() == observe(run, most=25).indices.tolist()
    with pytest.raises(ValueError, match="most must be at least 10, one image of each class, got 9"):
        observe(run, most=9)


def test_a_data_set_that_has_changed_is_refused(tmp_path):
    x = np.random.default_rng(0).integers(0, 255, (40, 8, 8), dtype=np.uint8)
    file = tmp_path / "mine.npz"
    np.savez(file, x_train=x, y_train=np.arange(40) % 2, x_test=x, y_test=np.arange(40) % 2)
    words = ["--data", str(file), "--epochs", "1", "--width", "0.25", "--batch-size", "20", "--threads", "1"]
    main(["train", *words, "--out", str(tmp_path / "run")])
    np.savez(file, x_train=x, y_train=np.arange(40) // 20, x_test=x, y_test=np.arange(40) % 2)
    with pytest.raises(ValueError, match="has changed since"):
        observe(tmp_path / "run")


def test_semi_supervised_runs_show_their_labelled_images(tmp_path):
    words = "--method pi-model --labels 40 --unlabelled 60 --epochs 1 --width 0.25 --batch-size 20 --threads 1 --out"
    main(["train", *words.split(), str(tmp_path / "run")])
    assert observe(tmp_path / "run").labels.bincount().tolist() == [4] * 10
