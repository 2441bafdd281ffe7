"""attach: the classifier is found, logits are traced to the features they were made of, what cannot be is refused."""

from __future__ import annotations

import copy
import io
import os
import pickle
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from isda import ISDALoss
from isda.attach import Recorder, logits_of

CLASSES = 3


def taken(recorder: Any, logits: Any) -> Any:
    """What a criterion takes of a recorder, and counts."""
    found = recorder.find(logits)
    recorder.count()
    return found


class Net(nn.Module):
    """Two layers; ``fc`` is the classifier."""

    def __init__(self, head: nn.Module | None = None) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        self.fc = nn.Linear(8, CLASSES) if head is None else head

    def forward(self, x):
        return self.fc(self.body(x))


class Named(nn.Module):
    """A model that has these parts."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


def last(inputs: int = 8, outputs: int = CLASSES) -> nn.Linear:
    return nn.Linear(inputs, outputs)


def batch(size: int = 12):
    x = torch.randn(size, 4)
    return x, x[:, :CLASSES].argmax(1)


def recorded():
    """A model, its recorder, and the logits and features of a pass; another pass of the same shape came after."""
    model, (x, _) = Net(), batch()
    recorder = Recorder(model)
    logits = model(x)
    model(batch()[0])
    return recorder, logits, model.body(x).detach()


# -- finding the classifier --------------------------------------------------------------------------------------------

NAMES = [
    *("fc", "classifier", "segmentation_head", "decode_head", "classification_head", "logits_proj", "score", "head"),
    *("last_linear", "linear", "heads", "output", "out", "fc2", "fc3", "_fc"),
]


@pytest.mark.parametrize("name", NAMES)
def test_conventional_names_are_found_also_in_containers_and_wrappers(name):
    head = last()
    for part in (
        head,
        nn.Sequential(last(8, 8), nn.Dropout(), head, nn.Tanh()),
        Named(first=last(8, 8), out_proj=head),
    ):
        model = Named(body=last(), **{name: part})
        for wrapped in (model, nn.DataParallel(model), Named(model=model), torch.compile(model)):
            assert Recorder(wrapped).layers == [head]


def test_of_several_layers_the_classifier_is_taken():
    head, other = last(), last(8, 8)
    for model in (
        Named(fc1=other, fc2=last(8, 8), fc3=head),
        Named(classifier=head, aux_classifier=last()),
        Named(segmentation_head=head, classification_head=other),
        Named(decode_head=Named(psp=other, classifier=head), auxiliary_head=other),
        nn.Sequential(other, nn.ReLU(), head, nn.LogSoftmax(1)),
        Named(backbone=other, model=nn.Sequential(other, Named(conv=nn.Conv2d(3, 4, 1), linear=head))),
    ):
        assert Recorder(model).layers == [head]


def test_get_classifier_is_asked_and_its_answer_looked_into():
    class Asked(Net):
        def __init__(self, answer):
            super().__init__()
            self.get_classifier = lambda: answer

    head, second = last(), last()
    for answer in (head, nn.Sequential(nn.BatchNorm1d(8), head), Named(fc=head, flatten=nn.Flatten())):
        assert Recorder(Asked(answer)).layers == [head]
    for answers in ((head, second), nn.ModuleList([head, second])):
        assert Recorder(Asked(answers)).layers == [head, second]
    with pytest.raises(ValueError, match="Identity has no linear layer that could be its classifier"):
        Recorder(Asked(nn.Identity()))


@pytest.mark.parametrize(
    "names", ["cls_classifier distillation_classifier", "classifier classifier_distill", "head head_dist"]
)
def test_averaged_heads_are_found_together(names):
    heads = [last(), last()]
    assert Recorder(Named(body=last(), **dict(zip(names.split(), heads, strict=True)))).layers == heads


def test_a_layer_is_named_by_itself_by_its_name_or_in_a_list():
    model = Net(nn.Sequential(nn.Dropout(), last()))
    head = model.fc[1]
    for classifier in (head, "fc.1", "fc", model.fc, [head], ["fc.1"]):
        assert Recorder(model, classifier).layers == [head]
    assert Recorder(nn.DataParallel(model), "fc").layers == [head]
    assert Recorder(model, "body.0").layers == [model.body[0]]
    for wrong in ("fx", last(), "body.1", 3):
        with pytest.raises(
            ValueError, match=r"must be or name a linear layer of the model, such as body\.0, fc\.1; got"
        ):
            Recorder(model, wrong)


def test_a_model_without_linear_layers_is_refused():
    for model in (nn.ReLU(), nn.Sequential(nn.Conv2d(4, 4, 1, groups=2))):
        with pytest.raises(
            ValueError, match="no linear layer that could be its classifier; pass features= and weight="
        ):
            Recorder(model)


class Two(nn.Module):
    """The mean of two heads, with two layers after them that have nothing to do with the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.a, self.b = nn.Linear(4, 8), last(), last()
        self.side, self.norm, self.last = last(), nn.BatchNorm1d(8), nn.Linear(8, 8)

    def forward(self, x):
        x = self.norm(self.body(x))
        self.side(x), self.last(x)
        return (self.a(x) + self.b(x.relu())) / 2


