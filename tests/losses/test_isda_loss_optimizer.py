"""The schedule follows the steps of an optimizer, and what fails without an error is warned about."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn

import pretend_accelerator
from isda import ISDALoss
from isda.losses.schedule import DEFAULT_STEPS

C, A, N = 3, 8, 12


def problem(**settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, A), nn.ReLU(), nn.Linear(A, C))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, ISDALoss.attach(model, lambda_0=0.5, **{"optimizer": optimizer, **settings})


def batch(seed=0, size=N):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 4, generator=generator), torch.arange(size) % C


def call(model, criterion, seed=0):
    x, y = batch(seed)
    criterion(model(x), y).backward()


def accumulate(model, optimizer, criterion, batches=10, window=4, epochs=1):
    """Gradient accumulation with a short last window; returns the strengths that the forwards used."""
    used = []
    for _ in range(epochs):
        for index in range(batches):
            used.append(criterion.strength)
            call(model, criterion, index)
            if (index + 1) % window == 0 or index + 1 == batches:
                optimizer.step()
                optimizer.zero_grad()
    return used


# -- who counts ------------------------------------------------------------------------------------------------------


def test_accumulation_over_ten_batches_ends_at_lambda_0():
    """With advance_every=4 it ended at 0.417."""
    model, optimizer, criterion = problem(total_steps=3 * 10)
    accumulate(model, optimizer, criterion, epochs=10)
    assert criterion.strength == 0.5


def test_batches_of_a_loader_are_counted_when_the_optimizer_steps():
    model, optimizer, criterion = problem(epochs=1, loader=range(10))
    used = accumulate(model, optimizer, criterion)
    assert criterion.total_steps == 10
    assert used == pytest.approx([0] * 4 + [0.5 * 4 / 10] * 4 + [0.5 * 8 / 10] * 2)
    assert criterion.strength == 0.5


def test_epochs_and_a_loader_work_without_an_optimizer():
    model, _, criterion = problem(optimizer=None, epochs=2, loader=range(3))
    for _ in range(6):
        call(model, criterion)
    assert (criterion.total_steps, criterion.strength) == (6, 0.5)


def test_a_step_that_a_grad_scaler_skips_is_not_counted():
    model, optimizer, criterion = problem(total_steps=10)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for scale in (1.0, float("inf"), 1.0):
        x, y = batch()
        scaler.scale(criterion(model(x), y) * scale).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert criterion.step == 2


def test_a_wrapped_optimizer_is_unwrapped():
    class Wrapper:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    model, optimizer, _ = problem(total_steps=10)
    criterion = ISDALoss.attach(model, lambda_0=0.5, total_steps=10, optimizer=Wrapper(optimizer))
    optimizer.step()
    assert criterion.step == 1


def test_a_criterion_by_hand_follows_an_optimizer():
    head = nn.Linear(A, C)
    optimizer = torch.optim.Adam(head.parameters())
    criterion = ISDALoss(C, A, total_steps=4)
    criterion.follow(optimizer)
    for _ in range(6):
        optimizer.step()
    assert (criterion.step, criterion.strength) == (4, 0.5)


@pytest.mark.parametrize("how", [{"total_steps": 6}, {"epochs": 1, "loader": range(10)}])
def test_a_resumed_criterion_goes_on_where_it_stopped(how):
    whole = accumulate(*problem(**how), batches=10, window=3)
    model, optimizer, criterion = problem(**how)
    first = accumulate(model, optimizer, criterion, batches=6, window=3)
    state = pickle.loads(pickle.dumps(criterion.state_dict()))
    model, optimizer, criterion = problem(**how)
    criterion.load_state_dict(state)
    rest = []
    for index in range(6, 10):
        rest.append(criterion.strength)
        call(model, criterion, index)
        if (index + 1) % 3 == 0 or index == 9:
            optimizer.step()
    assert first + rest == pytest.approx(whole)


def test_detach_removes_the_hook_and_copies_follow_nothing():
    _model, optimizer, criterion = problem(total_steps=10)
    twin = copy.deepcopy(criterion)
    again = pickle.loads(pickle.dumps(optimizer))
    assert not again._optimizer_step_post_hooks
    optimizer.step()
    assert (criterion.step, twin.step) == (1, 0)
    criterion.detach()
    assert not optimizer._optimizer_step_post_hooks
    optimizer.step()
    assert criterion.step == 1


def test_a_criterion_that_is_gone_leaves_the_optimizer_working():
    _model, optimizer, criterion = problem(total_steps=10)
    del criterion
    optimizer.step()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "sgd"}, r"optimizer must be a torch\.optim\.Optimizer, got str"),
        ({"epochs": 2}, "epochs and loader must be given together"),
        ({"loader": range(3)}, "epochs and loader must be given together"),
        ({"epochs": 0, "loader": range(3)}, "epochs must be"),
        ({"epochs": 1, "loader": iter(range(3))}, "loader must have a length, got range_iterator"),
        ({"epochs": 1, "loader": []}, "loader must have at least one batch"),
        ({"epochs": 1, "loader": range(3), "total_steps": 3}, "total_steps must not be given with epochs and loader"),
        ({"schedule": "constant", "total_steps": 3}, "total_steps must not be given with schedule='constant'"),
        ({"schedule": "cosine"}, "schedule must be one of linear, constant, got 'cosine'"),
    ],
)
def test_what_contradicts_itself_is_refused_and_the_model_is_left_alone(settings, message):
    model = nn.Sequential(nn.Linear(4, A), nn.Linear(A, C))
    with pytest.raises(ValueError, match=message):
        ISDALoss.attach(model, lambda_0=0.5, **settings)
    assert not model[-1]._forward_hooks


def test_advance_every_is_refused_beside_an_optimizer():
    criterion = problem(total_steps=10)[2]
    with pytest.raises(ValueError, match="advance_every must not be set where an optimizer drives"):
        criterion.advance_every = 4


@pytest.mark.skipif(not pretend_accelerator.AVAILABLE, reason="torch cannot register a device in Python")
@pytest.mark.parametrize("how", [{"total_steps": 6}, {"epochs": 1, "loader": range(10)}])
def test_following_an_optimizer_does_not_make_a_device_wait(how):
    with pretend_accelerator.PretendAccelerator() as device:
        model = nn.Sequential(nn.Linear(4, A), nn.ReLU(), nn.Linear(A, C)).to("pretend")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        criterion = ISDALoss.attach(model, lambda_0=0.5, optimizer=optimizer, **how)
        x, y = (part.to("pretend") for part in batch())
        for index in range(6):
            if index == 1:
                device.waits.clear()
            criterion(model(x), y).backward()
            optimizer.step()
        assert criterion.strength > 0
        assert device.waits == []


# -- total_steps left out --------------------------------------------------------------------------------------------


def test_without_total_steps_the_strength_grows_over_a_stated_number_of_steps_with_one_warning():
    model, _, criterion = problem(optimizer=None)
    with pytest.warns(UserWarning, match="total_steps was not given, so the strength grows from 0 .* 10,000 steps"):
        call(model, criterion)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(model, criterion)
    assert criterion.strength == pytest.approx(0.5 * 2 / DEFAULT_STEPS)


@pytest.mark.parametrize("settings", [{"lambda_0": 0}, {"schedule": "constant"}, {"total_steps": 5}])
def test_who_has_said_it_is_not_warned(settings):
    model, _, _ = problem(optimizer=None)
    criterion = ISDALoss.attach(model, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(model, criterion)
        criterion(model(batch()[0]), batch()[1], strength=0.3)


# -- traps -----------------------------------------------------------------------------------------------------------


def test_an_attached_criterion_left_in_eval_mode_is_warned_about_once():
    model, _optimizer, criterion = problem(total_steps=10)
    criterion.eval()
    with pytest.warns(UserWarning, match="the criterion is in eval mode while the network trains"):
        call(model, criterion)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(model, criterion)
        model.eval()
        with torch.no_grad():
            criterion(model(batch()[0]), batch()[1])


def test_a_criterion_by_hand_left_in_eval_mode_is_warned_about_after_a_few_steps():
    head = nn.Linear(A, C)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    criterion, features = ISDALoss(C, A, total_steps=10).eval(), torch.randn(N, A)

    def step():
        criterion(head(features), batch()[1], features=features, weight=head.weight).backward()
        optimizer.step()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            step()
    with pytest.warns(UserWarning, match="the criterion is in eval mode while the network trains"):
        step()


def test_evaluating_with_gradients_between_epochs_is_no_reason_to_warn():
    head = nn.Linear(A, C)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    criterion, features = ISDALoss(C, A, total_steps=50), torch.randn(N, A)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            criterion.train()
            criterion(head(features), batch()[1], features=features, weight=head.weight).backward()
            optimizer.step()
            criterion.eval()
            for _ in range(4):
                criterion(head(features), batch()[1])


def evaluate(model, criterion):
    model.eval()
    with torch.no_grad():
        criterion(model(batch()[0]), batch()[1])
    model.train()


def test_a_strength_of_zero_at_the_end_of_an_epoch_is_warned_about():
    """An optimizer that never steps, or a step that is set once."""
    model, _, criterion = problem(total_steps=10)
    call(model, criterion)
    with pytest.warns(UserWarning, match="the strength is still 0 after 1 training calls"):
        evaluate(model, criterion)
    model, _, criterion = problem(optimizer=None, total_steps=10)
    criterion.set_step(0)
    call(model, criterion)
    with pytest.warns(UserWarning, match="the strength is still 0"):
        criterion.eval()


def test_auto_that_is_never_matched_is_warned_about_in_the_second_epoch():
    model, _, _ = problem(optimizer=None, total_steps=10)
    criterion = ISDALoss.attach(model, lambda_0="auto")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(model, criterion)
        evaluate(model, criterion)
        call(model, criterion)
    with pytest.warns(UserWarning, match="lambda_0='auto' was never matched in 2 epochs"):
        evaluate(model, criterion)


def test_an_epoch_that_ends_within_a_window_is_warned_about():
    model, _, criterion = problem(optimizer=None, total_steps=10)
    criterion.advance_every = 4
    for index in range(10):
        call(model, criterion, index)
    with pytest.warns(UserWarning, match="an epoch ended in the middle of a window of advance_every=4"):
        evaluate(model, criterion)


@pytest.mark.parametrize(
    ("covariance", "warned"),
    [("full", True), ("diagonal", True), ("within", False), ("shared", False), ("shrunk", False)],
)
def test_classes_with_fewer_than_two_samples_are_counted(covariance, warned):
    model, _, criterion = problem(optimizer=None, total_steps=10, covariance=covariance)
    x, _ = batch(size=5)
    criterion(model(x), torch.tensor([0, 0, 0, 0, 1])).backward()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        evaluate(model, criterion)
        evaluate(model, criterion)
    messages = [str(warning.message) for warning in caught]
    assert [message.startswith("2 of 3 classes have fewer than two samples") for message in messages] == [True] * warned
