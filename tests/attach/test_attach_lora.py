"""LoRA on the classifier: the merged weight W + s B A, whose gradient reaches both factors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attach_helpers import CLASSES, FEATURES, SmallNet, batch
from torch import nn

from isda import ISDALoss
from isda.attach import find_classifier
from oracles import batch_covariance, jensen_bound

peft = pytest.importorskip("peft")


def adapted(**settings: Any) -> nn.Module:
    config = peft.LoraConfig(r=2, lora_alpha=6, target_modules=["fc"], init_lora_weights=False, **settings)
    return peft.get_peft_model(SmallNet(), config).train()


def test_loss_and_gradients_are_those_of_the_merged_weight() -> None:
    model, (x, y) = adapted().double(), batch()
    x = x.double()
    head = model.base_model.model.fc
    criterion = ISDALoss.attach(model, lambda_0=0.7, schedule="constant")
    assert find_classifier(model) is head
    loss = criterion(model(x), y)
    factors = [head.lora_A["default"].weight, head.lora_B["default"].weight]
    down, up = (factor.detach().clone().requires_grad_() for factor in factors)
    features = model.base_model.model.body(x).detach()
    weight = head.base_layer.weight.detach() + 3 * up @ down
    logits = features @ weight.t() + head.base_layer.bias.detach()
    expected = jensen_bound(logits, y, weight, batch_covariance(features, y, CLASSES), 0.7).mean()
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-11)
    for ours, theirs in zip(torch.autograd.grad(loss, factors), torch.autograd.grad(expected, [down, up]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_disabled_and_merged_adapters_are_not_added_twice() -> None:
    model, (x, y) = adapted(), batch()
    criterion = ISDALoss.attach(model, lambda_0=0.5, schedule="constant")
    head = model.base_model.model.fc
    with model.disable_adapter():
        logits = model(x)
        loss = criterion(logits, y)
        features = model.base_model.model.body(x)
        wanted = ISDALoss(CLASSES, FEATURES, 0.5, schedule="constant")(
            logits, y, features=features, weight=head.base_layer.weight
        )
        torch.testing.assert_close(loss, wanted)
    merged = (head.base_layer.weight + 3 * head.lora_B["default"].weight @ head.lora_A["default"].weight).detach()
    head.merge()
    assert torch.allclose(head.base_layer.weight, merged)
    criterion = ISDALoss.attach(model, lambda_0=0.5, schedule="constant")
    logits = model(x)
    wanted = ISDALoss(CLASSES, FEATURES, 0.5, schedule="constant")(logits, y, features=features, weight=merged)
    torch.testing.assert_close(criterion(logits, y), wanted)


def test_dropout_before_the_adapter_is_no_mistake() -> None:
    model, (x, y) = adapted(lora_dropout=0.5), batch()
    assert ISDALoss.attach(model, schedule="constant")(model(x), y).isfinite()


def test_a_classifier_that_peft_trains_as_a_whole_is_found() -> None:
    config = peft.LoraConfig(r=2, target_modules=["body.0"], modules_to_save=["fc"])
    model, (x, y) = peft.get_peft_model(SmallNet(), config), batch()
    head = model.base_model.model.fc.modules_to_save["default"]
    assert find_classifier(model) is head
    ISDALoss.attach(model, lambda_0=0.5, schedule="constant")(model(x), y).backward()
    assert head.weight.grad.any()


def test_adapters_that_are_no_product_are_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.fc must be an nn\.Linear"):
        ISDALoss.attach(adapted(use_dora=True), schedule="constant")
