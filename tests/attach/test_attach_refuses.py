"""What attach cannot be right about is refused, with a message that says what to do, and the statistics stay empty."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from attach_helpers import CLASSES, FEATURES, SmallNet, batch
from torch import Tensor, nn

from isda import ISDALoss
from isda.attach import find_classifier

BY_HAND = r"criterion\(logits, targets, features=\.\.\., weight=\.\.\.\)"


def assert_untouched(criterion: ISDALoss) -> None:
    assert not any(tensor.any() for tensor in criterion.state_dict().values())


# -- models ------------------------------------------------------------------------------------------------------------


def test_data_parallel_is_refused() -> None:
    with pytest.raises(ValueError, match=r"nn\.DataParallel.*use DistributedDataParallel"):
        ISDALoss.attach(nn.DataParallel(SmallNet()), schedule="constant")


def test_replicas_of_data_parallel_are_refused_when_wrapped_later() -> None:
    head = nn.Linear(FEATURES, CLASSES)
    ISDALoss.attach(SmallNet(head), schedule="constant")
    replica = head._replicate_for_data_parallel()
    replica.weight, replica.bias = head.weight, head.bias
    with pytest.raises(ValueError, match=r"nn\.DataParallel.*use DistributedDataParallel"):
        replica(torch.randn(2, FEATURES))


class Cosine(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 16 * F.linear(F.normalize(x), F.normalize(self.weight))


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 4 * super().forward(x)


class NeedsLabels(nn.Linear):
    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return super().forward(x) - F.one_hot(targets, CLASSES)


class Adapted(nn.Linear):
    """Starts as a plain layer and becomes another: low-rank adaptation."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.down, self.up = nn.Parameter(torch.randn(2, sizes[0])), nn.Parameter(torch.zeros(sizes[1], 2))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x @ self.down.t() @ self.up.t()


def replaced_forward(*sizes: int) -> nn.Linear:
    head = nn.Linear(*sizes)
    head.forward = lambda x: 2 * F.linear(x, head.weight, head.bias)
    return head


@pytest.mark.parametrize("make", [Cosine, Scaled, NeedsLabels, Adapted, replaced_forward], ids=lambda f: f.__name__)
def test_heads_that_compute_something_else_are_refused(make: Callable[..., nn.Linear]) -> None:
    with pytest.raises(ValueError, match=rf"model\.fc must be an nn.Linear or an nn.Conv2d without.*{BY_HAND}.*scale"):
        ISDALoss.attach(SmallNet(make(FEATURES, CLASSES)), schedule="constant")


def test_a_subclass_that_computes_the_product_is_accepted() -> None:
    class Same(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.t() + self.bias

    head = Same(FEATURES, CLASSES)
    assert find_classifier(SmallNet(head)) is head


@pytest.mark.parametrize("by_name", [False, True])
def test_a_lazy_head_is_refused_until_it_has_seen_an_input(by_name: bool) -> None:
    model = SmallNet(nn.LazyLinear(CLASSES))
    message = "must have its weight before a criterion is attached, got a lazy LazyLinear.*run one batch"
    with pytest.raises(ValueError, match=message):
        ISDALoss.attach(model, classifier="fc" if by_name else None, schedule="constant")
    x, y = batch()
    model(x)
    criterion = ISDALoss.attach(model, schedule="constant")
    criterion(model(x), y).backward()
    assert int(criterion.covariance.count.sum()) == len(x)


def test_grouped_convolutions_are_refused() -> None:
    convolution = nn.Conv2d(4, 4, 1, groups=2)
    with pytest.raises(ValueError, match=r"an nn\.Linear or an nn\.Conv2d without groups, got Conv2d"):
        ISDALoss.attach(nn.Sequential(convolution), classifier=convolution, schedule="constant")


def test_heads_of_different_sizes_are_refused() -> None:
    class Both(SmallNet):
        def get_classifier(self) -> tuple[nn.Module, nn.Module]:
            return self.fc, self.body[0]

    with pytest.raises(ValueError, match=r"has classifiers of 3 and 8 outputs; pass the one to use as classifier="):
        ISDALoss.attach(Both(), schedule="constant")
    assert ISDALoss.attach(Both(), classifier="fc", schedule="constant").num_classes == CLASSES


def test_one_classifier_is_asked_of_a_model_with_two() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.low_classifier, self.high_classifier = nn.Linear(4, 3), nn.Linear(4, 3)

    with pytest.raises(ValueError, match="the model has 2 classifiers; pass the one to use as classifier="):
        find_classifier(Two())


def test_a_timm_model_without_classifier_is_refused() -> None:
    import timm

    model = timm.create_model("resnet10t", num_classes=0, pretrained=False)
    with pytest.raises(ValueError, match="has no classifier"):
        ISDALoss.attach(model, schedule="constant")


def test_two_conventional_names_are_refused() -> None:
    model = SmallNet()
    model.classifier = nn.Linear(CLASSES, CLASSES)
    with pytest.raises(ValueError, match=r"model\.fc and model\.classifier both look like.*pass classifier="):
        ISDALoss.attach(model, schedule="constant")
    assert ISDALoss.attach(model, classifier="fc", schedule="constant").feature_dim == FEATURES


class Nameless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)