@pytest.mark.parametrize("form", [lambda x: x, lambda x: (x,), lambda x: {"x": x}], ids=["tensor", "tuple", "mapping"])
def test_a_sample_finds_the_layers_that_make_the_logits_and_changes_nothing(form):
    model = Two()
    model.norm.eval()
    state, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    x, y = batch()
    recorder = Recorder(model, sample=form(x))
    assert recorder.layers == [model.a, model.b]
    assert [module.training for module in model.modules()] == modes
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])
    with pytest.raises(ValueError, match=r"did you mean classifier='b'\? Else pass features= and weight="):
        ISDALoss.attach(model, 0.5, 10, classifier="side")(model(x), y)
    features, weight, _ = taken(recorder, model(x))
    rest = model(x) - features @ weight.t()
    torch.testing.assert_close(rest, rest[:1].expand(12, -1))


def test_a_sample_whose_logits_no_layer_makes_is_refused():
    model = Net(nn.Sequential(last(), nn.ReLU()))
    with pytest.raises(ValueError, match="neither the output of a linear layer nor the mean of several"):
        Recorder(model, sample=batch()[0])
    assert not model.fc[0]._forward_hooks


def test_logits_are_taken_from_outputs_with_names():
    z = torch.zeros(2, 3)
    outputs = [z, (z, None), [z], {"out": z, "aux": None}, {"logits": z}, namedtuple("Pair", "logits aux")(z, None)]
    for output in outputs:
        assert logits_of(output) is z
    for output in (None, {"z": z}, ()):
        with pytest.raises(ValueError, match=r"logits must be a tensor, or an output with \.logits or \['out'\], got"):
            logits_of(output)


# -- from logits to features -------------------------------------------------------------------------------------------

COPIES = {
    "as they are": lambda z: z,
    "a copy": lambda z: z.clone(),
    "in half precision": lambda z: z.half(),
    "in double precision": lambda z: z.double(),
    "log_softmax": lambda z: z.log_softmax(1),
    "plus a constant per row": lambda z: z + torch.arange(12.0).unsqueeze(1),
    "plus a prior": lambda z: z + torch.tensor([0.0, 1.0, 2.0]),
}


@pytest.mark.parametrize("change", COPIES.values(), ids=COPIES)
def test_the_features_are_those_of_the_logits_though_another_pass_came_after(change):
    recorder, logits, features = recorded()
    found, weight, learns = taken(recorder, change(logits))
    assert torch.equal(found, features)
    assert weight.requires_grad
    assert not found.requires_grad
    assert learns
    assert not taken(recorder, logits)[2]


PARTS = {
    "head": slice(5),
    "tail": slice(5, None),
    "every second": slice(0, 12, 2),
    "indices": torch.tensor([3, 1, 7]),
    "mask": torch.arange(12) % 3 == 0,
    "reversed": torch.arange(11, -1, -1),
}


@pytest.mark.parametrize("rows", PARTS.values(), ids=PARTS)
def test_rows_of_the_logits_have_their_own_features(rows):
    recorder, logits, features = recorded()
    for _ in range(3):
        found, _, _ = taken(recorder, logits[rows])
        assert torch.equal(found, features[rows])


