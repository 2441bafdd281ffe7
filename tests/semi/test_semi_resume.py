"""A run that was interrupted and resumed makes the very numbers of one that was not."""

import copy

import pytest
import torch
from safetensors.torch import load, save
from semi_helpers import objective_for, run_steps, student, warmed_up

from isda.lab.methods.semi import NAMES


@pytest.mark.parametrize("interrupted_after", [4, 6])  # at the end of an epoch and within one
@pytest.mark.parametrize("name", NAMES)
def test_resuming_equals_never_stopping_to_the_bit(name, interrupted_after):
    def fresh(seed):
        network = student(seed)
        return network, objective_for(name, network), torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)

    network, objective, optimiser = fresh(0)
    run_steps(objective, network, optimiser, range(interrupted_after))
    # As a checkpoint holds it: plain tensors by name.
    saved = [save({k: v.contiguous() for k, v in module.state_dict().items()}) for module in (network, objective)]
    momentum = copy.deepcopy(optimiser.state_dict())
    run_steps(objective, network, optimiser, range(interrupted_after, 10))

    other, resumed, again = fresh(1)
    other.load_state_dict(load(saved[0]))
    resumed.load_state_dict(load(saved[1]))
    again.load_state_dict(momentum)
    assert resumed.step == interrupted_after
    run_steps(resumed, other, again, range(interrupted_after, 10))

    for whole, parts in ((network, other), (objective, resumed)):
        expected = whole.state_dict()
        assert expected.keys() == parts.state_dict().keys()
        for key, value in parts.state_dict().items():
            assert torch.equal(value, expected[key]), key
    assert resumed.measures() == objective.measures()


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("mean-teacher", {"regulariser.teacher.classifier.weight", "regulariser.teacher.body.2.running_mean"}),
        ("temporal-ensembling", {f"regulariser.{part}" for part in ("ensemble", "epochs", "predictions", "seen")}),
        ("vat+isda", {"criterion.covariance.scatter", "criterion.step", "_extra_state"}),
    ],
)
def test_the_state_dict_holds_what_the_method_has_learnt(name, kept):
    objective, _ = warmed_up(name)
    state = objective.state_dict()
    assert kept <= state.keys()
    assert all(isinstance(value, torch.Tensor) for value in state.values())