def test_no_classifier_says_what_was_looked_at_and_how_to_pass_it() -> None:
    with pytest.raises(ValueError) as error:
        ISDALoss.attach(Nameless(), schedule="constant")
    message = str(error.value)
    for part in ("Nameless", "get_classifier()", "fc", "classifier", "head", "heads", "score", "nn.Sequential"):
        assert part in message
    assert "pass classifier=<layer or name>" in message
    assert "first, second" in message


def test_a_model_without_linear_layers_says_so() -> None:
    with pytest.raises(ValueError, match=r"no classifier found in Sequential.*it has no linear layer"):
        ISDALoss.attach(nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Flatten()), schedule="constant")


def test_a_classifier_of_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match="classifier must be a layer of the model, got another Linear"):
        ISDALoss.attach(SmallNet(), classifier=SmallNet().fc, schedule="constant")


def test_a_misspelt_name_lists_the_layers_there_are() -> None:
    with pytest.raises(ValueError, match=r"classifier must name a layer of the model, got 'haed'.*body\.0, fc"):
        ISDALoss.attach(SmallNet(), classifier="haed", schedule="constant")


# -- logits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "operation"),
    [
        (lambda z: z * torch.rand(12, 1), "MulBackward0"),
        (lambda z: z / torch.rand(12, 1), "DivBackward0"),
        (lambda z: z * z, "MulBackward0"),
        (lambda z: z.relu(), "ReluBackward0"),
        (lambda z: z[:, [2, 0, 1]], "IndexBackward0"),
        (lambda z: z - z.mean(1, keepdim=True), "MeanBackward1"),
        (lambda z: torch.cat([z, z]), "CatBackward0"),
        (lambda z: z + 1, "AddBackward0"),
        (lambda z: F.log_softmax(z.view(12, CLASSES), 1), "LogSoftmaxBackward0"),
        (lambda z: (3 * z.exp()).view(12, CLASSES), "ExpBackward0"),
    ],
)
def test_logits_changed_after_the_head_are_refused(change: Callable[[Tensor], Tensor], operation: str) -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, schedule="constant")
    logits = change(model(x))
    with pytest.raises(ValueError, match=rf"come from the classifier through {operation}.*{BY_HAND}"):
        criterion(logits, y[: len(logits)] if len(logits) <= 12 else y.repeat(2))
    assert_untouched(criterion)


def test_a_part_changed_in_place_is_refused() -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, schedule="constant")
    logits = model(x)
    logits[:, 0] *= 2
    with pytest.raises(ValueError, match=f"through torch::autograd::CopySlices.*{BY_HAND}"):
        criterion(logits, y)


def test_bent_logits_are_refused_even_if_an_unlabelled_batch_waits() -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, schedule="constant")
    logits = model(x).exp()
    with torch.no_grad():
        model(x)
    with pytest.raises(ValueError, match="through ExpBackward0"):
        criterion(logits, y)


def test_pooled_convolutional_logits_are_refused() -> None:
    from torchvision.models import squeezenet1_1

    model = squeezenet1_1(weights=None, num_classes=5)
    criterion = ISDALoss.attach(model, schedule="constant")
    with pytest.raises(
        ValueError,
        match=r"through ReluBackward0, so they are not known to be linear",
    ):
        criterion(model(torch.randn(2, 3, 64, 64)), torch.tensor([0, 1]))


def test_rows_in_another_order_are_refused() -> None:
    model, x = nn.Sequential(nn.Linear(4, 3)), torch.randn(6, 6, 4)
    criterion = ISDALoss.attach(model, schedule="constant")
    with (
        torch.no_grad(),
        pytest.raises(ValueError, match=r"the logits are not W a \+ b.*in the order of the logits"),
    ):
        criterion(model(x).transpose(0, 1), torch.arange(36).view(6, 6) % 3)
    assert_untouched(criterion)


def test_a_scale_that_no_graph_shows_is_refused() -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, schedule="constant")
    model.fc.register_forward_hook(lambda module, args, output: output.mul_(3))
    with torch.no_grad():
        logits = model(x)
    with pytest.raises(ValueError, match=r"not W a \+ b of the classifier.*differ from it by 200%"):
        criterion(logits, y)
    assert_untouched(criterion)