@pytest.mark.parametrize("form", [slice, lambda a, b: torch.arange(a, b)], ids=["slices", "indices"])
def test_parts_of_a_pass_count_every_row_once(form):
    model, (x, y) = Net(), batch(40)
    criterion = ISDALoss.attach(model, 0.5, 10)
    logits, features = model(x), model.body(x).detach()
    for first in (0, 10, 20, 30, 10):
        part = form(first, first + 10)
        criterion(logits[part], y[part]).backward(retain_graph=True)
    assert criterion.covariance.count.tolist() == torch.bincount(y, minlength=3).tolist()
    for c in range(CLASSES):
        torch.testing.assert_close(criterion.covariance.mean[c], features[y == c].mean(0))
    logits = model(x)
    criterion(logits[:10], y[:10])
    with pytest.raises(ValueError, match=r"a part of these rows was counted by an earlier call.*pass features="):
        criterion(logits[5:20], y[5:20])
    with pytest.raises(ValueError, match="a part of these rows"):
        criterion(logits, y)


REFUSED = {
    "scaled": (lambda z: 2 * z, "did not make these logits"),
    "bent": (lambda z: z.relu(), "did not make these logits"),
    "clamped": (lambda z: z.clamp(-0.1, 0.1), "did not make these logits"),
    "one row twice": (lambda z: z[[0, 0, 1]], "did not make these logits"),
    "fewer classes": (lambda z: z[:, :2], "not whole rows"),
    "classes reordered": (lambda z: z.flip(1), "did not make these logits"),
    "transposed": (lambda z: z.t(), "not whole rows"),
    "of another model": (lambda z: torch.randn(12, CLASSES), "did not make these logits"),
    "changed in place": (lambda z: z.mul_(2), "changed in place"),
}


@pytest.mark.parametrize(("change", "sentence"), REFUSED.values(), ids=REFUSED)
def test_logits_that_no_pass_is_known_to_have_made_are_refused(change, sentence):
    recorder, logits, features = recorded()
    for _ in range(3):  # also beyond the first calls, in which values decide on every device
        with pytest.raises(ValueError, match=f"{sentence}.*pass features= and weight="):
            taken(recorder, change(logits))
    if sentence != "changed in place":
        assert torch.equal(taken(recorder, logits)[0], features)


class Cosine(nn.Linear):
    def forward(self, x):
        return F.linear(F.normalize(x), F.normalize(self.weight))


def test_a_layer_that_computes_something_else_is_refused():
    model, (x, y) = Net(Cosine(8, CLASSES)), batch()
    criterion = ISDALoss.attach(model, 0.5, 10)
    with pytest.raises(ValueError, match="does not compute W a \\+ b with the weight it shows; pass features="):
        criterion(model(x), y)
    assert criterion.covariance.count.sum() == 0


def test_of_equal_logits_copies_are_refused_and_views_known():
    model, (x, _) = Net(), batch()
    nn.init.zeros_(model.fc.weight)
    recorder = Recorder(model)
    logits, features = model(x), model.body(x).detach()
    assert torch.equal(taken(recorder, logits[4:])[0], features[4:])
    with pytest.raises(ValueError, match="did not make"):
        taken(recorder, logits[[1, 2]])
    logits, _ = model(x), model(x + 1)
    with pytest.raises(ValueError, match="could be of several passes; call the criterion after each"):
        taken(recorder, logits.clone())


def test_equal_samples_of_a_batch_are_no_obstacle():
    model, (x, _) = Net(), batch()
    x[5] = x[2]
    recorder, logits = Recorder(model), model(x)
    assert torch.equal(taken(recorder, logits[[2, 3]])[0], model.body(x)[[2, 3]])


def test_a_pass_counts_once_and_a_used_one_is_let_go_with_the_next():
    model, (x, _) = Net(), batch()
    recorder = Recorder(model)
    first, second = model(x), model(x)
    assert taken(recorder, second)[2]
    assert taken(recorder, first)[2]
    assert not taken(recorder, first)[2]
    model(x)
    with pytest.raises(ValueError, match="did not make"):
        taken(recorder, first * 2)
    for _ in range(10):
        model(x)
    assert len(recorder.passes) <= 4


class Tokens(nn.Module):
    """A linear layer on (N, T, 8), a part of whose output is taken."""

    def __init__(self, take) -> None:
        super().__init__()
        self.embed, self.fc, self.take = nn.Linear(4, 8), last(), take

    def forward(self, x):
        return self.take(self.fc(self.embed(x)))


TOKENS = {
    "all": lambda t: t,
    "classes second": lambda t: t.transpose(1, 2),
    "classes second, copied": lambda t: t.transpose(1, 2).contiguous(),
    "flat": lambda t: t.flatten(0, 1),
    "first": lambda t: t[:, 0],
    "last": lambda t: t[:, -1],
    "without the first": lambda t: t[:, 1:],
    "one of each, copied": lambda t: t[torch.arange(6), torch.tensor([4, 3, 2, 1, 0, 4])],
    "masked": lambda t: t[(torch.arange(30) % 4 == 0).view(6, 5)],
    "mean": lambda t: t.mean(1),
}


