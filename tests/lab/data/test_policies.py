"""RandAugment and AutoAugment: each operation against PIL's or torchvision's, and what is drawn how often."""

import math

import pytest
import torch
import torchvision.transforms.v2.functional as tv
from PIL import Image
from torchvision.transforms import v2

from isda.lab.data.augment import OPERATION_NAMES, AutoAugment, Draws, RandAugment, apply_operations
from isda.lab.data.augment.policies import auto_augment_table, rand_augment_table

POLICIES = ["cifar10", "svhn", "imagenet"]
SHAPES = [(3, 32, 32), (1, 28, 28), (3, 17, 33)]
FACTORS = [-0.9, -0.37, 0.0, 0.27, 0.9]
PARAMETERS = {
    "ShearX": [0.0, 0.1, -0.1, 0.3, -0.3, 0.99],
    "ShearY": [0.0, 0.1, -0.1, 0.3, -0.3, -0.45],
    "TranslateX": [0.0, 0.9, -0.9, 4.35, -14.5, 40.0],
    "TranslateY": [0.0, 0.9, -0.9, 4.35, -14.5, 40.0],
    "Rotate": [0.0, 1.0, -9.0, 30.0, 90.0, 135.0, 180.0],
    **dict.fromkeys(("Brightness", "Color", "Contrast", "Sharpness"), FACTORS),
    "Posterize": [float(bits) for bits in range(9)] + [4.9],
    "Solarize": [0.0, 0.1, 0.5, 0.501, 1.0],
}


def draws(count, seed=0):
    return Draws.for_samples(torch.arange(count), seed=seed)


def expected(image, name, value, fill):
    """What the authors' code does with PIL for shears, and torchvision otherwise."""
    colour = (fill,) * len(image)
    if name.startswith("Shear"):
        matrix = (1, value, 0, 0, 1, 0) if name == "ShearX" else (1, 0, 0, value, 1, 0)
        picture = tv.to_pil_image(image)
        fillcolor = colour if len(image) == 3 else fill
        return tv.pil_to_tensor(
            picture.transform(
                picture.size, Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC, fillcolor=fillcolor
            )
        )
    if name.startswith("Translate"):
        moved = [int(value), 0] if name == "TranslateX" else [0, int(value)]
        return tv.affine(image, angle=0.0, translate=moved, scale=1.0, shear=[0.0, 0.0], fill=list(colour))
    if name == "Rotate":
        return tv.rotate(image, value, fill=list(colour))
    functions = {
        "Identity": lambda: image,
        "Brightness": lambda: tv.adjust_brightness(image, 1 + value),
        "Color": lambda: tv.adjust_saturation(image, 1 + value) if len(image) == 3 else image,
        "Contrast": lambda: tv.adjust_contrast(image, 1 + value),
        "Sharpness": lambda: tv.adjust_sharpness(image, 1 + value),
        "Posterize": lambda: tv.posterize(image, int(value)),
        "Solarize": lambda: tv.solarize(image, 255 * value),
        "AutoContrast": lambda: tv.autocontrast(image),
        "Equalize": lambda: tv.equalize(image),
        "Invert": lambda: tv.invert(image),
    }
    return functions[name]()


def undecided(name, value, height, width):
    """Pixels whose source lies midway between two pixels, where rounding noise decides."""
    if name != "Rotate":
        return torch.zeros(height, width, dtype=torch.bool)
    y = torch.arange(height, dtype=torch.float64)[:, None].expand(height, width) - (height - 1) / 2
    x = torch.arange(width, dtype=torch.float64).expand(height, width) - (width - 1) / 2
    cosine, sine = math.cos(math.radians(value)), math.sin(math.radians(value))
    source = [cosine * x - sine * y + (width - 1) / 2, sine * x + cosine * y + (height - 1) / 2]
    return torch.stack([((position % 1) - 0.5).abs() < 1e-4 for position in source]).any(0)


