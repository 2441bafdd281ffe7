"""The strength schedule, and everything that has to survive saving, copying and moving a criterion."""

import copy
import io

import pytest
import torch
from loss_oracles import COVARIANCES, assert_same_state, normal, state_of
from torch import nn

import pretend_accelerator
from isda import ISDALoss
from isda.losses.schedule import DEFAULT_STEPS

CLASSES, DIM, ROWS = 3, 4, 8


def batch(seed, dtype=torch.float32):
    features = normal(ROWS, DIM, seed=seed, dtype=dtype)
    weight = normal(CLASSES, DIM, seed=99, dtype=dtype)
    targets = torch.randint(0, CLASSES, (ROWS,), generator=torch.Generator().manual_seed(seed))
    return features @ weight.t(), targets, {"features": features, "weight": weight}


def step(criterion, seed, **arguments):
    logits, targets, others = batch(seed)
    return criterion(logits, targets, **others, **arguments)


def test_strength_grows_linearly_and_stops_at_lambda_0():
    criterion = ISDALoss(CLASSES, DIM, lambda_0=0.8, total_steps=4)
    seen = []
    for seed in range(7):
        seen.append(criterion.strength)
        step(criterion, seed)
    assert seen == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    assert criterion.step == 4
    assert isinstance(criterion.strength, float)


def test_a_forward_uses_the_strength_and_then_advances():
    criterion = ISDALoss(CLASSES, DIM, lambda_0=0.8, total_steps=4)
    for t in range(6):
        twin = copy.deepcopy(criterion)
        explicit = step(twin, seed=t, strength=0.8 * min(t, 4) / 4)
        assert torch.equal(step(criterion, seed=t), explicit)


def test_the_first_loss_of_a_schedule_is_plain_cross_entropy():
    logits, targets, others = batch(0)
    loss = ISDALoss(CLASSES, DIM, lambda_0=0.8, total_steps=4)(logits, targets, **others)
    assert torch.equal(loss, nn.CrossEntropyLoss()(logits, targets))


def test_the_loss_uses_the_features_of_its_own_batch():
    logits, targets, others = batch(0)
    criterion = ISDALoss(CLASSES, DIM, lambda_0=0.8, schedule="constant")
    first = criterion(logits, targets, **others)
    assert first > nn.CrossEntropyLoss()(logits, targets)


def test_a_constant_strength_has_to_be_asked_for():
    criterion = ISDALoss(CLASSES, DIM, lambda_0=0.3, schedule="constant")
    for seed in range(3):
        assert criterion.strength == 0.3
        step(criterion, seed)


def test_advance_every_counts_accumulated_forwards_as_one_step():
    criterion = ISDALoss(CLASSES, DIM, lambda_0=1.0, total_steps=4)
    criterion.advance_every = 3
    seen = []
    for seed in range(8):
        seen.append(criterion.step)
        step(criterion, seed)
    assert seen == [0, 0, 0, 1, 1, 1, 2, 2]


def test_an_explicit_strength_does_not_move_the_schedule():
    criterion = ISDALoss(CLASSES, DIM, lambda_0=1.0, total_steps=10)
    criterion.advance_every = 2
    step(criterion, 0)
    before = state_of(criterion.schedule)
    step(criterion, 1, strength=0.4)
    assert_same_state(criterion.schedule, before)
    assert criterion.covariance.count.sum() == 2 * ROWS


def test_eval_does_not_move_the_schedule():
    criterion = ISDALoss(CLASSES, DIM, lambda_0=1.0, total_steps=10).eval()
    step(criterion, 0)
    assert criterion.step == 0


def test_setting_the_step_by_hand_sets_the_strength():
    criterion = ISDALoss(CLASSES, DIM, lambda_0=1.0, total_steps=10)
    assert criterion.strength == 0
    criterion.schedule.step.fill_(5)
    assert criterion.strength == 0.5


