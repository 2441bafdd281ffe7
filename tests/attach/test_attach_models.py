"""attach finds the classifier of models nobody prepared, and uses the features and the weight that it should."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from attach_helpers import SmallNet, assert_same_state, batch, spy, train, twin
from torch import Tensor, nn

from isda import ISDALoss
from isda.attach import find_classifier


class Case(NamedTuple):
    """A model, its input and labels, where its classifier is, and how its output becomes logits."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    classifier: str
    logits: Callable[[object], Tensor] = lambda output: output
    features: Callable[[Tensor], Tensor] = lambda features: features
    settings: dict[str, object] = {}  # noqa: RUF012
    lr: float = 3e-3


IMAGES, LABELS = (8, 3, 32, 32), torch.tensor([0, 1, 2, 3, 4, 0, 1, 2])


def sequential() -> Case:
    x, y = batch()
    return Case(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)), x, y, "2")


def sequential_with_dropout_last() -> Case:
    x, y = batch()
    head = nn.Sequential(nn.Dropout(0.0), nn.Linear(8, 3), nn.Identity())
    return Case(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), head), x, y, "2.1")


def only_a_layer() -> Case:
    x, y = batch()
    return Case(nn.Linear(4, 3), x, y, "", lr=0.1)


def sequential_1x1_convolution() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))
    targets = torch.arange(2 * 6 * 6).reshape(2, 6, 6) % 4
    targets[0, 0, 0] = 255
    return Case(model, torch.randn(2, 3, 6, 6), targets, "2", settings={"ignore_index": 255})


def pixels_as_rows() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))
    return Case(
        model,
        torch.randn(2, 3, 4, 6),
        torch.arange(2 * 4 * 6) % 4,
        "2",
        lambda logits: logits.permute(0, 2, 3, 1).reshape(-1, 4),
        lambda features: features.permute(0, 2, 3, 1).reshape(-1, 8),
    )


def convolution_pooled_to_rows() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 5, 1), nn.Flatten())
    return Case(model, torch.randn(8, 3, 6, 6), LABELS, "2", features=lambda features: features.flatten(1))


def torchvision_resnet18() -> Case:
    from torchvision.models import resnet18

    return Case(resnet18(weights=None, num_classes=5), torch.randn(8, 3, 64, 64), LABELS, "fc")


def torchvision_mobilenet() -> Case:
    from torchvision.models import mobilenet_v3_small

    return Case(
        mobilenet_v3_small(weights=None, num_classes=5, dropout=0.0), torch.randn(IMAGES), LABELS, "classifier.3"
    )


def torchvision_vit() -> Case:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(32, 16, num_layers=1, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=5)
    nn.init.normal_(model.heads.head.weight, std=0.1)  # torchvision starts it at zero
    return Case(model, torch.randn(IMAGES), LABELS, "heads.head")


def torchvision_deeplab() -> Case:
    from torchvision.models.segmentation import deeplabv3_mobilenet_v3_large

    model = deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4)
    targets = torch.arange(2 * 64 * 64).reshape(2, 64, 64) // 512 % 4
    targets[:, :8] = 255
    return Case(
        model,
        torch.randn(2, 3, 64, 64),
        targets,
        "classifier.4",
        lambda out: out["out"],
        settings={"ignore_index": 255},
    )


def torchvision_fcn() -> Case:
    from torchvision.models.segmentation.fcn import FCN, FCNHead

    class Backbone(nn.Sequential):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"out": super().forward(x)}

    model = FCN(Backbone(nn.Conv2d(3, 16, 3, 4), nn.ReLU()), FCNHead(16, 4))
    model.classifier[3].p = 0.0
    targets = torch.arange(2 * 32 * 32).reshape(2, 32, 32) // 128 % 4
    return Case(model, torch.randn(2, 3, 32, 32), targets, "classifier.4", lambda out: out["out"])


def timm_resnet() -> Case:
    import timm

    return Case(timm.create_model("resnet10t", num_classes=5, pretrained=False), torch.randn(IMAGES), LABELS, "fc")


def timm_vit() -> Case:
    import timm

    model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=5, depth=2, pretrained=False)
    return Case(model, torch.randn(IMAGES), LABELS, "head")


def timm_mobilenet() -> Case:
    import timm

    model = timm.create_model("mobilenetv3_small_050", num_classes=5, drop_rate=0.0, pretrained=False)
    return Case(model, torch.randn(8, 3, 64, 64), LABELS, "classifier", lr=3e-4)


def bert_config() -> object:
    from transformers import BertConfig

    return BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
        num_labels=5,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def huggingface_bert() -> Case:
    from transformers import BertForSequenceClassification

    tokens = torch.randint(50, (8, 10))
    return Case(BertForSequenceClassification(bert_config()), tokens, LABELS, "classifier", lambda out: out.logits)


