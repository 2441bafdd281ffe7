"""The digits that ship with scikit-learn: the default data set."""

import subprocess
import sys

import torch
from sklearn.datasets import load_digits

import isda.lab.data


def test_every_digit_is_in_exactly_one_split_and_unchanged_but_for_scale():
    data = isda.lab.data.load()
    images = torch.cat([data.x_train, data.x_test]).flatten(1)
    labels = torch.cat([data.y_train, data.y_test])
    assert images.min() == 0
    assert images.max() == 255
    back = (images.double() * 16 / 255).round()
    ours = sorted((*image, label) for image, label in zip(back.tolist(), labels.tolist(), strict=True))
    bunch = load_digits()
    theirs = sorted((*image, label) for image, label in zip(bunch.data.tolist(), bunch.target.tolist(), strict=True))
    assert ours == theirs


def test_the_test_set_is_balanced_and_always_the_same():
    first, second = isda.lab.data.load("digits"), isda.lab.data.load("digits")
    assert first.y_test.bincount().tolist() == [50] * 10
    assert torch.equal(first.x_test, second.x_test)


def test_the_published_counts_are_the_real_ones():
    data, known = isda.lab.data.load("digits"), isda.lab.data.CATALOGUE["digits"]
    assert (len(data.x_train), len(data.x_test), data.num_classes) == (known.train, known.test, known.classes)
    assert (data.channels, data.image_size) == (known.channels, (known.size, known.size))


def test_where_scikit_learn_keeps_its_file_elsewhere_it_is_asked(monkeypatch):
    expected = isda.lab.data.load("digits")
    monkeypatch.setattr("isda.lab.data.readers.small_images.find_spec", lambda name: None)
    asked = isda.lab.data.load("digits")
    assert torch.equal(asked.x_train, expected.x_train)
    assert torch.equal(asked.y_test, expected.y_test)


def test_scikit_learn_is_not_imported():
    script = "import sys; import isda.lab.data; isda.lab.data.load('digits'); assert 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
