"""ISDALoss inside training loops: activation checkpointing, accumulation, autocast, low precision, sharded heads."""

import copy
import textwrap
import warnings
from contextlib import nullcontext

import pytest
import torch
from loss_oracles import COVARIANCES, assert_same_state, normal, state_of
from torch import nn
from torch.utils.checkpoint import checkpoint

from isda import ISDALoss
from isda.functional import grouping as workspace
from many_processes import side_by_side

CLASSES, DIM, ROWS = 4, 6, 12


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, DIM), nn.Tanh())
        self.fc = nn.Linear(DIM, CLASSES)

    def forward(self, x):
        return self.fc(self.body(x))


def net():
    torch.manual_seed(0)
    return Net()


def data(seed=1):
    x = normal(ROWS, 5, seed=seed, dtype=torch.float32)
    return x, torch.arange(ROWS) % CLASSES


def loss_of(model, criterion, x, targets, **arguments):
    features = model.body(x)
    return criterion(model.fc(features), targets, features=features, weight=model.fc.weight, **arguments)


def gradients(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def assert_same_gradients(model, expected, **tolerance):
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], **tolerance)


# -- activation checkpointing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("bound", ["jensen", "tilted"])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_checkpointing_counts_once_and_gives_the_same_gradients(covariance, bound, use_reentrant):
    results = []
    for checkpointed in (False, True):
        model = net()
        criterion = ISDALoss(CLASSES, DIM, 1.0, total_steps=4, covariance=covariance, bound=bound)
        losses = []
        for seed in range(3):
            x, targets = data(seed)
            if checkpointed:
                x.requires_grad_()
                loss = checkpoint(loss_of, model, criterion, x, targets, use_reentrant=use_reentrant)
            else:
                loss = loss_of(model, criterion, x, targets)
            loss.backward()
            losses.append(loss.detach())
        assert criterion.step == 3
        assert criterion.covariance.count.sum() == 3 * ROWS
        results.append((losses, gradients(model), state_of(criterion)))
    (plain_losses, plain_grads, plain_state), (losses, grads, state) = results
    assert all(torch.equal(*pair) for pair in zip(losses, plain_losses, strict=True))
    assert all(torch.equal(grads[name], plain_grads[name]) for name in grads)
    assert all(torch.equal(state[name], plain_state[name]) for name in state)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("within", ["criterion within", "model only"])
def test_checkpointing_with_an_attached_criterion(use_reentrant, within):
    x, targets = data()
    reference = net()
    criterion = ISDALoss.attach(reference, 1.0, schedule="constant")
    expected = criterion(reference(x), targets)
    expected.backward()
    model = net()
    attached = ISDALoss.attach(model, 1.0, schedule="constant")
    x = x.clone().requires_grad_()
    if within == "criterion within":
        loss = checkpoint(lambda x: attached(model(x), targets), x, use_reentrant=use_reentrant)
    else:
        loss = attached(checkpoint(model, x, use_reentrant=use_reentrant), targets)
    loss.backward()
    assert torch.equal(loss, expected)
    assert_same_gradients(model, gradients(reference), rtol=0, atol=0)
    assert_same_state(attached, state_of(criterion))


# -- several forwards ----------------------------------------------------------------------------------------------