@pytest.mark.parametrize("name", OPERATION_NAMES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fill", [0, 128])
def test_an_operation_is_the_references_image_by_image(images_of, name, shape, fill):
    images, values = images_of(*shape), PARAMETERS.get(name, [0.0])
    # Neighbouring samples of one batch have different magnitudes.
    batch, magnitude = images.repeat_interleave(len(values), 0), torch.tensor(values * len(images)).double()
    before = batch.clone()
    ours = apply_operations(batch, torch.full((len(batch),), OPERATION_NAMES.index(name)), magnitude, fill)
    assert torch.equal(batch, before)
    differing = total = 0
    for image, result, value in zip(batch, ours, magnitude.tolist(), strict=True):
        decided = ~undecided(name, value, *shape[1:])
        difference = (result.int() - expected(image, name, value, fill).int()).abs()[:, decided]
        # One grey level is what float32 rounding can do before the cut to uint8; it must be rare. PIL has float64.
        assert int(difference.amax()) <= 1, f"{name} {value}"
        differing, total = differing + int((difference > 0).sum()), total + difference.numel()
    assert differing < (2e-2 if name.startswith("Shear") else 2e-3) * total


def test_each_image_of_a_mixed_batch_gets_its_own_operation(images_of):
    batch = images_of().repeat(len(OPERATION_NAMES), 1, 1, 1)
    operation = torch.arange(len(batch)) % len(OPERATION_NAMES)
    magnitude = torch.full((len(batch),), 0.3, dtype=torch.float64)
    ours = apply_operations(batch, operation, magnitude)
    for index in range(len(batch)):
        alone = apply_operations(batch[index : index + 1], operation[index : index + 1], magnitude[index : index + 1])
        assert torch.equal(ours[index], alone[0])
    assert apply_operations(batch[:0], operation[:0], magnitude[:0]).shape == (0, 3, 32, 32)


def test_what_comes_in_from_outside_is_grey():
    black = torch.zeros(400, 3, 32, 32, dtype=torch.uint8)
    for name in ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"):
        operation = torch.full((1,), OPERATION_NAMES.index(name))
        assert 128 in apply_operations(black[:1], operation, torch.tensor([9.0]).double())
    coloured = AutoAugment("svhn", fill=[1, 2, 3])(black, draws(400))
    assert (coloured == torch.tensor([1, 2, 3])[:, None, None]).all(1).any()


@pytest.mark.parametrize("magnitude", [0, 9, 30])
def test_rand_augment_has_the_space_of_torchvision(magnitude):
    table, space = rand_augment_table(magnitude, bins=31, height=28, width=32), v2.RandAugment._AUGMENTATION_SPACE
    assert [OPERATION_NAMES[index] for index in table.operation.tolist()] == list(space)
    for name, ours, signed in zip(space, table.magnitude.tolist(), table.signed.tolist(), strict=True):
        levels = space[name][0](31, 28, 32)
        assert ours == pytest.approx(0.0 if levels is None else float(levels[magnitude]))
        assert signed == space[name][1]


def test_auto_augment_has_the_policies_of_the_publication():
    """The first row of each table in the appendix of Cubuk et al. (2019)."""
    published = {
        "cifar10": [("Invert", 0.1), ("Contrast", 0.2)],
        "svhn": [("ShearX", 0.9), ("Invert", 0.2)],
        "imagenet": [("Posterize", 0.4), ("Rotate", 0.6)],
    }
    for policy, steps in published.items():
        table = auto_augment_table(policy, 32, 32)
        assert table.operation.shape == (25, 2)
        for step, (name, probability) in enumerate(steps):
            assert OPERATION_NAMES[int(table.operation[0, step])] == name
            assert float(table.probability[0, step]) == pytest.approx(probability)


def test_rand_augment_draws_operations_uniformly_and_signs_evenly():
    operation, magnitude = RandAugment(num_ops=2, magnitude=9).draw(draws(14000), 32, 32)
    for step in range(2):
        used = torch.bincount(operation[:, step], minlength=len(OPERATION_NAMES)).double()
        used = used[used > 0]
        assert len(used) == 14
        assert float(((used - 1000) ** 2 / 1000).sum()) < 13 + 5 * 26**0.5
    rotated = magnitude[operation == OPERATION_NAMES.index("Rotate")]
    assert rotated.abs().unique().tolist() == [pytest.approx(9.0)]
    assert abs(float((rotated > 0).double().mean()) - 0.5) < 0.05
    # The two steps are independent: each of the 14 x 14 pairs is about equally likely.
    pairs = (operation[:, 0] * len(OPERATION_NAMES) + operation[:, 1]).unique(return_counts=True)[1]
    assert len(pairs) == 196
    assert int(pairs.max()) < 2 * 14000 / 196


@pytest.mark.parametrize("policy", POLICIES)
def test_auto_augment_applies_each_operation_as_often_as_its_probability_says(policy):
    operation, _ = AutoAugment(policy).draw(draws(20000), 32, 32)
    table = auto_augment_table(policy, 32, 32)
    for step in range(2):
        rates = torch.zeros(len(OPERATION_NAMES)).index_add(0, table.operation[:, step], table.probability[:, step])
        observed = torch.bincount(operation[:, step], minlength=len(OPERATION_NAMES)) / 20000 * 25
        # The standard error of an operation's rate is at most sqrt(0.25 / 20000) * 25 = 0.09.
        torch.testing.assert_close(observed[1:], rates[1:], atol=0.35, rtol=0)


@pytest.mark.parametrize("transform", [RandAugment(2, 9), AutoAugment("cifar10")])
def test_copies_of_one_image_are_augmented_differently(images_of, transform):
    results = transform(images_of()[:1].repeat(64, 1, 1, 1), draws(64))
    assert len(results.flatten(1).unique(dim=0)) > 15


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: AutoAugment("cifar-10"), r"policy must be one of .* did you mean 'cifar10'\?"),
        (lambda x: RandAugment(magnitude=31), "magnitude must be a level from 0 to 30, got 31"),
        (lambda x: RandAugment()(x.float(), draws(10)), "tensor of torch.uint8, got torch.float32"),
        (lambda x: RandAugment()(x[:, :2], draws(10)), "images must have 1 or 3 channels, got 2"),
        (lambda x: RandAugment(fill=[1, 2])(x, draws(10)), r"fill must be one value or one per channel \(3\), got 2"),
    ],
)
def test_wrong_arguments_are_named(images_of, call, message):
    with pytest.raises(ValueError, match=message):
        call(images_of())