def test_a_classifier_that_starts_at_zero_is_verified_when_it_has_left_it() -> None:
    model, (x, y) = SmallNet(), batch()
    nn.init.zeros_(model.fc.weight)
    nn.init.zeros_(model.fc.bias)
    criterion = ISDALoss.attach(model, schedule="constant")
    handle = model.fc.register_forward_hook(lambda module, args, output: output.mul_(3))
    with torch.no_grad():
        criterion(model(x), y)
        nn.init.normal_(model.fc.weight)
        with pytest.raises(ValueError, match=r"not W a \+ b of the classifier"):
            criterion(model(x), y)
        handle.remove()
        criterion(model(x), y)
    assert int(criterion.covariance.count.sum()) == 2 * len(x)


def test_logits_that_are_not_zero_from_a_classifier_that_is_are_refused() -> None:
    model, (x, y) = SmallNet(), batch()
    nn.init.zeros_(model.fc.weight)
    nn.init.zeros_(model.fc.bias)
    criterion = ISDALoss.attach(model, schedule="constant")
    model.fc.register_forward_hook(lambda module, args, output: output.add_(1))
    with torch.no_grad(), pytest.raises(ValueError, match=r"differ from it by inf%"):
        criterion(model(x), y)


def test_validate_off_skips_the_verification() -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, validate=False, schedule="constant")
    model.fc.register_forward_hook(lambda module, args, output: output.mul_(3))
    with torch.no_grad():
        assert criterion(model(x), y).isfinite()


def test_logits_of_another_model_are_refused() -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, schedule="constant")
    with pytest.raises(ValueError, match=r"no features were recorded for these logits \(12, 3\)"):
        criterion(SmallNet()(x), y)
    assert_untouched(criterion)


@pytest.mark.parametrize("kept", [False, True])
def test_a_head_that_was_replaced_is_named(kept: bool) -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, schedule="constant")
    old = model.fc if kept else None
    model.fc = nn.Linear(FEATURES, CLASSES)
    with pytest.raises(ValueError, match=r"no longer part of the model; attach a criterion to the model again"):
        criterion(model(x), y)
    assert_untouched(criterion)
    del old


def test_more_compiled_passes_than_are_kept_are_named() -> None:
    """The logits of the first of three passes; those of the last two have their features."""
    model, (x, y) = SmallNet(), batch()
    criterion, compiled = ISDALoss.attach(model, schedule="constant"), torch.compile(model, backend="aot_eager")
    first, *others = [compiled(x + shift) for shift in range(3)]
    with pytest.raises(ValueError, match="keeps the features of its last two passes: call the criterion after each"):
        criterion(first, y)
    assert_untouched(criterion)
    for logits in others:
        criterion(logits, y)
    assert int(criterion.covariance.count.sum()) == 2 * len(x)


def test_scripting_an_attached_model_says_what_to_do() -> None:
    model, (x, _) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, schedule="constant")
    with pytest.raises(AttributeError, match=r"call criterion\.detach\(\) first and attach again afterwards"):
        torch.jit.script(model)
    criterion.detach()
    torch.testing.assert_close(torch.jit.script(model)(x), model(x))


TRANSFORMED = {
    "grad": lambda model, loss: torch.func.grad(
        lambda parameters: loss(lambda x: torch.func.functional_call(model, parameters, (x,)), *batch())
    )(dict(model.named_parameters())),
    "vmap": lambda model, loss: torch.vmap(lambda x, y: loss(model, x.unsqueeze(0), y.unsqueeze(0)))(*batch()),
}


@pytest.mark.parametrize("transform", TRANSFORMED)
@pytest.mark.parametrize("call", ["loss", "consistency", "augmented logits"])
def test_transforms_of_torch_func_are_refused(transform: str, call: str) -> None:
    model = SmallNet()
    criterion = ISDALoss.attach(model, schedule="constant")

    def loss(network: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits = network(x)
        if call == "consistency":
            return criterion.consistency(logits)
        return criterion(logits, y) if call == "loss" else criterion.augmented_logits(logits, y).sum()

    with pytest.raises(ValueError, match=r"ISDALoss must be called outside of torch\.func\.grad, torch\.vmap"):
        TRANSFORMED[transform](model, loss)
    assert_untouched(criterion)


@pytest.mark.parametrize("transform", TRANSFORMED)
def test_an_attached_model_in_eval_mode_can_be_transformed(transform: str) -> None:
    model = SmallNet().eval()
    plain = TRANSFORMED[transform](model, lambda network, x, y: F.cross_entropy(network(x), y))
    criterion = ISDALoss.attach(model, schedule="constant").eval()
    attached = TRANSFORMED[transform](model, lambda network, x, y: criterion(network(x), y))
    torch.testing.assert_close(attached, plain)