def test_gradient_accumulation_adds_up_the_gradients_of_its_parts():
    model, criterion = net(), ISDALoss(CLASSES, DIM, 1.0, total_steps=10)
    criterion.schedule.step.fill_(5)
    criterion.advance_every = 2
    parts = [data(1), data(2)]
    expected = None
    twin = copy.deepcopy(criterion)
    for x, targets in parts:
        fresh = net()
        loss_of(fresh, twin, x, targets, strength=0.5).backward()
        grads = gradients(fresh)
        expected = grads if expected is None else {name: expected[name] + grads[name] for name in grads}
    for x, targets in parts:
        loss_of(model, criterion, x, targets).backward()
    assert criterion.step == 6
    assert_same_gradients(model, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_two_forwards_and_one_backward_equal_two_backwards(covariance, bound):
    separate, together = net(), net()
    one = ISDALoss(CLASSES, DIM, 1.0, covariance=covariance, bound=bound, schedule="constant")
    two = ISDALoss(CLASSES, DIM, 1.0, covariance=covariance, bound=bound, schedule="constant")
    for seed in (1, 2):
        loss_of(separate, one, *data(seed)).backward()
    (loss_of(together, two, *data(1)) + loss_of(together, two, *data(2))).backward()
    assert_same_gradients(together, gradients(separate), rtol=1e-5, atol=1e-7)


def test_two_forwards_and_one_tilted_backward_with_more_classes_than_features():
    weight = normal(9, 3, seed=0, dtype=torch.float32).requires_grad_()
    batches = [(normal(12, 3, seed=seed, dtype=torch.float32), torch.arange(12) % 9) for seed in (1, 2)]
    gradients = []
    for together in (True, False):
        criterion = ISDALoss(9, 3, 1.0, bound="tilted", schedule="constant")
        assert not criterion.covariance.prefers_gram(12, 9)
        losses = (criterion(x @ weight.t(), y, features=x, weight=weight) for x, y in batches)
        parts = [sum(losses)] if together else losses
        gradients.append(sum(torch.autograd.grad(part, weight)[0] for part in parts))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-7)


def test_statistics_that_moved_before_a_recomputing_backward_are_refused(monkeypatch):
    monkeypatch.setattr("isda.functional.quadratic.WORKSPACE_BYTES", 64)
    model, criterion = net(), ISDALoss(CLASSES, DIM, 1.0, schedule="constant")
    first = loss_of(model, criterion, *data(1))
    loss_of(model, criterion, *data(2)).backward()
    with pytest.raises(RuntimeError, match="statistics were updated between a forward pass and its backward pass"):
        first.backward()


def sharpness_aware(criterion, model, batches, optimiser, *, held=False, second_pass=True):
    """Sharpness-aware minimisation as it is usually written: the weights move up, a second pass, back, a step."""
    for x, y in batches:
        optimiser.zero_grad()
        criterion(model(x), y).backward()
        if second_pass:
            moves = [0.05 * parameter.grad for parameter in model.parameters()]
            with torch.no_grad():
                for parameter, move in zip(model.parameters(), moves, strict=True):
                    parameter.add_(move)
            optimiser.zero_grad()
            with criterion.held() if held else nullcontext():
                criterion(model(x), y).backward()
            with torch.no_grad():
                for parameter, move in zip(model.parameters(), moves, strict=True):
                    parameter.sub_(move)
        optimiser.step()


@pytest.mark.any_device
@pytest.mark.parametrize("fixed", [False, True])  # one batch again and again, and new ones
def test_a_second_pass_that_counts_again_is_warned_of_once(fixed):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    criterion, optimiser = ISDALoss.attach(model, schedule="constant"), torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.randn(6, 4), torch.arange(6) % 3) for _ in range(1 if fixed else 4)] * (4 if fixed else 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sharpness_aware(criterion, model, batches, optimiser, second_pass=False)
        sharpness_aware(criterion, model, batches, optimiser, held=True)
    with pytest.warns(UserWarning, match=r"count the same batch twice.*with criterion\.held\(\)") as seen:
        sharpness_aware(criterion, model, batches, optimiser)
    assert len(seen) == 1
    assert seen[0].filename == __file__


def test_weights_that_are_moved_by_hand_and_passes_over_two_views_are_not_warned_of():
    model, y = nn.Linear(4, 3), torch.arange(6) % 3
    criterion, x = ISDALoss.attach(model, schedule="constant"), torch.randn(6, 4)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            criterion(model(x), y).backward()
            with torch.no_grad():
                model.weight.sub_(0.1 * model.weight.grad)
        for _ in range(3):
            (criterion(model(x), y) + criterion(model(x + 1), y)).backward()
            optimiser.step()


def test_closures_that_count_a_batch_at_every_evaluation_are_warned_of():
    model, x, y = nn.Linear(4, 3), torch.randn(12, 4), torch.arange(12) % 3
    criterion, optimiser = (
        ISDALoss.attach(model, schedule="constant"),
        torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3),
    )

    def closure():
        optimiser.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        return loss

    optimiser.step(closure)
    with pytest.warns(UserWarning, match="further evaluations of a closure"):
        optimiser.step(closure)


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_a_training_call_in_inference_mode_spoils_no_later_one(covariance, bound, monkeypatch):
    """Nothing that was made in inference mode is kept for a graph, in this criterion or in another."""
    monkeypatch.setattr(workspace, "_spare", {})
    criterion, other = (ISDALoss(3, 8, 0.5, covariance=covariance, bound=bound, schedule="constant") for _ in range(2))
    weight = normal(3, 8, seed=1).requires_grad_()
    with torch.inference_mode():
        features = normal(24, 8, seed=2)
        criterion(features @ weight.t(), torch.arange(24) % 3, features=features, weight=weight)
    criterion.consistency(normal(6, 3, seed=3), weight=weight).backward()
    for later in (criterion, other):
        features = normal(12, 8, seed=4)
        later(features @ weight.t(), torch.arange(12) % 3, features=features, weight=weight).backward()
    assert criterion.covariance.count.tolist() == [12, 12, 12]