@pytest.mark.parametrize("length", [5, CLASSES])
@pytest.mark.parametrize("take", TOKENS.values(), ids=TOKENS)
def test_tokens_have_features_in_the_layout_of_their_logits(take, length):
    if length != 5 and ("torch.arange" in repr(take.__code__.co_names) or "arange" in take.__code__.co_names):
        pytest.skip("its indices are of five tokens")
    model, x = Tokens(take), torch.randn(6, length, 4)
    recorder = Recorder(model)
    features = take(model.embed(x)).detach()
    for _ in range(4):  # shape alone would not do in later calls
        found, _, learns = taken(recorder, model(x))
        torch.testing.assert_close(found, features)
        assert learns


class Pixels(nn.Module):
    """A convolution as classifier; its output may be resized."""

    def __init__(self, head: nn.Conv2d, resize=lambda z: z) -> None:
        super().__init__()
        self.body, self.segmentation_head, self.resize = nn.Conv2d(3, 5, 3, padding=1), head, resize

    def forward(self, x):
        return self.resize(self.segmentation_head(self.body(x)))


CONVOLUTIONS = {
    "1x1": {"kernel_size": 1},
    "3x3": {"kernel_size": 3, "padding": 1},
    "same": {"kernel_size": 3, "padding": "same", "dilation": 2},
    "reflected": {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
    "strided": {"kernel_size": (2, 3), "stride": 2},
    "1x1 strided": {"kernel_size": 1, "stride": 2},
    "1x1 padded": {"kernel_size": 1, "padding": 1},
}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("settings", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_a_convolution_is_linear_in_the_patches_it_sees(settings, channels_last):
    model = Pixels(nn.Conv2d(5, CLASSES, **settings)).double()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    recorder = Recorder(model)
    logits = model(x)
    features, weight, _ = taken(recorder, logits)
    expected = torch.einsum("ca,nahw->nchw", weight, features) + model.segmentation_head.bias.view(-1, 1, 1)
    torch.testing.assert_close(logits, expected)
    rows, _, learns = taken(recorder, model(x)[1:])
    torch.testing.assert_close(rows, features[1:])
    assert learns


RESIZES = {
    "bilinear": {"mode": "bilinear", "align_corners": False},
    "aligned": {"mode": "bilinear", "align_corners": True},
    "nearest": {"mode": "nearest"},
    "bicubic": {"mode": "bicubic"},
}


@pytest.mark.parametrize("settings", RESIZES.values(), ids=RESIZES)
def test_resized_logits_have_the_features_of_the_coarse_pixels_of_their_pass(settings):
    model = Pixels(nn.Conv2d(5, CLASSES, 1), lambda z: F.interpolate(z, (12, 12), **settings))
    recorder = Recorder(model)
    x, other = torch.randn(2, 3, 6, 6), torch.randn(2, 3, 6, 6)
    for _ in range(3):
        logits = model(x)
        model(other)
        features, _, _ = taken(recorder, logits)
        torch.testing.assert_close(features, model.body(x))
    with pytest.raises(ValueError, match="did not make"):
        taken(recorder, logits.relu())
    with pytest.raises(ValueError, match="did not make"):
        taken(recorder, logits.flatten(2).mean(2) * 2)


def test_pooled_pixels_have_the_mean_of_their_features():
    model = Pixels(nn.Conv2d(5, CLASSES, 1), lambda z: z.mean((2, 3)))
    x = torch.randn(4, 3, 6, 6)
    features, _, _ = Recorder(model).find(model(x))
    torch.testing.assert_close(features, model.body(x).mean((2, 3)))


def test_averaged_heads_are_one_classifier_of_their_features_side_by_side():
    model = Two().double()
    x, y = batch()
    criterion = ISDALoss.attach(model, 0.5, 10, classifier=["a", "b"])
    assert criterion.feature_dim == 16
    for _ in range(3):
        logits = model(x.double())
        features, weight, learns = taken(criterion.recorder, logits)
        biases = (model.a.bias + model.b.bias) / 2
        torch.testing.assert_close(features @ weight.t() + biases, logits)
        assert learns
        criterion(logits, y).backward()
    assert model.a.weight.grad is not None


HEADS = {
    "weight norm": lambda: parametrizations.weight_norm(last()),
    "without bias": lambda: nn.Linear(8, CLASSES, bias=False),
    "with a constant far from zero": lambda: nn.Linear(8, CLASSES),
}


@pytest.mark.parametrize("make", HEADS.values(), ids=HEADS)
def test_the_weight_reaches_the_parameters_it_is_made_of(make):
    model, (x, y) = Net(make()).double(), batch()
    if model.fc.bias is not None:
        nn.init.constant_(model.fc.bias, 100.0)
    criterion = ISDALoss.attach(model, 0.7, 1)
    by_hand = ISDALoss(CLASSES, 8, 0.7, 1, dtype=torch.float64)
    for _ in range(2):
        logits = model(x.double())
        loss = criterion(logits, y)
        expected = by_hand(logits, y, features=model.body(x.double()).detach(), weight=model.fc.weight)
        torch.testing.assert_close(loss, expected)
        parameters = list(model.fc.parameters())
        ours = torch.autograd.grad(loss, parameters, retain_graph=True)
        torch.testing.assert_close(ours, torch.autograd.grad(expected, parameters))


# -- modes -------------------------------------------------------------------------------------------------------------


def test_a_pass_in_eval_mode_is_cross_entropy_whatever_the_mode_is_now():
    model, (x, y) = Net(), batch()
    criterion = ISDALoss.attach(model, 0.5, 1)
    model.fc.eval()
    logits = model(x)
    assert taken(criterion.recorder, logits) is None
    model.train()
    assert torch.equal(criterion(logits, y), F.cross_entropy(logits, y))
    trained = model(x)
    model.eval()
    assert torch.equal(taken(criterion.recorder, trained)[0], model.body(x))
    assert taken(criterion.recorder, torch.randn(12, CLASSES)) is None
    assert criterion.covariance.count.sum() == 0


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("training", [True, False])
def test_validation_is_cross_entropy_and_keeps_no_features(guard, training):
    model, (x, y) = Net(), batch()
    criterion = ISDALoss.attach(model, 0.5, 1)
    criterion(model(x), y).backward()
    state = copy.deepcopy(criterion.state_dict())
    with guard():
        logits = model.train(training)(x)
        assert torch.equal(criterion(logits, y), F.cross_entropy(logits, y))
    for name, value in criterion.state_dict().items():
        assert torch.equal(value, state[name])
    model.train()
    assert torch.equal(taken(criterion.recorder, model(x))[0], model.body(x))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("part", ["model", "body"])
def test_gradient_checkpointing_records_a_pass_once(part, reentrant):
    model, (x, y) = Net(), batch()
    criterion = ISDALoss.attach(model, 0.5, 1)
    x.requires_grad_()
    for number in (1, 2):
        if part == "model":
            logits = checkpoint(model, x, use_reentrant=reentrant)
        else:
            logits = model.fc(checkpoint(model.body, x, use_reentrant=reentrant))
        criterion(logits, y).backward()
        assert criterion.covariance.count.sum() == 12 * number
        assert len(criterion.recorder.passes) == 1


def test_a_model_is_as_it_was_once_the_criterion_is_detached():
    model = Net()
    before = pickle.dumps(model)
    criterion = ISDALoss.attach(model, 0.5, 1)
    assert model.fc._forward_hooks
    criterion.detach()
    assert not model.fc._forward_hooks
    assert len(pickle.dumps(model)) == len(before)


# -- copies ------------------------------------------------------------------------------------------------------------


def through_a_file(things):
    file = io.BytesIO()
    torch.save(things, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def train(model, criterion, optimizer):
    x, y = batch()
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t)), through_a_file])
def test_model_criterion_and_optimizer_copied_together_go_on_training(duplicate, order):
    model = Net()
    criterion = ISDALoss.attach(model, 0.5, 100)
    ours = (model, criterion, torch.optim.SGD(model.parameters(), 0.1))
    train(*ours)
    copied = duplicate(tuple(ours[i] for i in order))
    theirs = [copied[order.index(i)] for i in range(3)]
    for _ in range(2):
        train(*theirs)
    assert theirs[1].step == 3
    assert theirs[1].recorder.layers == [theirs[0].fc]
    assert theirs[1].covariance.count.sum() == 36
    assert criterion.step == 1
    theirs[1].detach()
    assert not theirs[0].fc._forward_hooks
    train(*ours)
    assert criterion.step == 2


