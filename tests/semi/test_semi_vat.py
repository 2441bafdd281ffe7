"""VAT's perturbation on a trained network: the worst direction, of the right norm, without a trace."""

import copy

import pytest
import torch
from semi_helpers import normal
from sklearn.datasets import load_digits
from torch import nn

from isda.lab.methods.semi import VAT, UnlabelledBatch
from isda.lab.networks import Network

EPSILON = 0.5


@pytest.fixture(scope="module")
def once():
    """A small network that knows digits, with batch normalisation and dropout, in training mode, and some images."""
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3))
    network = Network(body, nn.Linear(64, 10))
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for _ in range(150):
        chosen = torch.randint(1000, (64,))
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(images[chosen]), labels[chosen]).backward()
        optimiser.step()
    network.eval()
    assert (network(images[1000:]).argmax(1) == labels[1000:]).float().mean() > 0.9
    return network.train(), images[1000:1064]


@pytest.fixture
def trained(once):
    return copy.deepcopy(once)


def divergence(network, images, seed, **settings):
    torch.manual_seed(seed)
    return float(VAT(**({"epsilon": EPSILON} | settings))(network, UnlabelledBatch(images), torch.zeros(0)).detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_its_direction_raises_the_divergence_more_than_twenty_random_ones_of_the_same_norm(trained, dtype):
    network, images = (part.to(dtype) for part in trained)
    adversarial = divergence(network, images, seed=0)
    random = [divergence(network, images, seed=seed, power_iterations=0) for seed in range(20)]
    assert adversarial > 3 * max(random) > 0


def test_more_power_iterations_raise_it_more_where_the_hessian_tells_all(trained):
    network, images = (part.double() for part in trained)
    settings = {"epsilon": 1e-3, "xi": 1e-7}
    none, few, many = (divergence(network, images, seed=0, power_iterations=k, **settings) for k in (0, 1, 8))
    assert 0 < 5 * none < few < many


def test_in_single_precision_the_default_step_finds_what_a_tiny_one_does_in_double_precision(trained, monkeypatch):
    network, images = trained
    network.body[-1].p = 0.0  # both precisions must see one network, and start from one direction
    precise, overlaps = copy.deepcopy(network).double(), {"default": [], "original": []}
    for seed in range(5):
        start = normal(*images.shape, seed=seed)
        monkeypatch.setattr(torch, "randn_like", lambda like, start=start: start.to(like))
        exact = perturbation(precise, images.double(), xi=1e-7)
        for name, settings in (("default", {}), ("original", {"xi": 1e-6})):
            found = perturbation(network, images, **settings).double()
            overlaps[name].append(float(torch.cosine_similarity(found, exact, dim=1).median()))
    assert min(overlaps["default"]) > 0.98
    assert min(overlaps["original"]) < 0.9  # rounding: why 1e-6 is not our default


def perturbation(network, images, **settings):
    """What VAT adds to the images."""
    seen = []
    hook = network.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach()))
    divergence(network, images, seed=0, **settings)
    hook.remove()
    return seen[-1] - images


def test_every_sample_is_moved_by_epsilon(trained):
    network, images = trained
    seen = []
    hook = network.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach()))
    divergence(network, images, seed=0)
    hook.remove()
    clean, probe, final = seen
    assert torch.equal(clean, images)
    assert (probe - images).norm(dim=1).max() < 0.00101
    torch.testing.assert_close((final - images).norm(dim=1), torch.full((len(images),), EPSILON), rtol=1e-4, atol=0)


def test_all_passes_see_the_same_dropout_masks(trained):
    network, images = trained
    seen = []
    hook = network.body[-1].register_forward_hook(
        lambda module, inputs, output: seen.append((inputs[0] > 0, output > 0))
    )
    divergence(network, images, seed=0)
    hook.remove()
    (alive, passed), *others = seen
    assert 0.6 < passed.sum() / alive.sum() < 0.8  # 30% are dropped
    for alive_here, passed_here in others:
        both = alive & alive_here  # a unit that is rectified in one pass shows no mask there
        assert torch.equal(passed[both], passed_here[both])


def test_nothing_of_the_network_changes(trained):
    network, images = trained
    network.zero_grad()
    before = copy.deepcopy(network.state_dict())
    divergence(network, images, seed=0)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_the_generator_goes_on_as_after_one_direction_and_one_pass(trained):
    network, images = trained
    divergence(network, images, seed=0, power_iterations=5)
    following = torch.rand(4)
    torch.manual_seed(0)
    torch.randn_like(images)
    network.body(images)
    assert torch.equal(following, torch.rand(4))


def test_a_sample_without_a_direction_stays_where_it_is():
    network = Network(nn.Identity(), nn.Linear(3, 2))
    nn.init.zeros_(network.classifier.weight)
    value = VAT(epsilon=1.0)(network, UnlabelledBatch(torch.randn(4, 3)), torch.zeros(0))
    assert float(value.detach()) == 0