def test_no_graph_is_kept_between_calls():
    model, criterion = net(), ISDALoss(CLASSES, DIM, 1.0, schedule="constant")
    loss_of(model, criterion, *data(1)).backward()
    assert all(buffer.grad_fn is None and not buffer.requires_grad for buffer in criterion.buffers())


def test_training_with_the_criterion_lowers_the_loss():
    model, criterion = net(), ISDALoss(CLASSES, DIM, 0.5, total_steps=40)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    x, targets = data()
    losses = []
    for _ in range(40):
        optimiser.zero_grad()
        loss = loss_of(model, criterion, x, targets)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


# -- low precision -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_bfloat16_autocast_gives_a_float32_loss_close_to_float32(covariance, bound):
    x, targets = data()
    settings = {"covariance": covariance, "bound": bound}
    expected = loss_of(net(), ISDALoss(CLASSES, DIM, 1.0, schedule="constant", **settings), x, targets)
    model, criterion = net(), ISDALoss(CLASSES, DIM, 1.0, schedule="constant", **settings)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(model, criterion, x, targets)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=2e-2)
    assert all(b.dtype in (torch.float32, torch.int64) for b in criterion.covariance.buffers())
    assert all(p.grad.isfinite().all() and p.grad.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_under_autocast_only_the_inputs_are_rounded(covariance, bound):
    logits = normal(ROWS, CLASSES, seed=2, dtype=torch.bfloat16)
    features = normal(ROWS, DIM, seed=1, dtype=torch.bfloat16)
    weight = normal(CLASSES, DIM, seed=3, dtype=torch.float32)
    targets = torch.arange(ROWS) % CLASSES
    values = []
    for autocast in (True, False):
        if not autocast:
            logits, features, weight = logits.double(), features.double(), weight.double()
        criterion = ISDALoss(
            CLASSES, DIM, 0.5, covariance=covariance, bound=bound, dtype=weight.dtype, schedule="constant"
        )
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = criterion(logits, targets, features=features, weight=weight)
            augmented = criterion.augmented_logits(logits, targets, weight=weight)
            unlabelled = criterion.consistency(logits, weight=weight)
        assert {loss.dtype, augmented.dtype, unlabelled.dtype} == {weight.dtype}
        values.append([loss, torch.logsumexp(augmented, 1).mean(), unlabelled])
    for single, double in zip(*values, strict=True):
        assert single.item() == pytest.approx(double.item(), rel=1e-5)


def test_a_bfloat16_model_gets_bfloat16_gradients_from_a_float32_loss():
    x, targets = data()
    expected = loss_of(net(), ISDALoss(CLASSES, DIM, 1.0, schedule="constant"), x, targets)
    model, criterion = net().to(torch.bfloat16), ISDALoss(CLASSES, DIM, 1.0, schedule="constant")
    loss = loss_of(model, criterion, x.to(torch.bfloat16), targets)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=5e-2)
    assert model.fc.weight.grad.dtype == torch.bfloat16
    assert criterion.covariance.scatter.dtype == torch.float32


# -- sharded heads -------------------------------------------------------------------------------------------------