def test_state_dict_holds_statistics_and_step():
    criterion = ISDALoss(CLASSES, DIM, lambda_0=1.0, total_steps=10)
    step(criterion, 0)
    state = criterion.state_dict()
    assert state["schedule.step"].item() == 1
    assert state["covariance.count"].sum() == ROWS
    assert state["covariance.scatter"].shape == (CLASSES, DIM, DIM)


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_a_loaded_state_dict_resumes_to_the_bit(covariance, bound):
    def make():
        criterion = ISDALoss(CLASSES, DIM, lambda_0=1.0, total_steps=5, covariance=covariance, bound=bound)
        criterion.advance_every = 2
        return criterion

    whole = make()
    expected = [step(whole, seed) for seed in range(8)]
    first = make()
    losses = [step(first, seed) for seed in range(3)]
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = make()
    second.load_state_dict(torch.load(file))
    losses += [step(second, seed) for seed in range(3, 8)]
    assert all(torch.equal(*pair) for pair in zip(losses, expected, strict=True))
    assert_same_state(second, state_of(whole))


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_deepcopy_goes_its_own_way_from_the_same_point(covariance):
    criterion = ISDALoss(CLASSES, DIM, lambda_0=1.0, total_steps=5, covariance=covariance)
    step(criterion, 0)
    step(criterion, 1)
    twin = copy.deepcopy(criterion)
    before = state_of(criterion)
    loss = step(twin, 2)
    assert_same_state(criterion, before)
    assert torch.equal(step(criterion, 2), loss)
    assert_same_state(twin, state_of(criterion))


def test_a_pickled_criterion_goes_on_to_the_bit():
    criterion = ISDALoss(CLASSES, DIM, lambda_0=1.0, total_steps=5, bound="tilted")
    step(criterion, 0)
    step(criterion, 1)
    file = io.BytesIO()
    torch.save(criterion, file)
    file.seek(0)
    twin = torch.load(file, weights_only=False)
    assert torch.equal(step(twin, 2), step(criterion, 2))


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_to_float64_keeps_what_was_learned(covariance):
    class_weight = torch.tensor([1.0, 2.0, 0.5])
    criterion = ISDALoss(CLASSES, DIM, 1.0, 5, covariance=covariance, class_weight=class_weight)
    step(criterion, 0)
    step(criterion, 1)
    before = state_of(criterion)
    criterion.to(torch.float64)
    after = criterion.state_dict()
    assert criterion.covariance.dtype == torch.float64
    assert all(torch.equal(after[name], value.to(after[name].dtype)) for name, value in before.items())
    assert criterion.step == 2
    logits, targets, others = batch(2, torch.float64)
    assert criterion(logits, targets, **others).dtype == torch.float64


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_leaves_the_statistics_in_float32(covariance, dtype):
    criterion = ISDALoss(CLASSES, DIM, 1.0, 5, covariance=covariance)
    step(criterion, 0)
    before = state_of(criterion)
    criterion.to(dtype)
    assert_same_state(criterion, before)


# -- somebody else drives ------------------------------------------------------------------------------------------


def test_set_step_reaches_lambda_0_with_a_partial_last_window():
    batches, window = 10, 4
    criterion = ISDALoss(CLASSES, DIM, lambda_0=0.5, total_steps=3)
    criterion.set_step(0)
    seen, done = [], 0
    for seed in range(batches):
        seen.append(criterion.strength)
        step(criterion, seed)
        if (seed + 1) % window == 0 or seed + 1 == batches:
            done += 1
            criterion.set_step(done)
    assert seen == pytest.approx([0.0] * 4 + [0.5 / 3] * 4 + [1.0 / 3] * 2)
    assert criterion.strength == 0.5


def test_a_driven_schedule_stays_driven_in_a_state_dict_until_advance_every_is_set():
    criterion = ISDALoss(CLASSES, DIM, lambda_0=1.0, total_steps=10)
    step(criterion, 0)
    criterion.set_step(4)
    resumed = ISDALoss(CLASSES, DIM, lambda_0=1.0, total_steps=10)
    resumed.load_state_dict(criterion.state_dict())
    for driven in (criterion, resumed, copy.deepcopy(criterion)):
        step(driven, 1)
        assert driven.step == 4
        driven.advance_every = 2
        step(driven, 2)
        assert driven.step == 4
        step(driven, 3)
        assert driven.step == 5