def huggingface_bert_tokens_as_rows() -> Case:
    from transformers import BertForTokenClassification

    tokens = torch.randint(50, (4, 10))
    targets = tokens.flatten() % 5
    targets[::7] = -100
    return Case(
        BertForTokenClassification(bert_config()),
        tokens,
        targets,
        "classifier",
        lambda out: out.logits.reshape(-1, 5),
        lambda features: features.reshape(-1, 32),
    )


def huggingface_bert_tokens_as_sequences() -> Case:
    from transformers import BertForTokenClassification

    tokens = torch.randint(50, (4, 10))
    return Case(
        BertForTokenClassification(bert_config()),
        tokens,
        tokens % 5,
        "classifier",
        lambda out: out.logits.transpose(1, 2),
        lambda features: features.transpose(1, 2),
    )


def huggingface_roberta() -> Case:
    from transformers import RobertaConfig, RobertaForSequenceClassification

    config = RobertaConfig(**bert_config().to_dict() | {"max_position_embeddings": 20})
    tokens = torch.randint(3, 50, (8, 10))
    return Case(RobertaForSequenceClassification(config), tokens, LABELS, "classifier.out_proj", lambda out: out.logits)


CASES = [
    sequential,
    sequential_with_dropout_last,
    only_a_layer,
    sequential_1x1_convolution,
    pixels_as_rows,
    convolution_pooled_to_rows,
    torchvision_resnet18,
    torchvision_mobilenet,
    torchvision_vit,
    torchvision_deeplab,
    torchvision_fcn,
    timm_resnet,
    timm_vit,
    timm_mobilenet,
    huggingface_bert,
    huggingface_bert_tokens_as_rows,
    huggingface_bert_tokens_as_sequences,
    huggingface_roberta,
]


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_attached_loss_equals_features_and_weight_passed_by_hand_and_falls(make: Callable[[], Case]) -> None:
    case = make()
    model, head = case.model.train(), case.model.get_submodule(case.classifier)
    assert find_classifier(model) is head
    criterion = ISDALoss.attach(model, lambda_0=0.5, total_steps=4, **case.settings)
    by_hand = twin(criterion)

    def step() -> Tensor:
        with spy(head) as seen:
            logits = case.logits(model(case.inputs))
        loss = criterion(logits, case.targets)
        expected = by_hand(logits, case.targets, features=case.features(seen[-1]), weight=head.weight)
        assert torch.equal(loss, expected)
        wanted = torch.autograd.grad(expected, head.weight, retain_graph=True)
        assert torch.equal(torch.autograd.grad(loss, head.weight, retain_graph=True)[0], wanted[0])
        return loss

    losses = train(model.parameters(), step, steps=6, lr=case.lr)
    assert losses[-1] < losses[0]
    assert criterion.strength == 0.5
    assert_same_state(criterion, by_hand)
    counted = case.targets[case.targets != criterion.ignore_index].numel()
    if case.targets.ndim == 1:
        assert int(criterion.covariance.count.sum()) == 6 * counted


def test_classifier_can_be_passed_as_a_layer_or_by_name() -> None:
    class Unusual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.last = nn.Linear(4, 8), nn.ModuleDict({"out": nn.Linear(8, 3)})

        def forward(self, x: Tensor) -> Tensor:
            return self.last["out"](input=self.body(x))

    model, (x, y) = Unusual(), batch()
    for classifier in ("last.out", model.last["out"]):
        criterion = ISDALoss.attach(model, classifier=classifier, schedule="constant")
        assert torch.equal(
            criterion(model(x), y),
            twin(criterion)(model(x), y, features=model.body(x), weight=model.last["out"].weight),
        )


def test_settings_reach_the_criterion_and_statistics_follow_the_classifier() -> None:
    model = SmallNet().double()
    criterion = ISDALoss.attach(model, lambda_0=2, total_steps=7, covariance="low_rank", rank=3, bound="tilted")
    assert (criterion.num_classes, criterion.feature_dim, criterion.bound) == (3, 8, "tilted")
    assert (criterion.schedule.lambda_0, criterion.schedule.total_steps, criterion.covariance.rank) == (2, 7, 3)
    assert criterion.covariance.dtype == torch.float64


def test_consistency_and_augmented_logits_find_the_weight() -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, lambda_0=0.5, schedule="constant")
    logits = model(x)
    criterion(logits, y)
    weight = model.fc.weight
    assert torch.equal(criterion.consistency(logits), criterion.consistency(logits, weight=weight))
    assert torch.equal(criterion.augmented_logits(logits, y), criterion.augmented_logits(logits, y, weight=weight))


def test_importing_isda_imports_none_of_the_model_libraries() -> None:
    code = "import sys, isda, isda.attach; print(*{n.split('.')[0] for n in sys.modules})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    loaded = set(run.stdout.split())
    assert "isda" in loaded
    assert not {"torchvision", "timm", "transformers", "sklearn", "matplotlib"} & loaded
