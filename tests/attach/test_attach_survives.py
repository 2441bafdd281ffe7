"""An attached criterion stays right through what scripts do: copies, checkpoints, evaluation, several passes."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable

import pytest
import torch
from attach_helpers import CLASSES, FEATURES, SmallNet, assert_same_state, batch, spy, train, twin
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from isda import ISDALoss

# -- several passes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("second", ["with gradients", "without gradients", "in eval mode"])
def test_the_features_are_those_of_the_logits_not_of_the_last_pass(second: str) -> None:
    model, (x, y), (unlabelled, _) = SmallNet(), batch(), batch(seed=1)
    criterion = ISDALoss.attach(model, schedule="constant")
    logits = model(x)
    model.train(second != "in eval mode")
    with torch.set_grad_enabled(second == "with gradients"):
        model(unlabelled)
    model.train()
    expected = twin(criterion)
    loss = criterion(logits, y)
    assert torch.equal(loss, expected(logits, y, features=model.body(x), weight=model.fc.weight))
    assert_same_state(criterion, expected)


def test_two_labelled_batches_can_be_used_in_either_order() -> None:
    model, (x, y), (x2, y2) = SmallNet(), batch(), batch(seed=1)
    criterion = ISDALoss.attach(model, schedule="constant")
    first, second = model(x), model(x2)
    criterion(second, y2)
    criterion(first, y)
    expected = twin(criterion)
    for features, targets in ((model.body(x2), y2), (model.body(x), y)):
        expected(model.fc(features), targets, features=features, weight=model.fc.weight)
    assert_same_state(criterion, expected)


def test_without_gradients_the_features_are_those_of_the_logits() -> None:
    model, (x, y), (x2, _) = SmallNet(), batch(), batch(seed=1)
    criterion = ISDALoss.attach(model, schedule="constant")
    with torch.no_grad():
        logits = model(x)
        model(x2)
        loss = criterion(logits, y)
    expected = twin(criterion)
    assert torch.equal(loss, expected(logits, y, features=model.body(x), weight=model.fc.weight))
    assert_same_state(criterion, expected)


def test_gradient_accumulation_counts_every_batch_once_and_steps_once() -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, lambda_0=1.0, total_steps=2)
    criterion.advance_every = 3
    expected, strengths = twin(criterion), []
    for _ in range(2):
        for part in (slice(0, 4), slice(4, 8), slice(8, 12)):
            strengths.append(criterion.strength)
            logits = model(x[part])
            wanted = expected(
                logits, y[part], features=model.body(x[part]), weight=model.fc.weight, strength=strengths[-1]
            )
            loss = criterion(logits, y[part])
            assert torch.equal(loss, wanted)
            (loss / 3).backward()
    assert strengths == [0, 0, 0, 0.5, 0.5, 0.5]
    assert criterion.strength == 1.0
    assert_same_state(criterion.covariance, expected.covariance)


# -- evaluation --------------------------------------------------------------------------------------------------------


def test_validation_of_an_unchanged_script_is_plain_cross_entropy_and_changes_nothing() -> None:
    model, (x, y), (x2, y2) = SmallNet(), batch(), batch(seed=1)
    criterion = ISDALoss.attach(model, lambda_0=1.0, total_steps=4)

    def validate() -> Tensor:
        model.eval()
        with torch.no_grad():
            loss = criterion(model(x2), y2)
        model.train()
        return loss

    def step() -> Tensor:
        before = copy.deepcopy(criterion.state_dict())
        assert torch.equal(validate(), nn.functional.cross_entropy(model(x2), y2))
        after = criterion.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
        return criterion(model(x), y)

    train(model.parameters(), step, steps=4, lr=0.01)
    assert criterion.step == 4
    assert int(criterion.covariance.count.sum()) == 4 * len(x)


def test_validation_with_gradients_warns_and_changes_nothing() -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, schedule="constant")
    logits = model.eval()(x)
    with pytest.warns(UserWarning, match="classifier is in eval mode") as caught:
        loss = criterion(logits, y)
    assert [warning.filename for warning in caught] == [__file__]
    assert torch.equal(loss, nn.functional.cross_entropy(logits, y))
    assert not any(tensor.any() for tensor in criterion.state_dict().values())


def test_criterion_in_eval_mode_takes_any_logits() -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, schedule="constant").eval()
    logits = 3 * model(x)
    assert torch.equal(criterion(logits, y), nn.functional.cross_entropy(logits, y))


# -- what is kept alive ------------------------------------------------------------------------------------------------


class Watched(SmallNet):
    """Keeps weak references to its features and to the graph behind them."""

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(x)
        self.alive = [weakref.ref(features)]
        if features.grad_fn is not None:
            payload = nn.Parameter(torch.zeros(1))  # dies with the dictionary of the node
            features.grad_fn.metadata["payload"] = payload
            self.alive.append(weakref.ref(payload))
        return self.fc(features)


def test_no_features_and_no_graph_outlive_the_backward_pass() -> None:
    model, (x, y) = Watched(), batch()
    criterion = ISDALoss.attach(model, lambda_0=1.0, schedule="constant")
    gc.disable()  # nothing may depend on the collector of circles
    try:
        loss = criterion(model(x), y)
        assert model.alive[1]() is not None
        loss.backward()
        del loss
        assert [reference() for reference in model.alive] == [None, None]
    finally:
        gc.enable()


def test_a_pass_that_no_criterion_asks_for_is_let_go() -> None:
    model, (x, _) = Watched(), batch()
    ISDALoss.attach(model, schedule="constant")
    logits = model(x)
    assert model.alive[1]() is not None
    del logits
    assert [reference() for reference in model.alive] == [None, None]


def tensors_of(criterion: ISDALoss) -> list[Tensor]:
    (hook,) = criterion._recorder.hooks
    records = [value for value in vars(hook).values() if hasattr(value, "features")]
    return [t for record in records for t in vars(record).values() if isinstance(t, Tensor)]


def test_validation_passes_record_nothing() -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, schedule="constant")
    with torch.no_grad():
        model(x)
    assert tensors_of(criterion)  # without gradients, in training mode, somebody may ask
    criterion(model(x), y)
    assert not tensors_of(criterion)
    model.eval()
    with torch.no_grad():
        model(x)
    with torch.inference_mode():
        model(x)
    assert not tensors_of(criterion)


# -- activation checkpointing ------------------------------------------------------------------------------------------


class Checkpointed(SmallNet):
    """Runs a part of itself again in the backward pass."""

    def __init__(self, part: str, reentrant: bool) -> None:
        super().__init__()
        self.part, self.reentrant = part, reentrant

    def again(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return checkpoint(function, x, use_reentrant=self.reentrant)

    def forward(self, x: Tensor) -> Tensor:
        if self.part == "body":
            return self.fc(self.again(self.body, x))
        if self.part == "head":
            return self.again(self.fc, self.body(x))
        if self.part == "all":
            return self.again(super().forward, x)
        return self.again(lambda x: super(Checkpointed, self).forward(x).view(-1, CLASSES).clone(), x)


@pytest.mark.parametrize("reentrant", [False, True], ids=["", "reentrant"])
@pytest.mark.parametrize("part", ["body", "head", "all", "all and a copy"])
def test_activation_checkpointing_changes_neither_loss_nor_gradients_nor_statistics(part: str, reentrant: bool) -> None:
    model, (x, y) = Checkpointed(part, reentrant), batch()
    reference = SmallNet()
    reference.load_state_dict(model.state_dict())
    criterion = ISDALoss.attach(model, lambda_0=1.0, total_steps=2)
    expected = ISDALoss.attach(reference, lambda_0=1.0, total_steps=2)
    x = x.requires_grad_()  # the reentrant variant needs it
    for _ in range(3):
        loss, wanted = criterion(model(x), y), expected(reference(x), y)
        assert torch.equal(loss, wanted)
        loss.backward()
        wanted.backward()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)
    assert_same_state(criterion, expected)


@pytest.mark.parametrize("reentrant", [False, True], ids=["", "reentrant"])
@pytest.mark.parametrize("part", ["body", "head", "all"])
def test_a_checkpointed_model_may_run_again_before_the_criterion(part: str, reentrant: bool) -> None:
    model, (x, y), (x2, _) = Checkpointed(part, reentrant), batch(), batch(seed=1)
    criterion = ISDALoss.attach(model, schedule="constant")
    logits, _ = model(x.requires_grad_()), model(x2.requires_grad_())
    expected = twin(criterion)
    assert torch.equal(
        criterion(logits, y), expected(logits, y, features=model.body(x).detach(), weight=model.fc.weight)
    )
    assert_same_state(criterion, expected)


@pytest.mark.parametrize("reentrant", [False, True], ids=["", "reentrant"])
def test_the_criterion_itself_may_be_checkpointed(reentrant: bool) -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, lambda_0=1.0, total_steps=2)
    expected = twin(criterion)
    x = x.requires_grad_()
    for _ in range(3):
        loss = checkpoint(lambda x: criterion(model(x), y), x, use_reentrant=reentrant)
        wanted = expected(model(x), y, features=model.body(x), weight=model.fc.weight)
        assert torch.equal(loss, wanted)
        loss.backward()
        ours, model.fc.weight.grad = model.fc.weight.grad, None
        wanted.backward()
        assert torch.equal(ours, model.fc.weight.grad)
        model.zero_grad()
    assert_same_state(criterion, expected)


# -- copies ------------------------------------------------------------------------------------------------------------


def used(model: nn.Module, criterion: ISDALoss) -> Tensor:
    x, y = batch()
    return criterion(model(x), y)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))], ids=["deepcopy", "pickle"]
)
@pytest.mark.parametrize("order", [("model", "criterion"), ("criterion", "model")], ids=" then ".join)
def test_model_and_criterion_copied_together_stay_together(duplicate: Callable, order: tuple[str, str]) -> None:
    model = SmallNet()
    criterion = ISDALoss.attach(model, schedule="constant")
    with torch.no_grad():
        model(batch(seed=1)[0])  # something that waits and must not be copied
    parts = {"model": model, "criterion": criterion}
    copies = duplicate({name: parts[name] for name in order})
    loss = used(copies["model"], copies["criterion"])
    assert not any(tensor.any() for tensor in criterion.state_dict().values())
    assert torch.equal(loss, used(model, criterion))
    assert_same_state(criterion, copies["criterion"])
    with pytest.raises(ValueError, match="a copy of the model needs a criterion of its own"):
        used(model, copies["criterion"])


@pytest.mark.parametrize("average", [copy.deepcopy, AveragedModel], ids=["deepcopy", "AveragedModel"])
def test_a_copy_of_the_model_alone_leaves_the_criterion_with_the_original(average: Callable) -> None:
    model, (x, y), (x2, _) = SmallNet(), batch(), batch(seed=1)
    criterion = ISDALoss.attach(model, schedule="constant")
    model(x)
    ema = average(model)
    logits = model(x)
    ema(x2)
    with torch.no_grad():
        ema.eval()(x2)
    loss, expected = criterion(logits, y), twin(criterion)
    assert torch.equal(loss, expected(logits, y, features=model.body(x), weight=model.fc.weight))
    with pytest.raises(ValueError, match="a copy of the model needs a criterion of its own"):
        criterion(ema.train()(x), y)
    assert ISDALoss.attach(getattr(ema, "module", ema), schedule="constant")(ema(x), y).isfinite()


def test_a_copy_of_the_criterion_alone_needs_features_and_weight() -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, schedule="constant")
    alone = copy.deepcopy(criterion)
    logits = model(x)
    with pytest.raises(ValueError, match="no features were recorded"):
        alone(logits, y)
    by_hand = alone(logits, y, features=model.body(x), weight=model.fc.weight)
    assert torch.equal(by_hand, criterion(logits, y))


def test_exponential_average_follows_training() -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, schedule="constant")
    ema = AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))

    def step() -> Tensor:
        ema.update_parameters(model)
        return criterion(model(x), y)

    losses = train(model.parameters(), step, steps=5, lr=0.05)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("covariance", ["full", "diagonal", "low_rank", "shared"])
def test_state_survives_a_file_that_is_loaded_with_weights_only(covariance: str) -> None:
    model = SmallNet()
    criterion = ISDALoss.attach(model, lambda_0=1.0, total_steps=5, covariance=covariance)
    used(model, criterion).backward()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "criterion": criterion.state_dict()}, file)
    file.seek(0)
    stored = torch.load(file, weights_only=True)
    resumed_model = SmallNet()
    resumed_model.load_state_dict(stored["model"])
    resumed = ISDALoss.attach(resumed_model, lambda_0=1.0, total_steps=5, covariance=covariance)
    resumed.load_state_dict(stored["criterion"])
    assert resumed.strength == criterion.strength == 0.2
    assert torch.equal(used(resumed_model, resumed), used(model, criterion))
    assert_same_state(resumed, criterion)


def test_a_stored_model_works_with_a_criterion_of_its_own() -> None:
    model = SmallNet()
    criterion = ISDALoss.attach(model, schedule="constant")
    expected = used(model, criterion)
    expected.backward()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    stored = torch.load(file, weights_only=False)
    assert torch.equal(used(stored, ISDALoss.attach(stored, schedule="constant")), expected)


# -- torch.compile -----------------------------------------------------------------------------------------------------


@pytest.fixture
def compiler() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


BACKENDS = pytest.mark.parametrize("backend", ["eager", "aot_eager"])


@BACKENDS
@pytest.mark.parametrize("wrapped", [False, True], ids=["attached before", "attached after"])
@pytest.mark.usefixtures("compiler")
def test_compiled_model_trains_like_the_plain_one(backend: str, wrapped: bool) -> None:
    model, (x, y), (x2, y2) = SmallNet(), batch(), batch(seed=1)
    reference = copy.deepcopy(model)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    criterion = ISDALoss.attach(compiled if wrapped else model, lambda_0=1.0, total_steps=4)
    expected = twin(criterion)

    def step() -> Tensor:
        loss = criterion(compiled(x), y)
        compiled.eval()
        with torch.no_grad():
            assert torch.equal(criterion(compiled(x2), y2), nn.functional.cross_entropy(model(x2), y2))
        compiled.train()
        return loss

    def wanted() -> Tensor:
        features = reference.body(x)
        return expected(reference.fc(features), y, features=features, weight=reference.fc.weight)

    ours = train(model.parameters(), step, steps=4, lr=0.05)
    theirs = train(reference.parameters(), wanted, steps=4, lr=0.05)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    torch.testing.assert_close(model.state_dict(), reference.state_dict(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(criterion.state_dict(), expected.state_dict(), rtol=1e-5, atol=1e-6)
    assert not tensors_of(criterion)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs <= 3  # training and evaluation, no recompilation by what was recorded


@BACKENDS
@pytest.mark.usefixtures("compiler")
def test_compiled_model_may_run_again_before_the_criterion(backend: str) -> None:
    model, (x, y), (x2, _) = SmallNet(), batch(), batch(seed=1)
    compiled = torch.compile(model, backend=backend)
    criterion = ISDALoss.attach(compiled, schedule="constant")
    logits, unlabelled = compiled(x), compiled(x2)
    loss, expected = criterion(logits, y), twin(criterion)
    torch.testing.assert_close(
        loss, expected(logits, y, features=model.body(x), weight=model.fc.weight), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(
        criterion.consistency(unlabelled), expected.consistency(unlabelled, weight=model.fc.weight), rtol=1e-6, atol=0
    )
    compiled(x), compiled(x2), compiled(x2)
    logits = compiled(x)
    compiled(x2), compiled(x2)
    with pytest.raises(ValueError, match="no features were recorded"):
        criterion(logits, y)  # too long ago: refused, not guessed


@pytest.mark.usefixtures("compiler")
def test_logits_scaled_where_a_compiled_graph_hides_it_are_refused() -> None:
    class Scaled(SmallNet):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    model, (x, y) = Scaled(), batch()
    compiled = torch.compile(model, backend="aot_eager")
    criterion = ISDALoss.attach(compiled, schedule="constant")
    with pytest.raises(ValueError, match=r"the logits are not W a \+ b.*differ from it by 100%"):
        criterion(compiled(x), y)
    assert not any(tensor.any() for tensor in criterion.state_dict().values())


@pytest.mark.usefixtures("compiler")
def test_one_compiled_call_may_run_the_model_twice() -> None:
    model, (x, y), (x2, y2) = SmallNet(), batch(), batch(seed=1)
    criterion = ISDALoss.attach(model, schedule="constant")
    both = torch.compile(lambda x, x2: (model(x), model(x2)), backend="aot_eager")
    first, second = both(x, x2)
    criterion(second, y2)
    criterion(first, y)
    expected = twin(criterion)
    for features, targets in ((model.body(x2), y2), (model.body(x), y)):
        expected(model.fc(features), targets, features=features, weight=model.fc.weight)
    torch.testing.assert_close(criterion.state_dict(), expected.state_dict(), rtol=1e-6, atol=1e-7)


@pytest.mark.usefixtures("compiler")
def test_a_whole_training_step_may_be_compiled() -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, lambda_0=1.0, total_steps=3)
    expected = twin(criterion)
    step = torch.compile(lambda: criterion(model(x), y), backend="aot_eager")
    for _ in range(3):
        wanted = expected(model(x), y, features=model.body(x), weight=model.fc.weight)
        torch.testing.assert_close(step(), wanted, rtol=1e-6, atol=0)
    assert criterion.step == 3


@pytest.mark.usefixtures("compiler")
def test_compiled_passes_leave_nothing_behind() -> None:
    model, (x, y) = SmallNet(), batch()
    compiled = torch.compile(model, backend="aot_eager")
    criterion = ISDALoss.attach(compiled, schedule="constant")
    gc.disable()
    try:
        for _ in range(2):
            logits = compiled(x)
            graph = weakref.ref(logits.grad_fn)
            loss = criterion(logits, y)
            loss.backward()
            del loss, logits
            assert graph() is None
    finally:
        gc.enable()


# -- layouts -----------------------------------------------------------------------------------------------------------


def test_upsampled_logits_use_the_features_of_the_coarse_pixels() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.ReLU(), nn.Conv2d(6, 4, 1))
    x, y = torch.randn(2, 3, 4, 4), torch.arange(128).reshape(2, 8, 8) % 4
    criterion = ISDALoss.attach(model, schedule="constant")
    with spy(model[2]) as seen:
        logits = nn.functional.interpolate(model(x), size=(8, 8), mode="bilinear")
    expected = twin(criterion)(logits, y, features=seen[0], weight=model[2].weight)
    assert torch.equal(criterion(logits, y), expected)
    assert int(criterion.covariance.count.sum()) == 2 * 4 * 4


def test_autocast_and_casts_in_between_keep_the_features() -> None:
    model, (x, y) = SmallNet(), batch()
    criterion = ISDALoss.attach(model, schedule="constant")
    with torch.autocast("cpu", dtype=torch.bfloat16), spy(model.fc) as seen:
        logits = model(x)
    assert logits.dtype == torch.bfloat16
    loss = criterion(logits.float(), y)
    expected = twin(criterion)(logits.float(), y, features=seen[0], weight=model.fc.weight)
    assert torch.equal(loss, expected)
    assert criterion.covariance.dtype == torch.float32
    assert seen[0].shape == (12, FEATURES)
