"""What `networks.create` accepts and what it refuses."""

import pytest
import torch

from isda.lab import networks

NAMES_OF_THE_DESIGN = [
    "resnet-8",
    "resnet-14",
    "resnet-20",
    "resnet-32",
    "resnet-110",
    "se-resnet-110",
    "wide-resnet-16-8",
    "wide-resnet-28-10",
    "resnext-29-8x64d",
    "densenet-bc-100-12",
    "shake-shake-26-2x32d",
    "shake-shake-26-2x112d",
    "cnn-13",
    "resnet-50",
    "resnet-101",
    "resnet-152",
    "densenet-121",
    "densenet-265",
    "resnext-50-32x4d",
    "resnext-101-32x8d",
]


def test_every_name_of_the_design_is_known():
    assert set(NAMES_OF_THE_DESIGN) <= set(networks.names())


def test_a_misspelt_name_suggests_the_right_one():
    with pytest.raises(ValueError, match="unknown network 'wide-resnet-28-1'; did you mean 'wide-resnet-28-10'"):
        networks.create("wide-resnet-28-1", num_classes=10)


def test_a_name_like_no_other_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown network 'qqq'; known are resnet-8, .* and timm:NAME"):
        networks.create("qqq", num_classes=10)


def test_a_misspelt_option_suggests_the_right_one():
    with pytest.raises(ValueError, match="wide-resnet-10-2 has no option 'droput'; did you mean 'dropout'"):
        networks.create("wide-resnet-10-2", num_classes=10, droput=0.3)


def test_an_option_of_another_family_is_refused_with_those_it_takes():
    with pytest.raises(ValueError, match="resnext-29-8x64d has no option 'dropout'; it takes in_channels"):
        networks.create("resnext-29-8x64d", num_classes=10, dropout=0.3)


def test_what_the_name_says_cannot_be_overridden():
    with pytest.raises(ValueError, match="resnet-20 has no option 'depth'"):
        networks.create("resnet-20", num_classes=10, depth=32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 0}, "num_classes must be an integer of at least 1, got 0"),
        ({"num_classes": 2.5}, "num_classes must be an integer of at least 1, got 2.5"),
        ({"num_classes": 10, "in_channels": -1}, "in_channels must be an integer of at least 1, got -1"),
        ({"num_classes": 10, "in_channels": 10**30}, r"in_channels must be at most 10\^9, got 1000"),
        ({"num_classes": 10, "dropout": 1.0}, r"dropout must be a number in \[0, 1\), got 1.0"),
        ({"num_classes": 10, "dropout": "much"}, r"dropout must be a number in \[0, 1\), got 'much'"),
        ({"num_classes": 10, "width": 0}, "width must be a positive number, got 0"),
        ({"num_classes": 10, "width": float("nan")}, "width must be a positive number, got nan"),
    ],
)
def test_a_value_out_of_range_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        networks.create("resnet-8", **options)


@pytest.mark.parametrize("name", ["resnet-8", "resnet-14", "resnet-20", "fast-cnn", "wide-resnet-10-2"])
def test_small_grey_images_work(name):
    network = networks.create(name, num_classes=10, in_channels=1)
    assert network(torch.zeros(4, 1, 8, 8)).shape == (4, 10)


@pytest.mark.parametrize("name", ["resnet-50", "densenet-121"])
def test_imagenet_networks_take_other_channel_counts(name):
    network = networks.create(name, num_classes=5, in_channels=4).eval()
    assert network(torch.zeros(1, 4, 64, 64)).shape == (1, 5)


@pytest.mark.parametrize(("name", "feature_dim"), [("resnet-20", 32), ("cnn-13", 64), ("fast-cnn", 64)])
def test_half_the_width_makes_half_the_features_and_a_quarter_of_the_parameters(name, feature_dim):
    full = networks.create(name, num_classes=10)
    half = networks.create(name, num_classes=10, width=0.5)
    assert half.feature_dim == feature_dim
    ratio = networks.count_parameters(half) / networks.count_parameters(full)
    assert ratio == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(
    ("name", "feature_dim"),
    [
        ("wide-resnet-10-2", 64),
        ("resnext-29-8x64d", 512),
        ("densenet-bc-40-12", 66),
        ("shake-shake-26-2x32d", 64),
        ("resnet-50", 1024),
        ("resnext-50-32x4d", 1024),
        ("densenet-121", 512),
    ],
)
def test_families_whose_stem_keeps_its_channels_have_half_the_features_at_half_the_width(name, feature_dim):
    full, half = (networks.create(name, num_classes=10, width=width) for width in (1.0, 0.5))
    assert half.feature_dim == feature_dim == full.feature_dim // 2
    assert 0.2 < networks.count_parameters(half) / networks.count_parameters(full) < 0.32
    assert half.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


def test_every_network_can_be_a_sixteenth_as_wide():
    for name in networks.names():
        narrow = networks.create(name, num_classes=10, width=0.0625).eval()
        assert narrow(torch.zeros(1, 3, 32, 32)).shape == (1, 10), name


def test_an_image_too_small_for_cnn_13_is_refused_with_the_size_it_needs():
    network = networks.create("cnn-13", num_classes=10, width=0.1)
    with pytest.raises(ValueError, match="cnn-13 needs images of at least 12x12 pixels, got 8x11"):
        network(torch.zeros(1, 3, 8, 11))
    assert network.eval()(torch.zeros(1, 3, 12, 12)).shape == (1, 10)
