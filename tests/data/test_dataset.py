"""What a data set checks when it is made, and what it tells about itself."""

import dataclasses

import pytest
import torch

from isda.lab.data import ChannelStatistics, DataSet, channel_statistics


def make(**changes):
    generator = torch.Generator().manual_seed(0)
    fields = {
        "name": "tiny",
        "x_train": torch.randint(0, 256, (8, 3, 4, 4), dtype=torch.uint8, generator=generator),
        "y_train": torch.arange(8) % 2,
        "x_test": torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
        "y_test": torch.tensor([1, 0]),
        "classes": ("cat", "dog"),
    }
    return DataSet(**(fields | changes))


def test_it_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().name = "other"


def test_published_statistics_go_before_computed_ones():
    published = ChannelStatistics((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert make(published=published).mean == (0.1, 0.2, 0.3)
    data = make()
    assert (data.mean, data.std) == channel_statistics(data.x_train)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": torch.full((8,), 2)}, r"y_train of tiny holds the label 2 at position 0; .* must be in 0\.\.1"),
        ({"y_test": torch.tensor([0, -1])}, r"y_test of tiny holds the label -1 at position 1"),
        ({"y_train": torch.zeros(8)}, r"y_train of tiny must be int64 of shape \(8,\).* got torch.float32"),
        ({"y_test": torch.tensor([1])}, r"y_test of tiny must be int64 of shape \(2,\).* shape \(1,\)"),
        ({"x_train": torch.zeros(8, 3, 4, 4)}, r"x_train of tiny must be uint8 of shape \(N, C, H, W\), got .*float32"),
        ({"x_test": torch.zeros(2, 1, 4, 4, dtype=torch.uint8)}, r"one shape .*, got \(3, 4, 4\) and \(1, 4, 4\)"),
    ],
)
def test_wrong_arrays_are_refused_with_their_name(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_datasets_pair_images_with_labels():
    data = make()
    image, label = data.train_dataset()[3]
    assert torch.equal(image, data.x_train[3])
    assert label == 1
    assert len(data.test_dataset()) == 2
    assert data.test_dataset(lambda image: image + 1)[0][0].unique().tolist() == [1]