SHARDED = """
    import os
    import sys
    from pathlib import Path

    import torch
    import torch.distributed as dist
    from torch import nn
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # before torch 2.6 it works with CUDA alone
        fully_shard = None
    try:
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
    except ImportError:  # torch 2.4
        from torch.distributed._tensor import Replicate, Shard, distribute_tensor, init_device_mesh

    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    from isda import ISDALoss

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    features = torch.randn(8, 6, generator=generator, dtype=torch.float64)
    targets = torch.tensor([0, 1, 2, 3, 4, 0, 0, 1])
    mine = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)

    def gradient(weight, logits_of, rows, **settings):
        criterion = ISDALoss(5, 6, 1.0, dtype=torch.float64, schedule="constant", **settings)
        criterion(logits_of(features[rows]), targets[rows], features=features[rows], weight=weight()).backward()
        grad = weight().grad
        return grad.full_tensor() if hasattr(grad, "full_tensor") else grad

    for bound in ("jensen", "tilted"):
        whole = slice(None)
        # What the weight gets through the variances, and through the logits too, in one process with all the rows.
        plain = nn.Parameter(start.clone())
        through_variances = gradient(lambda: plain, lambda x: x @ start.t(), whole, sync=False, bound=bound)
        plain = nn.Parameter(start.clone())
        through_both = gradient(lambda: plain, lambda x: x @ plain.t(), whole, sync=False, bound=bound)
        assert (through_both - through_variances).abs().max() > 1e-2

        for placement in (Shard(0), Shard(1), Replicate()):
            sharded = nn.Parameter(distribute_tensor(start, mesh, [placement]))
            grad = gradient(lambda: sharded, lambda x: x @ start.t(), mine, bound=bound)
            assert (grad - through_variances).abs().max() < 1e-10, (bound, placement)

        for reshard in (True, False) if fully_shard else ():
            head = nn.Linear(6, 5, bias=False, dtype=torch.float64)
            with torch.no_grad():
                head.weight.copy_(start)
            fully_shard(head, mesh=mesh, reshard_after_forward=reshard)
            grad = gradient(lambda: head.weight, head, mine, bound=bound)
            assert (grad - through_both).abs().max() < 1e-10, (bound, reshard)

            attached = nn.Sequential(nn.Identity(), nn.Linear(6, 5, bias=False, dtype=torch.float64))
            with torch.no_grad():
                attached[1].weight.copy_(start)
            fully_shard(attached[1], mesh=mesh, reshard_after_forward=reshard)
            fully_shard(attached, mesh=mesh)
            criterion = ISDALoss.attach(attached, 1.0, bound=bound, schedule="constant")
            criterion(attached(features[mine]), targets[mine]).backward()
            grad = attached[1].weight.grad.full_tensor()
            assert (grad - through_both).abs().max() < 1e-10, (bound, reshard, "attached")
    # A head that is split by tensor parallelism, before and after a criterion is attached, is refused with a sentence.
    for late in (False, True):
        split = nn.Sequential(nn.Identity(), nn.Linear(6, 5, dtype=torch.float64))
        plan = {"1": ColwiseParallel(output_layouts=Replicate(), use_local_output=False)}
        if not late:
            parallelize_module(split, mesh, plan)
        criterion = ISDALoss.attach(split, 1.0, sync=False, schedule="constant")
        if late:
            parallelize_module(split, mesh, plan)
        try:
            split(features)
        except ValueError as error:
            assert "must not be split by tensor parallelism" in str(error), error
        else:
            raise AssertionError("the split head was accepted")
        criterion.detach()
        whole = ISDALoss(5, 6, 1.0, dtype=torch.float64, sync=False)
        logits = split(features)
        try:
            whole(logits, targets, features=features, weight=split[1].weight)
        except ValueError as error:
            assert "logits must be an ordinary tensor, got a DTensor" in str(error), error
        else:
            raise AssertionError("the DTensor was accepted")
        whole(logits.full_tensor(), targets, features=features, weight=split[1].weight).backward()
        assert whole.covariance.count.sum() == 8
    Path(sys.argv[1], f"equal-{dist.get_rank()}").touch()
    dist.barrier()
    os._exit(0)  # taking the process groups of fully_shard down at exit aborts now and then: a joinable thread
"""


def test_sharded_heads_get_the_gradients_of_unsharded_ones(tmp_path):
    script = tmp_path / "sharded.py"
    script.write_text(textwrap.dedent(SHARDED))
    side_by_side(2, script, tmp_path)
    assert sorted(path.name for path in tmp_path.glob("equal-*")) == ["equal-0", "equal-1"]
