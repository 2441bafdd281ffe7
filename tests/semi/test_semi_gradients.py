"""Every loss term alone trains the student, and nothing but the student."""

import copy

import pytest
import torch
from semi_helpers import labelled, unlabelled, warmed_up

from isda.lab.methods.semi import NAMES

# Each method with each of its terms.
TERMS = [(name, "labelled") for name in NAMES]
TERMS += [(name, "regulariser") for name in NAMES if not name.startswith("supervised")]
TERMS += [(name, "consistency") for name in NAMES if name.endswith("+isda") and not name.startswith("supervised")]


@pytest.mark.parametrize("passes", ["joint", "separate"])
@pytest.mark.parametrize(("name", "term"), TERMS)
def test_a_term_alone_moves_every_layer_of_the_student_and_nothing_else(name, term, passes):
    objective, network = warmed_up(name, passes=passes)
    everything = [*network.parameters(), *objective.parameters()]
    # A large rate, for weights that are small early in their ramp.
    optimiser = torch.optim.SGD(everything, lr=10.0)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    terms, _ = objective(network, *labelled(seed=9), unlabelled(seed=9))
    kept = copy.deepcopy(objective.state_dict())  # as the forward pass left it
    optimiser.zero_grad()
    terms[term].backward()
    optimiser.step()
    for name, parameter, old in zip(dict(network.named_parameters()), network.parameters(), before, strict=True):
        # A bias before batch normalisation changes nothing.
        if name != "body.1.bias":
            assert (parameter - old).abs().max() > 1e-7, name
    for name, value in objective.state_dict().items():
        assert torch.equal(value, kept[name]), name
    assert all(parameter.grad is None for parameter in objective.parameters())


def test_nothing_of_an_objective_asks_for_gradient():
    for name in NAMES:
        objective, _ = warmed_up(name, steps=1)
        assert not any(parameter.requires_grad for parameter in objective.parameters())
        assert not any(buffer.requires_grad for buffer in objective.buffers())


@pytest.mark.parametrize("name", ["temporal-ensembling", "mean-teacher", "pi-model"])
def test_the_students_own_logits_carry_gradient_where_they_are_compared(name):
    objective, network = warmed_up(name)
    view = unlabelled()
    logits = network(view.images).detach().requires_grad_()
    loss = objective.regulariser(network, view, logits)
    assert torch.autograd.grad(loss, logits)[0].abs().max() > 1e-6


@pytest.mark.parametrize("name", ["vat"])
def test_no_gradient_enters_a_pseudo_label_or_the_prediction_at_the_clean_images(name):
    objective, network = warmed_up(name)
    view = unlabelled()
    logits = network(view.images).detach().requires_grad_()
    loss = objective.regulariser(network, view, logits)
    assert torch.autograd.grad(loss, logits, allow_unused=True)[0] is None


def test_the_adversarial_direction_is_a_constant():
    # The gradient of the loss is that at a fixed perturbation, not of how the perturbation depends on the weights.
    objective, network = warmed_up("vat", epsilon=1.0)
    network.body[-1].p = 0.0
    view, seen = unlabelled(), []
    hook = network.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0].detach(), output.detach())))
    loss = objective.regulariser(network, view, network(view.images))
    hook.remove()
    actual = torch.autograd.grad(loss, list(network.parameters()))
    (clean, clean_logits), (perturbed, _) = seen[1], seen[-1]
    assert torch.equal(clean, view.images)
    p = torch.softmax(clean_logits, 1)
    divergence = (p * (p.log() - torch.log_softmax(network(perturbed), 1))).sum(1).mean()
    expected = torch.autograd.grad(divergence, list(network.parameters()))
    for gradient, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(gradient, reference, rtol=1e-9, atol=1e-12)


def test_the_consistency_term_leaves_the_prediction_and_the_covariances_alone():
    objective, network = warmed_up("pi-model+isda")
    terms, _ = objective(network, *labelled(seed=9), unlabelled(seed=9))
    before = copy.deepcopy(objective.criterion.state_dict())
    terms["consistency"].backward()
    for name, value in objective.criterion.state_dict().items():
        assert torch.equal(value, before[name])
