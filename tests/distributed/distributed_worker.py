"""The cases that every process of the distributed tests runs; as a script, one process: FOLDER.

Each case is a function of the rank and the number of processes that returns something to compare. With one process and
without torch.distributed the same functions give the reference on the concatenated batch.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from isda import ISDABCELoss, ISDALoss, covariance
from isda._utils import distributed

CLASSES, FEATURES, STRENGTH, IGNORED = 5, 6, 0.5, -100
TIMEOUT = timedelta(seconds=90)

# -- the stream of every statistics case -------------------------------------------------------------------------------


class Settings(NamedTuple):
    """One way to share statistics."""

    covariance: str
    route: str
    dtype: torch.dtype
    decay: float | None

    @property
    def name(self) -> str:
        forgets = "" if self.decay is None else "-decay"
        return f"{self.covariance}-by-{self.route}-{str(self.dtype)[6:]}{forgets}"


STATISTICS = [
    Settings(*choice)
    for choice in itertools.product(
        ("full", "diagonal", "shared", "within", "shrunk", "low_rank"),
        ("features", "statistics"),
        (torch.float32, torch.float64),
        (None, 0.9),
    )
]


def rows_of_step(settings: Settings, step: int) -> int:
    """Few rows are exchanged as features, many as statistics; one shared matrix is smaller than most batches."""
    if settings.route == "statistics":
        return 120
    return 6 if settings.covariance in ("shared", "within") else 12


def batch_of_step(settings: Settings, step: int) -> tuple[Tensor, Tensor]:
    """Features and labels of all processes. Sorted by class in the first step, so that each sees but a few; the last
    class never occurs; in the second step the first third, all that some process brings, is ignored."""
    generator = torch.Generator().manual_seed(100 + step)
    size = rows_of_step(settings, step)
    targets = torch.randint(CLASSES - 1, (size,), generator=generator)
    if step == 0:
        targets = targets.sort().values
    mixing = torch.randn(CLASSES, FEATURES, FEATURES, generator=generator, dtype=torch.float64)
    noise = torch.randn(size, FEATURES, generator=generator, dtype=torch.float64)
    features = 3.0 * targets.unsqueeze(1) + (noise.unsqueeze(1) @ mixing[targets]).squeeze(1)
    if step == 1:
        targets[: size // 3] = IGNORED
    return features.to(settings.dtype), targets


def part(size: int, rank: int, world: int) -> slice:
    """An uneven split: the first process gets a third at most, the last the most."""
    cuts = {1: [0, size], 2: [0, size // 3, size], 3: [0, size // 6, size // 3, size]}[world]
    return slice(cuts[rank], cuts[rank + 1])


def classifier(dtype: torch.dtype) -> Tensor:
    return torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(7), dtype=torch.float64).to(dtype) / 3


def statistics(settings: Settings, rank: int, world: int) -> dict[str, Any]:
    options = {"rank": 2} if settings.covariance == "low_rank" else {}
    criterion = ISDALoss(
        CLASSES,
        FEATURES,
        STRENGTH,
        covariance=settings.covariance,
        reduction="none",
        dtype=settings.dtype,
        decay=settings.decay,
        **options,
    )
    weight = classifier(settings.dtype).requires_grad_()
    losses, gradient, routes = [], torch.zeros_like(weight), []
    for step in range(3):
        features, targets = batch_of_step(settings, step)
        mine = part(len(features), rank, world)
        with count_gathers(routes):
            loss = criterion(features[mine] @ weight.t(), targets[mine], features=features[mine], weight=weight)
        losses.append(loss.detach())
        gradient += torch.autograd.grad(loss.sum(), weight)[0]
    matrices = torch.stack([criterion.covariance.covariance(c) for c in range(CLASSES)])
    return {
        "state": criterion.state_dict(),
        "covariance": matrices,
        "losses": losses,
        "gradient": gradient,
        "routes": routes,
    }


@contextmanager
def count_gathers(routes: list[str]) -> Iterator[None]:
    """Note by which route an update went."""
    original, calls = distributed.gather_rows, []
    distributed.gather_rows = lambda *args: calls.append(None) or original(*args)
    try:
        yield
    finally:
        distributed.gather_rows = original
        routes.append("features" if calls else "statistics")


# -- other cases -------------------------------------------------------------------------------------------------------


def counts(name: str, rank: int, world: int) -> Tensor:
    """Models whose covariance does not come from the features still count them."""
    model = covariance.create(name, CLASSES, FEATURES)
    features, targets = batch_of_step(STATISTICS[0], 0)
    mine = part(len(features), rank, world)
    model.update(features[mine], targets[mine], mask=targets[mine] != 2)
    return model.count


BAD_INPUTS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "features with NaN": lambda x, y: (x.index_fill(0, torch.tensor([1]), float("nan")), y),
    "a label out of range": lambda x, y: (x, y.index_fill(0, torch.tensor([0]), CLASSES)),
    "a negative label": lambda x, y: (x, y.index_fill(0, torch.tensor([0]), -1)),
    "features of another width": lambda x, y: (x[:, :-1], y),
    "labels of another length": lambda x, y: (x, y[:-1]),
    "an empty batch": lambda x, y: (x[:0], y[:0]),
}


def bad_input(model: str, through: str, bad_rank: int, rank: int, world: int) -> dict[str, str]:
    """The message on this process for each kind of bad input on ``bad_rank``, followed by a good update."""
    criterion = ISDALoss(CLASSES, FEATURES, STRENGTH, covariance=model, schedule="constant")
    weight, messages = classifier(torch.float32), {}
    for name, spoil in BAD_INPUTS.items():
        features, targets = torch.randn(4, FEATURES), torch.arange(4)
        for spoilt in (True, False):
            before = {key: value.clone() for key, value in criterion.state_dict().items()}
            x, y = spoil(features, targets) if spoilt and rank == bad_rank else (features, targets)
            message = ""
            try:
                if through == "criterion":
                    criterion(torch.randn(len(x), CLASSES), y, features=x, weight=weight)
                else:
                    criterion.covariance.update(x, y)
            except ValueError as error:
                message = str(error)
            changed = any(not torch.equal(value, before[key]) for key, value in criterion.state_dict().items())
            messages[f"{name}, {'bad' if spoilt else 'good'}"] = f"{'changed' if changed else 'unchanged'}: {message}"
    return messages


OTHER_ERRORS = ("features on meta", "labels on meta", "no logits", "a negative strength")


def other_error(model: str, rank: int, world: int) -> dict[str, tuple[str, str, int]]:
    """For errors of torch and of arguments on process 0: type and message on this one, and rows of a good call after.

    A process that waits for another one gives up after TIMEOUT, and the case fails.
    """
    criterion = ISDALoss(CLASSES, FEATURES, STRENGTH, covariance=model, schedule="constant")
    results = {}
    for kind in OTHER_ERRORS:
        criterion.covariance.reset()
        logits, targets, features = torch.randn(4, CLASSES), torch.arange(4), torch.randn(4, FEATURES)
        given: Any = (logits, targets, features, STRENGTH)
        if rank == 0:
            given = {
                "features on meta": (logits, targets, features.to("meta"), STRENGTH),
                "labels on meta": (logits, targets.to("meta"), features, STRENGTH),
                "no logits": ([logits], targets, features, STRENGTH),
                "a negative strength": (logits, targets, features, -1.0),
            }[kind]
        error = ("", "")
        for x, y, a, strength in (given, (logits, targets, features, STRENGTH)):
            try:
                criterion(x, y, features=a, weight=classifier(torch.float32), strength=strength)
            except (ValueError, RuntimeError) as raised:
                error = (type(raised).__name__, str(raised))
        results[kind] = (*error, int(criterion.covariance.count.sum()))
    return results


def local_only(rank: int, world: int) -> Tensor:
    """sync=False keeps every process to itself."""
    model = covariance.DiagonalCovariance(CLASSES, FEATURES, sync=False)
    model.update(torch.ones(rank + 1, FEATURES), torch.zeros(rank + 1, dtype=torch.int64))
    return model.count


def process_group(route: str, rank: int, world: int) -> dict[str, Tensor] | None:
    """Only the last two processes share; their ranks in the group differ from those in the world."""
    group = dist.new_group([world - 2, world - 1], timeout=TIMEOUT) if dist.is_initialized() else None
    settings = Settings("full", route, torch.float64, None)
    model = covariance.FullCovariance(CLASSES, FEATURES, dtype=torch.float64, process_group=group)
    features, targets = batch_of_step(settings, 0)
    if rank < world - 2:
        return None
    mine = part(len(features), rank - (world - 2), 2) if world > 1 else slice(None)
    model.update(features[mine], targets[mine])
    matrices = torch.stack([model.covariance(c) for c in range(CLASSES)])
    return {"count": model.count, "mean": model.mean, "covariance": matrices}


# -- training ----------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """A network without batch normalisation: its gradients do not depend on how a batch is split."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, FEATURES), nn.Tanh())
        self.unused = nn.Linear(2, 2)
        self.fc = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x))