def test_a_copy_of_the_model_alone_leaves_the_criterion_with_the_original():
    model, (x, y) = Net(), batch()
    criterion = ISDALoss.attach(model, 0.5, 100)
    copied = copy.deepcopy(model)
    logits = model(x)
    other = copied(x)
    assert torch.equal(taken(criterion.recorder, logits)[0], model.body(x))
    with pytest.raises(ValueError, match="did not make"):
        criterion(other + torch.randn(12, CLASSES), y)
    again = ISDALoss.attach(copied, 0.5, 100)
    again(copied(x), y)
    assert again.covariance.count.sum() == 12
    assert criterion.covariance.count.sum() == 0


def test_a_replaced_classifier_is_refused():
    model, (x, y) = Net(), batch()
    criterion = ISDALoss.attach(model, 0.5, 100)
    model.fc = last()
    with pytest.raises(ValueError, match="no pass of the classifier was recorded: it was replaced"):
        criterion(model(x), y)


# -- tools -------------------------------------------------------------------------------------------------------------


def add_graph(model, folder):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(folder) as writer:
        writer.add_graph(model, batch()[0])


def qat(model, folder):
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    torch.ao.quantization.prepare_qat(model)(batch()[0])


def gradients_by_function(model, folder):
    parameters = dict(model.named_parameters())
    torch.func.grad(lambda p, x: torch.func.functional_call(model, p, (x,)).sum())(parameters, batch()[0])


