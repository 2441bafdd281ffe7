"""Feature inversion against its equations: the objective, its minimiser, and each image as if it were alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from PIL import Image
from torch import nn

from isda.lab.analysis.inversion import (
    Descent,
    LatentGenerator,
    biggan,
    conditional,
    nearest_images,
    normalised_noise,
    unconditional,
)
from isda.lab.analysis.inversion.encoder import Encoder
from isda.lab.analysis.inversion.inverter import InversionObjective, descend
from isda.lab.data.augment import ResizeCenterCrop
from isda.lab.data.image_files import ImageFiles

NOISE, CLASSES, FEATURES = 6, 3, 4


class TinyGenerator(nn.Module):
    """(z, class) to images (N, 1, 3, 3) in [-1, 1]."""

    def __init__(self, codes: int = 0) -> None:
        super().__init__()
        self.latent = nn.Linear(NOISE + codes, 9)
        self.classes = nn.Embedding(CLASSES, 9)

    def forward(self, z, labels):
        return torch.tanh(self.latent(z) + self.classes(labels)).view(-1, 1, 3, 3)


def tiny(count=5, pixel_weight=0.3, codes=0):
    """An objective of a few images, everything in float64."""
    network = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, FEATURES)).double().eval()
    generator = LatentGenerator(TinyGenerator(codes).double(), NOISE, codes, dtype=torch.float64)
    encoder = Encoder(lambda images: (images - 0.3) / 0.7, network)
    labels = torch.arange(count) % CLASSES
    pixels = torch.randn(count, 1, 3, 3, dtype=torch.float64)
    return InversionObjective(generator, encoder, labels, torch.randn(count, FEATURES).double(), pixels, pixel_weight)


def naive(objective, latent):
    """The objective of each image, one at a time and straight from the equations."""
    values = []
    for i, z in enumerate(latent):
        noise = z[:NOISE]
        mean = sum(noise) / NOISE
        std = (sum((value - mean) ** 2 for value in noise) / (NOISE - 1)) ** 0.5
        read = torch.cat([(noise - mean) / std, z[NOISE:]])
        image = (objective.generator.make(read[None], objective.labels[i : i + 1])[0] + 1) / 2
        seen = (image - 0.3) / 0.7
        feature = sum((objective.encoder.features(seen[None])[0] - objective.features[i]) ** 2)
        pixel = 0.0 if objective.pixels is None else ((seen - objective.pixels[i]) ** 2).sum()
        values.append(feature + objective.pixel_weight * pixel)
    return values


@pytest.mark.parametrize("codes", [0, 2])
@pytest.mark.parametrize("step", ["I", "II"])
def test_objective_and_its_gradient_are_those_of_the_equations(step, codes):
    objective = tiny(codes=codes)
    if step == "II":
        objective = replace(objective, pixels=None)
    latent = objective.generator.draw(5, torch.Generator().manual_seed(1)).requires_grad_()
    expected = naive(objective, latent)
    errors = objective.errors(latent)
    torch.testing.assert_close(errors.objective, torch.stack(expected))
    if step == "II":
        torch.testing.assert_close(errors.feature, errors.objective)
    (gradient,) = torch.autograd.grad(errors.objective.sum(), latent)
    for i, value in enumerate(expected):
        (alone,) = torch.autograd.grad(value, latent, retain_graph=True)
        torch.testing.assert_close(gradient[i], alone[i])
        # No image pulls at another.
        assert not alone[torch.arange(5) != i].any()
    assert torch.autograd.gradcheck(lambda z: objective.errors(z).objective, latent)


def test_noise_is_normalised_row_by_row_and_codes_are_not():
    noise = torch.randn(4, NOISE, dtype=torch.float64)
    made = normalised_noise(noise)
    torch.testing.assert_close(made.mean(1), torch.zeros(4).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(made.std(1), torch.ones(4).double())
    torch.testing.assert_close(normalised_noise(7 * noise + 3), made)
    read = []
    generator = LatentGenerator(lambda z, labels: read.append(z) or z, NOISE, codes=2)
    latent = torch.cat([noise.float(), torch.tensor([[0.5, -0.25]]).expand(4, 2)], 1)
    generator(latent, torch.zeros(4, dtype=torch.int64))
    torch.testing.assert_close(read[0][:, :NOISE], made.float())
    assert torch.equal(read[0][:, NOISE:], latent[:, NOISE:])
    assert generator.bounded(torch.full((1, NOISE + 2), 3.0)).tolist() == [[3.0] * NOISE + [1.0, 1.0]]


@pytest.mark.parametrize("tolerance", [0.0, 0.2])
def test_an_image_does_not_depend_on_the_others_of_its_batch(tolerance):
    objective = tiny()
    start = objective.generator.draw(5, torch.Generator().manual_seed(1))
    settings = Descent(iterations=120, tolerance=tolerance)
    together = descend(objective, start, settings)
    for i in (0, 3):
        alone = descend(objective.subset(torch.tensor([i])), start[i : i + 1], settings)
        torch.testing.assert_close(together.latent[i : i + 1], alone.latent, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(together.feature[i : i + 1], alone.feature, rtol=1e-6, atol=1e-10)
        assert together.iterations[i] == alone.iterations[0]


def linear(dimension=8, factor=2.0, pixel_weight=0.5):
    """G(z) = Q z and f(x) = factor x with an orthogonal Q, and the minimisers that follow.

    ||factor Q z - a||^2 + eta ||Q z - x||^2 over z of mean 0 and length r = sqrt(Z - 1) is least where z points to the
    part without mean of Q' (factor a + eta x).
    """
    orthogonal = torch.linalg.qr(torch.randn(dimension, dimension, dtype=torch.float64)).Q
    # Images in [0, 1] are (G + 1) / 2: the encoder undoes it.
    encoder = Encoder(lambda images: 2 * images - 1, lambda pixels: factor * pixels.flatten(1))
    generator = unconditional(lambda z: (z @ orthogonal.T)[:, :, None, None], dimension, dtype=torch.float64)
    features, pixels = (torch.randn(3, dimension).double() for _ in range(2))
    labels = torch.zeros(3, dtype=torch.int64)
    objective = InversionObjective(generator, encoder, labels, features, pixels[:, :, None, None], pixel_weight)
    pull = (factor * features + pixel_weight * pixels) @ orthogonal
    pull = pull - pull.mean(1, keepdim=True)
    return objective, math.sqrt(dimension - 1) * pull / pull.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("settings", [Descent(iterations=800, tolerance=0), Descent(lr=0.05, iterations=800)])
def test_linear_maps_have_their_known_minimiser(settings):
    objective, expected = linear()
    found = descend(objective, objective.generator.draw(3, torch.Generator().manual_seed(1)), settings)
    torch.testing.assert_close(normalised_noise(found.latent), expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.objective, objective.errors(expected).objective, rtol=1e-6, atol=0)


def test_without_an_early_stop_it_is_gradient_descent_with_momentum_as_torch_has_it():
    objective = tiny()
    start = objective.generator.draw(5, torch.Generator().manual_seed(1))
    settings = Descent(lr=0.2, iterations=40, tolerance=0)
    found = descend(objective, start, settings)
    z = start.clone().requires_grad_()
    optimiser = torch.optim.SGD([z], lr=0.2, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [10, 20, 30], gamma=0.1)
    seen, places = [], []
    for _ in range(41):
        optimiser.zero_grad()
        objective.errors(z).objective.sum().backward()
        seen.append(objective.errors(z).objective.detach())
        places.append(z.detach().clone())
        optimiser.step()
        schedule.step()
    least = torch.stack(seen).min(0)
    torch.testing.assert_close(found.objective, least.values)
    torch.testing.assert_close(found.latent, torch.stack(places)[least.indices, torch.arange(5)])
    assert found.iterations.tolist() == least.indices.tolist()
    torch.testing.assert_close(found.start, objective.errors(start).feature)


def test_images_stop_when_their_feature_error_has_fallen_far_enough():
    objective = replace(tiny(pixel_weight=0.0), pixels=None)
    start = objective.generator.draw(5, torch.Generator().manual_seed(1))
    # Features that images of the generator do have.
    reachable = objective.generator.draw(5, torch.Generator().manual_seed(2))
    with torch.no_grad():
        made = objective.encoder.normalise(objective.generator(reachable, objective.labels))
        objective = replace(objective, features=objective.encoder.features(made))
    over = []
    early = descend(objective, start, Descent(iterations=800, tolerance=0.1), over.append)
    late = descend(objective, start, Descent(iterations=800, tolerance=0))
    reached = early.feature <= 0.1 * early.start
    assert reached.sum() >= 3
    # They stop where they come below a tenth, not where they would have come to.
    assert (early.iterations[reached] < late.iterations[reached]).all()
    assert (early.feature[reached] > late.feature[reached]).all()
    assert over[-2] < 800
    assert over[-1] == 800


@pytest.mark.parametrize("lr", [1e9, 10.0, None])
def test_what_is_found_is_never_worse_than_the_start(lr):
    objective = tiny()
    start = objective.generator.draw(5, torch.Generator().manual_seed(1))
    first = objective.errors(start).objective
    for iterations in (1, 30):
        found = descend(objective, start, Descent(lr=lr, iterations=iterations))
        assert (found.objective <= first).all()
        torch.testing.assert_close(objective.errors(found.latent).objective, found.objective)


def test_a_generator_that_breaks_down_leaves_the_start():
    def broken(z, labels):
        return (z.sum() * float("nan") + z[:, :1])[:, :, None, None] if z.requires_grad else z[:, :1, None, None]

    generator = conditional(broken, 4)
    objective = InversionObjective(
        generator, Encoder(lambda x: x, lambda x: x.flatten(1)), torch.tensor([0]), torch.zeros(1, 1), None
    )
    start = generator.draw(1, torch.Generator().manual_seed(0))
    found = descend(objective, start, Descent(iterations=5))
    assert torch.equal(found.latent, start)
    assert found.feature.isfinite().all()


@pytest.mark.any_device
def test_all_is_computed_where_the_generator_is():
    device = torch.zeros(()).device
    weight, classes, seeing = torch.randn(9, NOISE), torch.randn(CLASSES, 9), torch.randn(9, FEATURES)
    generator = conditional(lambda z, c: torch.tanh(z @ weight.T + classes[c]).view(-1, 1, 3, 3), NOISE, device)
    encoder = Encoder(lambda images: images - 0.5, lambda pixels: torch.tanh(pixels.flatten(1) @ seeing))
    labels = torch.tensor([0, 1, 2], device="cpu")
    objective = InversionObjective(generator, encoder, labels, torch.rand(3, FEATURES), torch.zeros(3, 1, 3, 3), 0.01)
    start = generator.draw(3, torch.Generator(device="cpu").manual_seed(0))
    found = descend(objective, start, Descent(iterations=60, tolerance=0.3))
    assert found.latent.device == device
    assert (found.objective.cpu() < objective.errors(start).objective.cpu()).all()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"iterations": 0}, "iterations must be at least 1"),
        ({"lr": 0.0}, "lr must be positive"),
        ({"lr": float("nan")}, "lr must be positive"),
        ({"tolerance": 1.0}, "tolerance must be from 0"),
        ({"tolerance": float("nan")}, "tolerance must be from 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, told):
    with pytest.raises(ValueError, match=told):
        Descent(**settings)


class LikeBigGAN(nn.Module):
    """A stand-in with BigGAN-PyTorch's call: ``G(z, G.shared(y))``, and noise and class mixed in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.dim_z = 5
        self.shared = nn.Embedding(3, 2)
        self.first = nn.Linear(5 + 2, 12)
        self.norm = nn.BatchNorm1d(12)

    def forward(self, z, embedded):
        assert embedded.shape == (len(z), 2)
        return torch.tanh(self.norm(self.first(torch.cat([z, embedded], 1)))).view(-1, 3, 2, 2)


