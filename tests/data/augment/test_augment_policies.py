from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2

from isda.lab.data.augment import OPERATION_NAMES, AutoAugment, Draws, RandAugment
from isda.lab.data.augment.policies import auto_augment_table, rand_augment_table

Images = Callable[..., Tensor]
Reference = Callable[[Tensor, str, float], Tensor]
POLICIES = ["cifar10", "svhn", "imagenet"]


def draws(count: int, seed: int = 0) -> Draws:
    return Draws.for_samples(torch.arange(count), seed=seed)


def test_rand_augment_space_is_the_published_one() -> None:
    table = rand_augment_table(magnitude=30, bins=31, height=32, width=64)
    largest = {
        OPERATION_NAMES[index]: (magnitude, signed)
        for index, magnitude, signed in zip(
            table.operation.tolist(), table.magnitude.tolist(), table.signed.tolist(), strict=True
        )
    }
    assert len(largest) == 14
    assert largest["Identity"] == largest["AutoContrast"] == largest["Equalize"] == (0.0, False)
    assert largest["ShearX"] == largest["ShearY"] == (pytest.approx(0.3), True)
    assert largest["TranslateX"] == (pytest.approx(150 / 331 * 64), True)
    assert largest["TranslateY"] == (pytest.approx(150 / 331 * 32), True)
    assert largest["Rotate"] == (pytest.approx(30.0), True)
    for name in ("Brightness", "Color", "Contrast", "Sharpness"):
        assert largest[name] == (pytest.approx(0.9), True)
    assert largest["Posterize"] == (4.0, False)
    assert largest["Solarize"] == (0.0, False)


@pytest.mark.parametrize("magnitude", [0, 1, 9, 14, 30])
def test_rand_augment_magnitudes_are_torchvisions(magnitude: int) -> None:
    table = rand_augment_table(magnitude, bins=31, height=28, width=32)
    space = v2.RandAugment._AUGMENTATION_SPACE
    assert [OPERATION_NAMES[index] for index in table.operation.tolist()] == list(space)
    for name, ours, signed in zip(space, table.magnitude.tolist(), table.signed.tolist(), strict=True):
        levels = space[name][0](31, 28, 32)
        assert ours == pytest.approx(0.0 if levels is None else float(levels[magnitude]))
        assert signed == space[name][1]


@pytest.mark.parametrize("policy", POLICIES)
def test_auto_augment_table_is_torchvisions(policy: str) -> None:
    theirs = v2.AutoAugment(v2.AutoAugmentPolicy(policy))
    table = auto_augment_table(policy, 32, 48)
    assert table.operation.shape == (25, 2)
    for row, sub_policy in enumerate(theirs._get_policies(v2.AutoAugmentPolicy(policy))):
        for step, (name, probability, level) in enumerate(sub_policy):
            levels, signed = theirs._AUGMENTATION_SPACE[name][0](10, 32, 48), theirs._AUGMENTATION_SPACE[name][1]
            assert OPERATION_NAMES[int(table.operation[row, step])] == name
            assert float(table.probability[row, step]) == pytest.approx(probability)
            assert float(table.magnitude[row, step]) == pytest.approx(0.0 if levels is None else float(levels[level]))
            assert bool(table.signed[row, step]) == signed


def test_auto_augment_first_sub_policies_are_the_papers() -> None:
    """Rows of the appendix of Cubuk et al. (2019), so that a change in torchvision would be noticed."""
    published = {
        "cifar10": [("Invert", 0.1), ("Contrast", 0.2)],
        "svhn": [("ShearX", 0.9), ("Invert", 0.2)],
        "imagenet": [("Posterize", 0.4), ("Rotate", 0.6)],
    }
    for policy, steps in published.items():
        table = auto_augment_table(policy, 32, 32)
        for step, (name, probability) in enumerate(steps):
            assert OPERATION_NAMES[int(table.operation[0, step])] == name
            assert float(table.probability[0, step]) == pytest.approx(probability)


