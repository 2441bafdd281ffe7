"""Optimisers by name: their steps against the formulas, the groups they are made of."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from isda.lab.engine import Recipe, learning_rate
from isda.lab.engine.settings import warm_up_steps
from isda.lab.engine.trainer import RATE_SHARE, make_optimiser
from small_runs import small_config, small_job


def config(name, nesterov=True):
    return SimpleNamespace(optimiser=name, lr=0.5, momentum=0.9, nesterov=nesterov, weight_decay=0.1)


def stepped(name, values, rates=None, nesterov=True):
    parameters = [nn.Parameter(torch.tensor(value, dtype=torch.float64)) for value in values]
    optimiser = make_optimiser(config(name, nesterov), parameters, dict(zip(parameters, rates or [], strict=False)))
    for group in optimiser.param_groups:
        group["lr"] = 0.5 * group[RATE_SHARE]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 2.0)
    optimiser.step()
    return [parameter.detach() for parameter in parameters]


def test_sgd_decays_everything_and_has_nesterovs_momentum():
    matrix, bias = stepped("sgd", [[[1.0]], [1.0]])
    # g = 2 + 0.1; the first step of Nesterov's momentum is (1 + 0.9) g.
    assert float(matrix) == float(bias) == pytest.approx(1 - 0.5 * 1.9 * 2.1)
    # The first step of plain momentum is g.
    assert float(stepped("sgd", [[1.0]], nesterov=False)[0]) == pytest.approx(1 - 0.5 * 2.1)


def test_adamw_decays_matrices_alone():
    matrix, bias = stepped("adamw", [[[1.0]], [1.0]])
    # The first step is the sign of the gradient; the decay is lr * weight_decay of the value.
    assert float(matrix) == pytest.approx(1 - 0.5 * 0.1 - 0.5, abs=1e-7)
    assert float(bias) == pytest.approx(1 - 0.5, abs=1e-7)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_rates_are_shares_of_the_learning_rate(name):
    whole, tenth = stepped(name, [[[1.0]], [[1.0]]], rates=[1.0, 0.1])
    assert float(1 - tenth) == pytest.approx(0.1 * float(1 - whole), rel=1e-6)


def test_without_rates_sgd_has_one_group():
    assert len(small_job().optimiser.param_groups) == 1


def test_another_optimiser_brings_its_own_rate_and_decay_unless_told():
    chosen = small_config(optimiser="adamw")
    assert (chosen.optimiser, chosen.lr, chosen.weight_decay) == ("adamw", 1e-3, 0.05)
    assert small_config(optimiser="adamw", lr=0.2).lr == 0.2
    assert small_config(optimiser="sgd") == small_config().__class__(
        **{**vars(small_config()), "settings": small_config(optimiser="sgd").settings}
    )
    assert isinstance(small_job(optimiser="adamw").optimiser, torch.optim.AdamW)


def test_nesterov_is_a_setting_of_sgd():
    assert small_config().nesterov
    assert not small_job(nesterov=False).optimiser.defaults["nesterov"]
    with pytest.raises(ValueError, match="nesterov is a setting of optimiser sgd, got it for adamw"):
        small_config(optimiser="adamw", nesterov=False)


# Five steps per epoch, twenty in all; a cosine.
@pytest.mark.parametrize(("asked", "steps"), [("2", 10), ("0.4", 2), ("3steps", 3), ("0", 0), (None, 0)])
def test_the_warm_up_rises_in_a_line_to_the_schedule(asked, steps):
    plain, warm = small_config(epochs=4), small_config(epochs=4, warm_up=asked)
    assert warm.warm_up_steps == steps
    for step in range(20):
        share = (step + 1) / steps if step < steps else 1
        assert learning_rate(warm, step) == pytest.approx(share * learning_rate(plain, step), rel=1e-12)


def test_a_recipes_warm_up_shrinks_with_it():
    recipe = Recipe({"epochs": 20, "warm_up": 2})
    assert warm_up_steps(None, recipe.lasting(5), 10) == 5