def test_biggan_is_given_the_embedding_of_the_class_and_inverted():
    network = LikeBigGAN()
    network(torch.randn(20, 5), network.shared(torch.arange(20) % 3))  # statistics of batch norm
    generator = biggan(network)
    assert not network.training
    assert generator.noise == 5
    z, labels = generator.draw(2, torch.Generator().manual_seed(0)), torch.tensor([2, 0])
    expected = (network(normalised_noise(z), network.shared(labels)) + 1) / 2
    torch.testing.assert_close(generator(z, labels), expected)
    encoder = Encoder(lambda x: x, lambda x: x.flatten(1))
    objective = InversionObjective(generator, encoder, labels, expected.detach().flatten(1))
    start = generator.draw(2, torch.Generator().manual_seed(1))
    found = descend(objective, start, Descent(iterations=200))
    assert (found.feature < 0.1 * found.start).all()
    with pytest.raises(ValueError, match="shared"):
        biggan(nn.Linear(2, 2))


def test_one_number_is_no_noise():
    with pytest.raises(ValueError, match="noise must be at least 2"):
        unconditional(lambda z: z, 1)


def test_nearest_images_are_those_of_a_search_by_hand():
    images, among = (torch.randint(0, 256, (n, 3, 4, 4), dtype=torch.uint8) for n in (3, 30))
    found = nearest_images(images, among, 5)
    for i, image in enumerate(images):
        apart = [((image.double() - other.double()) / 255).square().mean().sqrt().item() for other in among]
        order = sorted(range(30), key=apart.__getitem__)[:5]
        assert found.positions[i].tolist() == order
        assert found.distances[i].tolist() == pytest.approx([apart[j] for j in order])
    assert nearest_images(among[:1], among, 40).positions.shape == (1, 30)
    assert nearest_images(among[:1], among).distances[0, 0] == 0


@pytest.mark.parametrize("count", [1, 3, 7, 20])
def test_nearest_images_on_disk_are_those_of_all_crops_together(tmp_path, count):
    """Chunk by chunk, with images of several sizes; equal distances do not occur."""
    paths = []
    for number in range(7):
        pixels = torch.randint(256, (10 + number, 12, 3), dtype=torch.uint8)
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(pixels.numpy()).save(paths[-1])
    files, crop = ImageFiles(paths), ResizeCenterCrop(9, 8)
    queries = torch.randint(256, (3, 3, 8, 8), dtype=torch.uint8)
    everything = torch.stack([crop([files[number]])[0] for number in range(7)])
    distances = ((queries[:, None].double() - everything.double()) / 255).square().mean((2, 3, 4)).sqrt()
    expected = distances.sort(1)
    found = nearest_images(queries, files, count, crop)
    assert torch.equal(found.positions, expected.indices[:, :count])
    torch.testing.assert_close(found.distances, expected.values[:, :count])
    in_memory = nearest_images(queries, everything, count)
    assert torch.equal(found.positions, in_memory.positions)