def test_rand_augment_draws_operations_uniformly_and_signs_evenly() -> None:
    operation, magnitude = RandAugment(num_ops=2, magnitude=9).draw(draws(14000), 32, 32)
    for step in range(2):
        counts = torch.bincount(operation[:, step], minlength=len(OPERATION_NAMES))
        used = counts[counts > 0].double()
        assert len(used) == 14
        assert float(((used - 1000) ** 2 / 1000).sum()) < 13 + 5 * 26**0.5
    rotated = magnitude[operation == OPERATION_NAMES.index("Rotate")]
    assert rotated.abs().unique().tolist() == [pytest.approx(9.0)]
    assert abs(float((rotated > 0).double().mean()) - 0.5) < 0.05
    assert (magnitude[operation == OPERATION_NAMES.index("Solarize")] >= 0).all()
    # The two steps are independent: each of the 14 x 14 pairs is about equally likely.
    pairs = Counter(map(tuple, operation.tolist()))
    assert len(pairs) == 196
    assert max(pairs.values()) < 2 * 14000 / 196


@pytest.mark.parametrize("policy", POLICIES)
def test_auto_augment_applies_each_operation_as_often_as_its_probability_says(policy: str) -> None:
    count = 20000
    operation, magnitude = AutoAugment(policy).draw(draws(count), 32, 32)
    table = auto_augment_table(policy, 32, 32)
    for step in range(2):
        expected = torch.zeros(len(OPERATION_NAMES)).index_add(0, table.operation[:, step], table.probability[:, step])
        observed = torch.bincount(operation[:, step], minlength=len(OPERATION_NAMES)) / count * 25
        observed[OPERATION_NAMES.index("Identity")] = 0
        # The standard error of an operation's rate is at most sqrt(0.25 / 20000) * 25 = 0.09.
        torch.testing.assert_close(observed, expected, atol=0.35, rtol=0)
    shears = magnitude[operation == OPERATION_NAMES.index("ShearX")]
    assert abs(float((shears > 0).double().mean()) - 0.5) < 0.15 if len(shears) else policy == "cifar10"


def assert_equals_torchvision(images: Tensor, transform: RandAugment | AutoAugment, reference: Reference) -> None:
    """Draw as the transform does, then let torchvision apply the same operations to each image."""
    ours = transform(images, draws(len(images)))
    operation, magnitude = transform.draw(draws(len(images)), *images.shape[-2:])
    assert ours.dtype == torch.uint8
    differing = 0
    for row, image in enumerate(images):
        expected = image
        for index, value in zip(operation[row].tolist(), magnitude[row].tolist(), strict=True):
            expected = reference(expected, OPERATION_NAMES[index], value)
        differing += int((expected != ours[row]).sum())
    # One grey level of rounding may be amplified by the next operation, and ties in geometry may fall either way.
    assert differing < 1e-3 * images.numel()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("magnitude", [5, 9, 28])
def test_rand_augment_equals_torchvision_for_the_same_draws(
    images_of: Images, torchvision_operation: Reference, channels: int, magnitude: int
) -> None:
    images = images_of(channels).repeat(12, 1, 1, 1)
    assert_equals_torchvision(images, RandAugment(3, magnitude), torchvision_operation)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_auto_augment_equals_torchvision_for_the_same_draws(
    images_of: Images, torchvision_operation: Reference, channels: int, policy: str
) -> None:
    images = images_of(channels, 30, 34).repeat(12, 1, 1, 1)
    assert_equals_torchvision(images, AutoAugment(policy), torchvision_operation)


@pytest.mark.parametrize("transform", [RandAugment(2, 9), AutoAugment("cifar10")])
def test_copies_of_one_image_are_augmented_differently(images_of: Images, transform: RandAugment | AutoAugment) -> None:
    images = images_of()[:1].repeat(64, 1, 1, 1)
    results = transform(images, draws(64))
    assert len({result.numpy().tobytes() for result in results}) > 15


def test_zero_operations_leave_the_images(images_of: Images) -> None:
    assert torch.equal(RandAugment(num_ops=0)(images_of(), draws(12)), images_of())


def test_wrong_arguments_are_named(images_of: Images) -> None:
    with pytest.raises(ValueError, match=r"policy must be one of .* got 'cifar-10'; did you mean 'cifar10'\?"):
        AutoAugment("cifar-10")
    with pytest.raises(ValueError, match=r"num_ops must be 0 or more, got -1"):
        RandAugment(num_ops=-1)
    with pytest.raises(ValueError, match=r"magnitude must be a level from 0 to 30, got 31"):
        RandAugment(magnitude=31)
    with pytest.raises(ValueError, match=r"images must be torch.uint8, got torch.float32"):
        RandAugment()(images_of().float(), draws(12))