def test_set_step_stops_at_lambda_0():
    criterion = ISDALoss(CLASSES, DIM, lambda_0=0.5, total_steps=3)
    criterion.set_step(7)
    assert criterion.strength == 0.5


@pytest.mark.parametrize("value", [-1, 1.5, float("nan"), float("inf")])
def test_set_step_refuses_what_is_no_number_of_steps(value):
    criterion = ISDALoss(CLASSES, DIM, lambda_0=1.0, total_steps=10)
    before = state_of(criterion)
    with pytest.raises(ValueError, match="step must be an integer >= 0, got"):
        criterion.set_step(value)
    assert_same_state(criterion, before)


def test_total_steps_can_be_read_and_set():
    criterion = ISDALoss(CLASSES, DIM, lambda_0=1.0, total_steps=10)
    assert criterion.total_steps == 10
    step(criterion, 0)
    criterion.total_steps = 4
    assert (criterion.total_steps, criterion.strength) == (4, 0.25)
    criterion.total_steps = None
    assert criterion.strength == 1 / DEFAULT_STEPS
    for value in (0, -3, 2.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="total_steps must be a positive integer or None, got"):
            criterion.total_steps = value
    assert criterion.total_steps is None


def overwrite(how, criterion, value):
    """Somebody else writes the step."""
    schedule, there = criterion.schedule, criterion.schedule.step.device
    new = torch.full((), value, dtype=torch.int64, device=there)
    if how == "copy_":
        schedule.step.copy_(new)
    elif how == "detached copy_":  # torch.optim.swa_utils.AveragedModel
        schedule.step.detach().copy_(new)
    elif how == "load_state_dict":
        criterion.load_state_dict(criterion.state_dict() | {"schedule.step": new})
    elif how == "assign":
        criterion.load_state_dict(criterion.state_dict() | {"schedule.step": new}, assign=True)
    elif how == "foreach":
        torch._foreach_copy_([schedule.step], [new])
    else:
        del schedule.step  # the new tensor may take the place of the old one in memory
        schedule.register_buffer("step", torch.full((), value, dtype=torch.int64, device=there))


WRITERS = ["copy_", "detached copy_", "load_state_dict", "assign", "replaced"]


@pytest.mark.parametrize("how", [*WRITERS, "foreach"])
def test_a_step_that_somebody_else_wrote_is_never_stale(how):
    criterion = ISDALoss(CLASSES, DIM, lambda_0=1.0, total_steps=10)
    for value in (5, 3, 8):
        overwrite(how, criterion, value)
        assert criterion.strength == value / 10


def test_a_step_written_past_autograd_is_never_stale():
    criterion = ISDALoss(CLASSES, DIM, lambda_0=1.0, total_steps=10)
    step(criterion, 0)
    criterion.schedule.step.data.fill_(7)
    assert criterion.strength == 0.7
    criterion.schedule.step.numpy()[...] = 4
    assert criterion.strength == 0.4


@pytest.mark.skipif(not pretend_accelerator.AVAILABLE, reason="torch cannot register a device in Python")
@pytest.mark.parametrize("how", WRITERS)  # the pretend device, unlike real ones, counts no versions for foreach
def test_a_step_that_somebody_else_wrote_is_never_stale_off_the_cpu(how):
    with pretend_accelerator.PretendAccelerator():
        criterion = ISDALoss(CLASSES, DIM, lambda_0=1.0, total_steps=10, device="pretend")
        for value in (5, 3, 8):
            overwrite(how, criterion, value)
            assert criterion.strength == value / 10


@pytest.mark.skipif(not pretend_accelerator.AVAILABLE, reason="torch cannot register a device in Python")
def test_a_driven_schedule_asks_the_device_for_nothing():
    with pretend_accelerator.PretendAccelerator() as device:
        criterion = ISDALoss(CLASSES, DIM, lambda_0=1.0, total_steps=10, device="pretend")
        for done in range(4):
            criterion.set_step(done)
            criterion.schedule.advance()
            assert criterion.strength == done / 10
        assert device.waits == []