def fake(model, folder):
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        model(batch()[0])


TOOLS = {
    "trace": lambda model, folder: torch.jit.trace(model, batch()[0]),
    "script": lambda model, folder: torch.jit.script(model),
    "export": lambda model, folder: torch.export.export(model, batch()[:1]),
    "strict export": lambda model, folder: torch.export.export(model, batch()[:1], strict=True),
    "add_graph": add_graph,
    "quantize_dynamic": lambda model, folder: torch.ao.quantization.quantize_dynamic(model, {nn.Linear})(batch()[0]),
    "prepare_qat": qat,
    "vmap": lambda model, folder: torch.vmap(model)(torch.randn(2, 12, 4)),
    "torch.func": gradients_by_function,
    "fx": lambda model, folder: torch.fx.symbolic_trace(model)(batch()[0]),
    "fake tensors": fake,
    "meta": lambda model, folder: copy.deepcopy(model).to("meta")(torch.randn(12, 4, device="meta")),
    "DataParallel": lambda model, folder: nn.DataParallel(model)(batch()[0]),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_tools_work_or_refuse_and_the_next_call_is_right(tool, tmp_path):
    model, (x, y) = Net(), batch()
    criterion = ISDALoss.attach(model, 0.5, 100)
    criterion(model(x), y)
    state = copy.deepcopy(criterion.state_dict())
    if tool is TOOLS["script"]:
        with pytest.raises(Exception, match="record"):
            tool(model, tmp_path)
    else:
        tool(model, tmp_path)
    for name, value in criterion.state_dict().items():
        assert torch.equal(value, state[name])
    assert model.training
    logits = model(x)
    assert torch.equal(taken(criterion.recorder, logits)[0], model.body(x))
    criterion(logits.log_softmax(1), y)
    criterion(model(x), y)
    assert criterion.covariance.count.sum() == 24


def test_a_model_in_data_parallel_trains():
    model, (x, y) = Net(), batch()
    parallel = nn.DataParallel(model)
    criterion = ISDALoss.attach(parallel, 0.5, 100)
    criterion(parallel(x), y).backward()
    assert criterion.covariance.count.sum() == 12


@pytest.fixture
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("second_pass", [False, True])
@pytest.mark.parametrize("compiled", ["model", "criterion", "both"])
def test_compiled_equals_eager(compiled, second_pass):
    def run(compiled):
        torch.manual_seed(1)
        model = Net().double()
        criterion = ISDALoss.attach(model, 0.5, 10)
        whole = compiled == "both"
        forward = torch.compile(model, backend="aot_eager") if compiled == "model" else model
        loss_of = torch.compile(criterion, backend="aot_eager") if compiled == "criterion" else criterion

        def step(x, y, other):
            logits = forward(x)
            if second_pass:
                forward(other)
            return loss_of(logits, y)

        step = torch.compile(step, backend="aot_eager", fullgraph=True) if whole else step
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        losses = []
        for _ in range(4):
            x, y = batch()
            loss = step(x.double(), y, batch()[0].double())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, criterion.covariance.count.tolist()

    losses, counts = run(compiled)
    expected, expected_counts = run("")
    assert losses == pytest.approx(expected)
    assert counts == expected_counts


@pytest.mark.usefixtures("_fresh_compiler")
def test_in_one_graph_logits_that_could_be_of_two_passes_are_refused():
    model, (x, y) = Net(), batch()
    criterion = ISDALoss.attach(model, 0.5, 10)

    def step(x, y):
        logits = model(x)
        model(x + 1)
        return criterion(logits.log_softmax(1), y)

    with pytest.raises(Exception, match=r"could be of several passes|Observed exception"):
        torch.compile(step, backend="eager", fullgraph=True)(x, y)
    assert criterion.covariance.count.sum() == 0


def test_adapters_of_peft_beside_the_classifier():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(Net(), peft.LoraConfig(target_modules=["body.0"], modules_to_save=["fc"]))
    criterion = ISDALoss.attach(model, 0.5, 10)
    x, y = batch()
    criterion(model(x), y).backward()
    assert criterion.recorder.weight.grad_fn is not None or criterion.recorder.weight.requires_grad
    assert criterion.covariance.count.sum() == 12
    adapted = peft.get_peft_model(Net(), peft.LoraConfig(target_modules=["fc"]))
    criterion = ISDALoss.attach(adapted, 0.5, 10, classifier="base_layer")
    for name, value in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(value)
    with pytest.raises(ValueError, match="pass features= and weight="):
        criterion(adapted(x), y)


@pytest.mark.parametrize(
    "take", [lambda z: z, lambda z: z[:9], lambda z: z.log_softmax(1)], ids=["all", "part", "copy"]
)
def test_on_a_device_nothing_waits_after_the_first_calls(take):
    import pretend_accelerator  # not above: the processes below have no such device

    if not pretend_accelerator.AVAILABLE:
        pytest.skip("torch cannot register a device in Python")
    model, (x, _) = Net(), batch()
    expected = Recorder(model).find(take(model(x)))[0]
    with pretend_accelerator.PretendAccelerator() as accelerator:
        model, x = model.to("pretend"), pretend_accelerator.on_pretend(x)
        recorder = Recorder(model)
        for number in range(5):
            logits = take(model(x))
            accelerator.clear()
            features, _, learns = taken(recorder, logits)
            assert learns
            assert number < 2 or not accelerator.waits
        torch.testing.assert_close(features.cpu(), expected)


# -- models of libraries -----------------------------------------------------------------------------------------------


def timm_model(name, **settings):
    timm = pytest.importorskip("timm")
    return timm.create_model(name, pretrained=False, num_classes=5, **settings), (torch.randn(2, 3, 64, 64),)


def segmentation(name):
    library = pytest.importorskip("segmentation_models_pytorch")
    return getattr(library, name)("resnet18", encoder_weights=None, classes=5), (torch.randn(2, 3, 64, 64),)


def lightweight(name):
    from torchvision import models

    return models.get_model(name, weights=None, weights_backbone=None, num_classes=5), (torch.randn(2, 3, 64, 64),)


def huggingface(name, **settings):
    library = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    config = getattr(library, name.split("For")[0] + "Config")
    model = getattr(library, name)(config(num_labels=5, **sizes, **settings))
    images = "image_size" in settings
    return model, (torch.randn(2, 3, 32, 32) if images else torch.randint(3, 50, (2, 9)),)


def timm_in_transformers():
    library = pytest.importorskip("transformers")
    pytest.importorskip("timm")
    config = library.TimmWrapperConfig(architecture="resnet18", num_labels=5)
    return library.TimmWrapperForImageClassification(config), (torch.randn(2, 3, 64, 64),)


TEXT = {"vocab_size": 50, "pad_token_id": 0, "max_position_embeddings": 32}
MODELS = {
    "timm resnet": lambda: timm_model("resnet10t"),
    "timm distilled": lambda: timm_model("deit_tiny_distilled_patch16_224", img_size=64, depth=1),
    "smp Unet": lambda: segmentation("Unet"),
    "smp FPN": lambda: segmentation("FPN"),
    "DeepLabV3": lambda: lightweight("deeplabv3_mobilenet_v3_large"),
    "Llama": lambda: huggingface("LlamaForSequenceClassification", num_key_value_heads=2, head_dim=16, **TEXT),
    "Bert tokens": lambda: huggingface("BertForTokenClassification", **TEXT),
    "DeiT with teacher": lambda: huggingface("DeiTForImageClassificationWithTeacher", image_size=32, patch_size=8),
    "timm in transformers": timm_in_transformers,
}


@pytest.mark.parametrize("sampled", [False, True], ids=["by convention", "with sample="])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_features_and_weight_explain_the_logits_of_real_models(make, sampled):
    model, inputs = make()
    model = model.double().train()
    inputs = tuple(t.double() if t.is_floating_point() else t for t in inputs)
    recorder = Recorder(model, sample=inputs if sampled else None)
    for _ in range(3):
        logits = logits_of(model(*inputs))
        features, weight, learns = taken(recorder, logits)
        assert learns
        if logits.ndim == 3:
            logits, features = logits.movedim(-1, 1), features.movedim(-1, 1)
        product = torch.einsum("ca,na...->nc...", weight, features)
        if product.shape != logits.shape:
            sizes = [F.interpolate(product, logits.shape[2:], mode="bilinear", align_corners=c) for c in (False, True)]
            product = min(sizes, key=lambda resized: float((resized - logits).detach().std()))
        rest = (logits - product).movedim(1, -1).flatten(0, -2)
        spread = logits.movedim(1, -1).flatten(0, -2).std(0).norm()
        assert rest.std(0).norm() < 1e-6 * spread


def test_a_network_that_aligns_corners_gets_its_upsampled_augmented_logits():
    model, (x,) = segmentation("FPN")
    targets = torch.arange(2 * 64 * 64).view(2, 64, 64) % 5
    criterion = ISDALoss.attach(model.double(), 0.5, 1, align_corners=True)
    logits = model(x.double())
    loss = criterion(logits, targets, strength=0.5)
    features, weight, _ = taken(criterion.recorder, logits)
    coarse = F.interpolate(targets.unsqueeze(1).double(), features.shape[2:], mode="nearest").squeeze(1).long()
    head = model.segmentation_head[0]
    low = torch.einsum("ca,nahw->nchw", weight, features) + head.bias.view(-1, 1, 1)
    augmented = criterion.augmented_logits(low, coarse, strength=0.5)
    resized = F.interpolate(augmented, (64, 64), mode="bilinear", align_corners=True)
    torch.testing.assert_close(loss, F.cross_entropy(resized, targets))


# -- several processes -------------------------------------------------------------------------------------------------


def work(kind: str) -> None:
    """In one of two processes: the gradients of half a batch, averaged, are those of the whole batch in one."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    alone = Net().double()
    model = copy.deepcopy(alone)
    x, y = batch(40)
    x = x.double()
    if kind == "DDP":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        if kind == "sharded head":
            fully_shard(model.fc)
        fully_shard(model)
    criterion = ISDALoss.attach(model, 0.5, 1)
    mine = slice(rank * 20, rank * 20 + 20)
    logits = model(x[mine])
    if kind == "sharded head":
        with pytest.raises(ValueError, match="sharded outside of its forward pass"):
            criterion(logits, y[mine])
        assert criterion.covariance.count.sum() == 0
    elif kind == "DDP":
        for part in (torch.arange(0, 7), torch.arange(7, 20)):
            criterion(logits[part], y[mine][part]).backward(retain_graph=True)
    else:
        criterion(logits, y[mine], strength=0.5).backward()
        by_hand = ISDALoss(CLASSES, 8, 0.5, 1, dtype=torch.float64)
        by_hand.covariance.load_state_dict(criterion.covariance.state_dict())
        augmented = by_hand.augmented_logits(alone(x), y, weight=alone.fc.weight, strength=0.5)
        F.cross_entropy(augmented, y).backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad.full_tensor(), alone.get_parameter(name).grad)
    if kind != "sharded head":
        assert criterion.covariance.count.tolist() == torch.bincount(y, minlength=3).tolist()
    dist.barrier()
    dist.destroy_process_group()


def test_a_model_that_has_diverged_is_not_taken_for_one_that_is_not_linear():
    model, (x, y) = Net(), batch()
    criterion = ISDALoss.attach(model, 0.5, 10)
    with pytest.raises(ValueError, match="features must be finite"):
        criterion(model(x * torch.inf), y)


@pytest.mark.parametrize("kind", ["DDP", "FSDP2", "sharded head"])
def test_two_processes(kind):
    from many_processes import side_by_side

    side_by_side(2, Path(__file__), kind)


if __name__ == "__main__":
    assert "RANK" in os.environ
    work(sys.argv[1])
