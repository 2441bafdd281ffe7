"""Images that are decoded on access."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from isda.lab.data import ImageFiles, LabelledImages
from isda.lab.data.image_files import read_image


@pytest.fixture
def pictures(tmp_path, write_images):
    write_images(tmp_path, 4)
    return sorted(tmp_path.glob("*.png"))


def test_an_image_is_decoded_exactly(pictures):
    expected = np.asarray(Image.open(pictures[1])).transpose(2, 0, 1)
    np.testing.assert_array_equal(ImageFiles(pictures)[1], expected)


def test_indices_masks_and_slices_select_files_without_decoding(pictures):
    images = ImageFiles([*pictures, "not there"])
    assert images[torch.tensor([2, 0])].paths == (pictures[2], pictures[0])
    assert images[torch.tensor([True, False, False, True, False])].paths == (pictures[0], pictures[3])
    assert images[1:3].paths == tuple(pictures[1:3])
    assert len(images[torch.tensor([4, 4])]) == 2


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("1", 1), ("P", 3), ("RGBA", 3), ("L", 3)])
def test_other_modes_become_grey_or_rgb(tmp_path, mode, channels):
    Image.new("L", (5, 6), 255).convert(mode).save(tmp_path / "a.png")
    image = read_image(tmp_path / "a.png", channels)
    assert image.shape == (channels, 6, 5)
    assert image.dtype == torch.uint8
    assert image.unique().tolist() == [255]


def test_a_file_that_is_no_image_is_named(tmp_path):
    (tmp_path / "notes.png").write_text("not an image")
    with pytest.raises(ValueError, match=r"notes\.png cannot be read as an image: cannot identify image file$"):
        read_image(tmp_path / "notes.png")


def test_a_truncated_image_is_named(pictures):
    pictures[0].write_bytes(pictures[0].read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"000\.png cannot be read as an image: .*truncated"):
        read_image(pictures[0])


def test_an_image_of_16_bits_is_refused_rather_than_clipped(tmp_path):
    Image.fromarray(np.full((4, 4), 40_000, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(ValueError, match=r"deep\.png has pixels of mode I.*8 bits per channel are expected"):
        read_image(tmp_path / "deep.png")


def test_a_data_loader_gets_transformed_images_with_their_labels(pictures):
    labels = torch.tensor([3, 1, 2, 0])
    dataset = LabelledImages(ImageFiles(pictures), labels, transform=lambda image: image.float() / 255)
    images, targets = next(iter(DataLoader(dataset, batch_size=4)))
    assert torch.equal(targets, labels)
    assert torch.equal(images[2], read_image(pictures[2]).float() / 255)
