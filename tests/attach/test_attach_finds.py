"""Where attach looks: the names that libraries use, inside containers, through wrappers; real models of each kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attach_helpers import SmallNet, batch
from torch import Tensor, nn

from isda import ISDALoss
from isda.attach import find_classifier, find_classifiers
from isda.functional.patches import Patches

CLASSES = 5


class Named(nn.Module):
    """A model that has these parts."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


def last(*sizes: int) -> nn.Linear:
    return nn.Linear(*(sizes or (8, 3)))


NAMES = (
    "fc",
    "classifier",
    "segmentation_head",
    "decode_head",
    "classification_head",
    "logits_proj",
    "score",
    "last_linear",
    "linear",
    "head",
    "heads",
)


@pytest.mark.parametrize("name", NAMES)
def test_conventional_names_are_found_also_in_containers(name: str) -> None:
    head = last()
    assert find_classifier(Named(body=last(), **{name: head}, after=last())) is head
    assert find_classifier(Named(**{name: nn.Sequential(last(8, 8), nn.Dropout(), head, nn.Tanh())})) is head
    container = Named(first=last(8, 8), classifier=head, fusion=last(8, 8))
    assert find_classifier(Named(**{name: container})) is head


class Classify(nn.Module):
    """The head of Ultralytics' classifiers: logits in training, else probabilities and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = nn.Conv2d(4, 8, 1), nn.AdaptiveAvgPool2d(1)
        self.drop, self.linear = nn.Dropout(0.0), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        logits = self.linear(self.drop(self.pool(self.conv(x)).flatten(1)))
        return logits if self.training else (logits.softmax(1), logits)


def test_the_head_of_ultralytics_classifiers_is_found_and_explains_the_logits() -> None:
    model = Named(model=nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), Classify()))
    head = model.model[-1].linear
    assert find_classifier(model) is head
    assert find_classifier(Named(model=model)) is head  # the object YOLO
    criterion = ISDALoss.attach(model, lambda_0=0.5, schedule="constant")
    images, labels = torch.randn(6, 3, 8, 8), torch.arange(6) % 3
    loss = criterion(model.model(images), labels)
    loss.backward()
    assert criterion.covariance.count.tolist() == [2, 2, 2]
    assert head.weight.grad is not None
    model.eval()
    with torch.no_grad():
        _, logits = model.model(images)
        torch.testing.assert_close(criterion(logits, labels), nn.functional.cross_entropy(logits, labels))


def test_the_only_part_is_looked_into_but_not_the_heads_of_detectors() -> None:
    head = last()
    assert find_classifier(Named(model=Named(body=last(8, 8), fc=head))) is head
    detector = Named(model=nn.Sequential(nn.Conv2d(3, 4, 3), Named(cv2=nn.Conv2d(4, 64, 1), dfl=nn.Conv2d(16, 1, 1))))
    for model in (detector, Named(model=Named(body=last()), lm_head=last())):
        with pytest.raises(ValueError, match="no classifier found"):
            find_classifier(model)


def test_of_two_names_the_classifier_is_taken_not_what_comes_before_or_beside_it() -> None:
    head, other = last(), last(8, 8)
    assert find_classifier(Named(head=other, classifier=head)) is head
    assert find_classifier(Named(classification_head=other, segmentation_head=head)) is head
    assert find_classifier(Named(heads=other, score=head)) is head
    assert find_classifier(Named(decode_head=Named(classifier=head, psp=other), auxiliary_head=other)) is head
    assert find_classifiers(Named(classifier=head, aux_classifier=last())) == [head]
    with pytest.raises(ValueError, match=r"model\.fc and model\.score both look like the classifier"):
        find_classifier(Named(fc=head, score=last()))


@pytest.mark.parametrize(
    "names",
    [
        ("low_classifier", "high_classifier"),
        ("cls_classifier", "distillation_classifier"),
        ("classifier", "classifier_distill"),
        ("head", "head_dist"),
    ],
    ids=" and ".join,
)
def test_partners_are_found_together_where_they_have_the_same_classes(names: tuple[str, str]) -> None:
    heads = [last(), last()]
    assert find_classifiers(Named(body=last(), **dict(zip(names, heads, strict=True)))) == heads
    inside = Named(body=last(), **dict(zip(names, heads, strict=True)))
    assert find_classifiers(Named(classifier=inside)) == heads


def test_what_get_classifier_returns_is_looked_into() -> None:
    class Asked(SmallNet):
        def get_classifier(self) -> Any:
            return answer

    for answer in (last(), nn.Sequential(nn.BatchNorm1d(8), last()), Named(fc=last(), flatten=nn.Flatten())):
        layer = next(module for module in answer.modules() if isinstance(module, nn.Linear))
        assert find_classifier(Asked()) is layer
    answer = "fc"
    with pytest.raises(ValueError, match=r"model\.get_classifier\(\) must be a layer, got str"):
        find_classifier(Asked())


# -- real models -------------------------------------------------------------------------------------------------------


def timm_model(name: str, **settings: Any) -> tuple[nn.Module, tuple[Tensor, ...]]:
    timm = pytest.importorskip("timm")
    if not timm.is_model(name):
        pytest.skip(f"this version of timm has no {name}")
    model = timm.create_model(name, pretrained=False, num_classes=CLASSES, **settings)
    return model, (torch.randn(2, 3, 64, 64),)


def distilled_deit() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return timm_model("deit_tiny_distilled_patch16_224", img_size=64, depth=1)


def crossvit() -> tuple[nn.Module, tuple[Tensor, ...]]:
    model, _ = timm_model("crossvit_tiny_240", depth=((1, 1, 0),), embed_dim=(12, 24), num_heads=(2, 2))
    return model, (torch.randn(2, 3, 240, 240),)


def efficientvim() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return timm_model("efficientvim_m1_dist", embed_dim=(8, 16, 24), depths=(1, 1, 1))


def levit() -> tuple[nn.Module, tuple[Tensor, ...]]:
    model, _ = timm_model("levit_128s")
    return model, (torch.randn(2, 3, 224, 224),)


def lraspp() -> tuple[nn.Module, tuple[Tensor, ...]]:
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    model = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=CLASSES)
    return model, (torch.randn(2, 3, 64, 64),)


def smp(name: str) -> Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]:
    def make() -> tuple[nn.Module, tuple[Tensor, ...]]:
        library = pytest.importorskip("segmentation_models_pytorch")
        model = getattr(library, name)("resnet18", encoder_weights=None, classes=CLASSES)
        return model, (torch.randn(2, 3, 64, 64),)

    make.__name__ = f"smp_{name}"
    return make


TEXT = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
BART = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 50,
        "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}  # fmt: skip
SEGFORMER: dict[str, Any] = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16}
SEGFORMER["num_attention_heads"] = [1, 2, 2, 2]


def huggingface(name: str, task: str, settings: dict[str, Any]) -> Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]:
    def make() -> tuple[nn.Module, tuple[Tensor, ...]]:
        library = pytest.importorskip("transformers")
        if not hasattr(library, f"{name}For{task}"):
            pytest.skip(f"this version of transformers has no {name}For{task}")
        model = getattr(library, f"{name}For{task}")(getattr(library, f"{name}Config")(num_labels=CLASSES, **settings))
        if task == "SemanticSegmentation":
            return model, (torch.randn(2, 3, 64, 64),)
        tokens = torch.randint(3, 50, (2, 9))
        tokens[:, -1] = 2
        return model, (tokens,)

    make.__name__ = f"{name}For{task}"
    return make


REAL = [
    distilled_deit,
    levit,
    crossvit,
    efficientvim,
    lraspp,
    smp("Unet"),
    smp("PSPNet"),
    huggingface("GPT2", "SequenceClassification", TEXT),
    huggingface("Llama", "SequenceClassification", TEXT),
    huggingface("ModernBert", "TokenClassification", TEXT),
    huggingface("Bart", "SequenceClassification", BART),
    huggingface("XLNet", "SequenceClassification", {"vocab_size": 50, "d_model": 32, "n_layer": 1, "n_head": 2}),
    huggingface("Segformer", "SemanticSegmentation", SEGFORMER),
]


@pytest.mark.parametrize("make", REAL, ids=lambda make: make.__name__)
def test_the_plain_line_explains_the_logits_of_a_real_model(make: Callable[[], tuple[nn.Module, Any]]) -> None:
    model, inputs = make()
    model = model.double().train()
    inputs = tuple(t.double() if t.is_floating_point() else t for t in inputs)
    criterion = ISDALoss.attach(model, lambda_0=0.5, schedule="constant")
    used: list[Any] = []
    checked = criterion._check_inputs
    criterion._check_inputs = lambda *call: used.append(call) or checked(*call)
    output = model(*inputs)
    logits = logits_in(output)
    size = logits.shape[2:] if logits.ndim == 4 else logits.shape[1:-1]
    targets = torch.arange(2 * size.numel()).view(2, *size) % CLASSES
    loss = criterion(output, targets)
    assert loss.isfinite()
    given, _, features, weight = used[0]
    maps = features.maps() if isinstance(features, Patches) else features
    product = torch.einsum("ca,na...->nc...", weight.detach().flatten(1), maps)
    if product.shape != given.shape:
        corners = "PSP" in type(model).__name__
        product = F.interpolate(product, given.shape[2:], mode="bilinear", align_corners=corners)
    residual = (given.detach() - product).movedim(1, -1).flatten(0, -2)
    spread = given.detach().movedim(1, -1).flatten(0, -2).std(0).norm()
    assert spread > 0
    assert residual.std(0).norm() < 1e-9 * spread  # what is left is the bias, the same in all rows
    plain, output = ISDALoss.attach(model, lambda_0=0), model(*inputs)
    logits = logits_in(output)
    wanted = F.cross_entropy(logits.movedim(-1, 1) if logits.ndim == 3 else logits, targets)
    assert torch.equal(plain(output, targets), wanted)


def logits_in(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    return output.logits if hasattr(output, "logits") else output["out"]


def test_volo_is_refused_with_the_reason() -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("volo_d1_224", pretrained=False, num_classes=CLASSES, img_size=64)
    criterion = ISDALoss.attach(model, schedule="constant")
    with pytest.raises(ValueError, match=r"plus something that comes through MaxBackward0.*not linear in what was"):
        criterion(model(torch.randn(2, 3, 64, 64)), torch.tensor([0, 1]))


# -- outputs of models -------------------------------------------------------------------------------------------------


def test_outputs_with_names_are_used_and_others_refused_with_a_sentence() -> None:
    from collections import namedtuple

    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, lambda_0=0.5, schedule="constant")
    logits = model(x)
    loss = criterion(logits, y)
    pair = namedtuple("Pair", "logits aux_logits")(logits, None)
    for output in ({"out": logits, "aux": logits}, {"loss": None, "logits": logits}, pair):
        assert torch.equal(criterion(output, y), loss)
        assert torch.equal(criterion.consistency(output), criterion.consistency(logits))
        assert torch.equal(criterion.augmented_logits(output, y), criterion.augmented_logits(logits, y))
    for output, what in (((logits, logits), "a tuple of 2"), ({"z": logits}, "a dict with z"), (None, "a NoneType")):
        with pytest.raises(ValueError, match=f"logits must be a tensor, or an output that has them.*got {what}"):
            criterion(output, y)
    criterion.eval()
    assert torch.equal(criterion({"out": logits}, y), F.cross_entropy(logits, y))
