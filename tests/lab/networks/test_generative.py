"""Generators and discriminators: shapes, classes side by side against a loop over single networks."""

import pytest
import torch

from isda.lab.networks.generative import (
    SIZES,
    ClassTable,
    CriticPerClass,
    Discriminator,
    DiscriminatorBody,
    GeneratorBody,
    create_generator,
    from_pixels,
    generator_names,
    to_pixels,
)


@pytest.mark.any_device
@pytest.mark.parametrize("name", generator_names())
@pytest.mark.parametrize(("size", "channels"), [(8, 1), (28, 1), (32, 3)])
def test_every_size_makes_images_that_every_discriminator_takes(name, size, channels):
    shape = {"channels": channels, "size": size, "width": 0.1}
    generator = create_generator(name, 5, noise=7, codes=2, **shape)
    labels = torch.tensor([4, 0, 4], device="cpu")
    latent = generator.draw(3, torch.Generator("cpu").manual_seed(0)).to(next(generator.parameters()).device)
    images = generator(latent, labels)
    assert images.shape == (3, channels, size, size)
    assert images.abs().max() <= 1
    for discriminator in (
        Discriminator(5, **shape),
        Discriminator(5, **shape, reads_class=True),
        Discriminator(5, **shape, names_class=True, codes=2),
        CriticPerClass(5, **shape),
    ):
        assert discriminator(images, labels).scores.shape == (3,)


def test_noise_is_normal_and_codes_are_uniform_and_both_follow_from_the_generator():
    generator = create_generator("dcgan", 2, channels=1, size=8, codes=2, width=0.1)
    drawn = generator.draw(4000, torch.Generator().manual_seed(3))
    assert torch.equal(drawn, generator.draw(4000, torch.Generator().manual_seed(3)))
    noise, codes = drawn[:, :100], drawn[:, 100:]
    assert noise.mean().abs() < 0.01
    assert abs(noise.std() - 1) < 0.01
    assert codes.abs().max() <= 1
    assert abs(codes.std() - 3**-0.5) < 0.02


@pytest.mark.parametrize("size", SIZES)
def test_networks_side_by_side_are_a_loop_over_single_ones(size):
    """Values and gradients, in float64; the oracle has one network for each class with its part of the weights."""
    classes, options = 3, {"channels": 2, "size": size, "width": 0.1}
    generators = create_generator("dcgan-per-class", classes, noise=5, **options).double()
    critics = CriticPerClass(classes, **options).double()
    labels = torch.tensor([2, 0, 2, 1, 2])
    latent, weights = torch.randn(5, 5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    images = generators(latent, labels)
    scores = critics(images, labels).scores
    (scores * weights).sum().backward()
    for label in range(classes):
        alone, critic = GeneratorBody(5, 2, size, 0.1).double(), DiscriminatorBody(2, size, 0.1).double()
        pairs = [
            pair
            for single, several in ((alone, generators.body), (critic, critics.body))
            for pair in zip(single.parameters(), several.parameters(), strict=True)
        ]
        for one, several in pairs:
            one.data.copy_(several.chunk(classes)[label])
        mine = labels == label
        made = alone(latent[mine])
        torch.testing.assert_close(made, images[mine])
        weight, bias = critics.score.weight.chunk(classes)[label], critics.score.bias[label]
        scored = critic(made) @ weight.detach().flatten() + bias.detach()
        torch.testing.assert_close(scored, scores[mine])
        (scored * weights[mine]).sum().backward()
        for one, several in pairs:
            torch.testing.assert_close(one.grad, several.grad.chunk(classes)[label])


@pytest.mark.parametrize("name", generator_names())
def test_an_image_depends_on_its_class_and_not_on_the_others_of_its_batch(name):
    generator = create_generator(name, 4, channels=1, size=8, width=0.25).double()
    labels, latent = torch.tensor([3, 1, 1, 0, 3, 3]), torch.randn(6, 100, dtype=torch.float64)
    whole = generator(latent, labels)
    for part in (slice(0, 1), slice(2, 5)):
        torch.testing.assert_close(generator(latent[part], labels[part]), whole[part], rtol=1e-12, atol=1e-12)
    assert (generator(latent, (labels + 1) % 4) - whole).abs().amax((1, 2, 3)).min() > 1e-4


@pytest.mark.parametrize("labels", [[0], [2, 2, 2], [1, 0, 2, 1, 1, 0], [0, 1, 2, 0, 1, 2]])
def test_a_table_by_class_gives_every_row_back_and_is_as_short_as_it_can_be(labels):
    labels = torch.tensor(labels)
    rows = torch.arange(1.0, len(labels) + 1)[:, None].repeat(1, 2)
    table = ClassTable(labels, 3)
    arranged = table.scatter(rows)
    assert len(arranged) == labels.bincount().max()
    for label in range(3):
        column = arranged[:, label, 0]
        assert torch.equal(column[column > 0], rows[labels == label, 0])
    assert torch.equal(table.gather(arranged), rows)


def test_pixels_are_the_same_after_a_walk_to_numbers_and_back():
    pixels = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(to_pixels(from_pixels(pixels)), pixels)
    assert torch.equal(to_pixels(torch.tensor([-2.0, 2.0])), torch.tensor([0, 255], dtype=torch.uint8))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 16}, "size must be one of 8, 28, 32 pixels, got 16"),
        ({"width": 0}, "width must be a positive number, got 0"),
        ({"noise": 0}, "noise must be an integer"),
        ({"num_classes": 0}, "num_classes must be an integer"),
        ({"name": "dcgna"}, "did you mean 'dcgan'"),
    ],
)
def test_what_cannot_be_built_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        create_generator(**({"name": "dcgan", "num_classes": 2, "channels": 1, "size": 8} | changes))
    with pytest.raises(ValueError, match="labels must be below 2, got 2"):
        ClassTable(torch.tensor([2]), 2)