def train(wrapper: str, rank: int, world: int) -> dict[str, Any]:
    """A few steps of data parallel training, each process with its half of every batch."""
    model = Net().double()
    if wrapper != "find_unused_parameters":
        del model.unused
    if wrapper == "weight_norm":
        nn.utils.parametrizations.weight_norm(model.fc)
    wrapped = wrap(model, wrapper) if dist.is_initialized() else model
    parameters = list((wrapped if wrapper.startswith("fsdp") else model).parameters())
    learned = {"covariance": "learned"} if wrapper == "learned" else {}
    criterion = loss_of = ISDALoss.attach(wrapped, lambda_0=1.0, total_steps=4, **learned)
    if learned and dist.is_initialized():
        loss_of = nn.parallel.DistributedDataParallel(criterion)  # it has parameters of its own
    optimiser = torch.optim.SGD([*parameters, *criterion.parameters()], lr=0.3, momentum=0.9)
    generator, losses = torch.Generator().manual_seed(11), []
    for _ in range(5):
        x = torch.randn(16, 4, generator=generator, dtype=torch.float64)
        y = x.argmax(1)
        mine = slice(rank * 16 // world, (rank + 1) * 16 // world)
        optimiser.zero_grad()
        loss = loss_of(wrapped(x[mine]), y[mine])
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    full = {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in model.named_parameters()}
    if wrapper.startswith("fsdp") and dist.is_initialized():
        full = wrapped.state_dict()  # whole tensors, gathered
    return {
        "parameters": {name: p.detach().clone() for name, p in full.items()},
        "criterion": criterion.state_dict(),
        "losses": torch.stack(losses),
    }


def train_labels(bound: str, rank: int, world: int) -> dict[str, Any]:
    """A few steps with several labels per sample, each process with its half of every batch."""
    model = Net().double()
    del model.unused
    wrapped = nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    criterion = ISDABCELoss.attach(wrapped, lambda_0=1.0, total_steps=4, bound=bound)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    generator, losses = torch.Generator().manual_seed(11), []
    for _ in range(5):
        x = torch.randn(16, 4, generator=generator, dtype=torch.float64)
        y = (x @ torch.ones(4, CLASSES, dtype=torch.float64).tril() > 0).double()
        mine = slice(rank * 16 // world, (rank + 1) * 16 // world)
        optimiser.zero_grad()
        loss = criterion(wrapped(x[mine]), y[mine])
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return {
        "parameters": {name: p.detach().clone() for name, p in model.named_parameters()},
        "criterion": criterion.state_dict(),
        "losses": torch.stack(losses),
    }


def bad_labels(rank: int, world: int) -> str:
    """The message on this process for a label out of range on the last one, and how many rows were counted."""
    criterion = ISDABCELoss(CLASSES, FEATURES, STRENGTH, schedule="constant")
    features, message = torch.randn(4, FEATURES), ""
    try:
        targets = torch.full((4, CLASSES), 2.0 if rank == world - 1 else 1.0)
        criterion(torch.randn(4, CLASSES), targets, features=features, weight=classifier(torch.float32))
    except ValueError as error:
        message = str(error)
    return f"{message}; {int(criterion.covariance.count.sum())} rows"


def join(sync: bool, rank: int, world: int) -> str:
    """Uneven numbers of batches inside join() of DistributedDataParallel: the error, or how many rows were counted."""
    model = nn.parallel.DistributedDataParallel(Net().fc)
    criterion = ISDALoss.attach(model, covariance="diagonal", sync=sync, schedule="constant")
    try:
        with model.join():
            for _ in range(1 + rank):
                criterion(model(torch.ones(2, FEATURES)), torch.zeros(2, dtype=torch.int64)).backward()
    except ValueError as error:
        return str(error)
    return str(int(criterion.covariance.count.sum()))


def wrap(model: nn.Module, wrapper: str) -> nn.Module:
    if wrapper == "fully_shard":
        from torch.distributed.fsdp import fully_shard

        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        fully_shard(model.fc, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    if wrapper.startswith("fsdp"):
        from torch.distributed.fsdp import FullyShardedDataParallel

        settings = {"use_orig_params": "original" in wrapper, "device_id": torch.device("cpu")}
        model.fc = FullyShardedDataParallel(model.fc, **settings)
        return FullyShardedDataParallel(model, **settings)
    unused = wrapper == "find_unused_parameters"
    parallel = nn.parallel.DistributedDataParallel(model, find_unused_parameters=unused)
    return torch.compile(parallel, backend="aot_eager") if wrapper == "compile" else parallel


WRAPPERS = ("ddp", "find_unused_parameters", "weight_norm", "learned", "compile")
if torch.__version__ >= "2.6":  # before, it works with CUDA alone
    WRAPPERS += ("fully_shard", "fsdp", "fsdp-original")


def cases(world: int) -> dict[str, Callable[[int, int], Any]]:
    """Everything that is run with ``world`` processes, by name."""

    def bind(function: Callable[..., Any], *args: Any) -> Callable[[int, int], Any]:
        return lambda rank, world: function(*args, rank, world)

    chosen: dict[str, Callable[[int, int], Any]] = {s.name: bind(statistics, s) for s in STATISTICS}
    for name in ("identity", "learned"):
        chosen[f"counts-{name}"] = bind(counts, name)
    if world == 2:
        for model, through in itertools.product(("full", "identity"), ("criterion", "update")):
            chosen[f"bad-{model}-{through}"] = bind(bad_input, model, through, 1)
        for model in ("full", "identity"):
            chosen[f"other-error-{model}"] = bind(other_error, model)
        for wrapper in WRAPPERS:
            chosen[f"train-{wrapper}"] = bind(train, wrapper)
        for bound in ("jensen", "exact"):
            chosen[f"train-labels-{bound}"] = bind(train_labels, bound)
        chosen["bad-labels"] = bad_labels
        for sync in (True, False):
            chosen[f"join-{sync}"] = bind(join, sync)
    if world == 3:
        chosen["bad-full-criterion"] = bind(bad_input, "full", "criterion", 0)
        chosen["local-only"] = local_only
        for route in ("features", "statistics"):
            chosen[f"group-{route}"] = bind(process_group, route)
    return chosen


def main(folder: Path) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=world, timeout=TIMEOUT
    )
    results = {}
    for name, case in cases(world).items():
        torch.manual_seed(0)
        results[name] = case(rank, world)
    torch.save(results, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
