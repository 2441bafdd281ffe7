"""A device that is not the CPU, for machines that have none: its tensors say "pretend" and compute on the CPU.

What runs here are the lines that CUDA will run. Tensors of two devices do not mix (a CPU tensor without dimensions may
join, as on CUDA), everything that would make the host wait for the device is written down with the line that made it,
and so is every kernel launched, with its floating point operations and the bytes that it reads and writes.

    with PretendAccelerator() as accelerator:
        x = on_pretend(torch.randn(3))
        float(x.sum())
    accelerator.waits     # [Wait(operation="aten._local_scalar_dense", line="...")]
    accelerator.launches  # [Launch(operation="aten.sum", flops=0, bytes=16)]

Values are made on the device by factories (``device="pretend"``), by ``.to("pretend")`` or by ``on_pretend``.
"""

from __future__ import annotations

import math
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

import isda

try:
    from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend
except ImportError:  # older versions of torch cannot do this
    AVAILABLE = False
else:
    AVAILABLE = True

    class _Module(_DummyBackendModule):
        """What torch asks of the module of a device: one device, random numbers from the CPU's generator."""

        active = 0

        def is_available(self) -> bool:
            """Only while it is in use: others (nn.DataParallel, say) prefer an accelerator where there is one."""
            return self.active > 0

        def get_amp_supported_dtype(self) -> list[torch.dtype]:
            return [torch.bfloat16, torch.float16]

        def current_device(self) -> int:
            return 0

        def device_count(self) -> int:
            return 1

        def get_rng_state(self, device: object = None) -> Tensor:
            return torch.random.get_rng_state()

        def set_rng_state(self, state: Tensor, device: object = None) -> None:
            torch.random.set_rng_state(state)

        def _is_in_bad_fork(self) -> bool:
            return False

        def manual_seed_all(self, seed: int) -> None:
            """The CPU's generator serves this device and is seeded by torch.manual_seed itself."""

    _module = _Module()
    _setup_privateuseone_for_python_backend("pretend", backend_module=_module)

aten = torch.ops.aten
_PACKAGE = Path(isda.__file__).parent
_READS = {
    aten._local_scalar_dense,
    aten.nonzero,
    aten.is_nonzero,
    aten.equal,
    aten._unique2,
    aten.unique_dim,
    aten.unique_consecutive,
    aten.masked_select,
    aten.bincount,
    # They read whether the decomposition succeeded (the variants with "_ex" need not).
    aten._linalg_eigh,
    aten._linalg_svd,
    aten._linalg_check_errors,
}
"""Operations that read a value from a CUDA device."""
_ALLOCATIONS = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided}
_METADATA = {aten._unsafe_view, aten.lift_fresh, aten._local_scalar_dense, aten._linalg_check_errors}


class Wait(NamedTuple):
    """The host waits for the device."""

    operation: str
    line: str


class Launch(NamedTuple):
    """A kernel runs on the device."""

    operation: str
    flops: int
    bytes: int


class PretendTensor(Tensor):
    """A tensor on the device; its values are an ordinary tensor."""

    values_on_cpu: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> PretendTensor:
        wrapper = Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            layout=values.layout,
            device=torch.device("pretend:0"),
            requires_grad=values.requires_grad,
        )
        wrapper.values_on_cpu = values
        return wrapper

    def __repr__(self) -> str:  # type: ignore[override]
        return f"PretendTensor({self.values_on_cpu})"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        return self.values_on_cpu.data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copy = PretendTensor(self.values_on_cpu.detach().clone())
        if isinstance(self, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy, self.requires_grad)
        memo[id(self)] = copy
        return copy

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {}, None)


class PretendAccelerator(TorchDispatchMode):
    """The device, in use: records what makes the host wait and what is launched."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[Wait] = []
        self.launches: list[Launch] = []
        self._factories = _Factories()

    def clear(self) -> None:
        """Start recording again."""
        self.waits.clear()
        self.launches.clear()

    def __enter__(self) -> PretendAccelerator:
        self.clear()
        _module.active += 1
        self._factories.__enter__()
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._factories.__exit__(*exception)
        _module.active -= 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {}, self)


class _Factories(TorchFunctionMode):
    """torch.tensor and its like fill memory without asking anybody: here they fill the CPU's and move it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and not isinstance(args[0], PretendTensor):
            device = kwargs.pop("device", None)
            made = func(*args, **kwargs, device="cpu" if _is_pretend(device) else device)
            return made.to(device) if _is_pretend(device) else made
        if func is Tensor.new_tensor and isinstance(args[0], PretendTensor):
            return torch.tensor(args[1], dtype=kwargs.get("dtype", args[0].dtype)).to(args[0].device)
        return func(*args, **kwargs)


def on_pretend(tensor: Tensor) -> Tensor:
    """A copy on the device, a leaf that requires a gradient if the tensor does."""
    return PretendTensor(tensor.detach().clone()).requires_grad_(tensor.requires_grad)


def _is_pretend(device: Any) -> bool:
    return device is not None and torch.device(device).type == "pretend"


def _line() -> str:
    """The innermost line of isda that is being run."""
    for frame in reversed(traceback.extract_stack()):
        file = Path(frame.filename)
        if file.is_relative_to(_PACKAGE):  # the clone, too, may be in a folder called isda
            return f"{file.relative_to(_PACKAGE).as_posix()}:{frame.lineno}"
    return "outside isda"


def _is_view(func: Any) -> bool:
    """Whether the result is an input seen in another way: nothing is computed."""
    aliases = [result.alias_info for result in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def _waits(func: Any, args: Any, kwargs: Any, on_device: bool) -> bool:
    """Whether CUDA's version of this call makes the host wait."""
    packet = func._overloadpacket
    if packet is aten._to_copy:
        crosses = "device" in kwargs and kwargs["device"] is not None and _is_pretend(kwargs["device"]) != on_device
        return crosses and not kwargs.get("non_blocking")
    if packet is aten.copy_:
        return isinstance(args[0], PretendTensor) != isinstance(args[1], PretendTensor) and not any(args[2:])
    if not on_device:
        return False
    if packet is aten.repeat_interleave:
        return "output_size" not in kwargs
    if packet in (aten.index, aten.index_put, aten.index_put_, aten._unsafe_index):
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return packet in _READS


def _moved_bytes(tensors: list[Tensor]) -> int:
    """What the tensors hold in memory; an expanded dimension is read from the same place."""
    return sum(
        tensor.element_size() * math.prod(n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
        for tensor in tensors
        if tensor.numel()
    )


def _run(func: Any, args: Any, kwargs: Any, recorder: PretendAccelerator | None) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    there = [tensor for tensor in tensors if isinstance(tensor, PretendTensor)]
    here = [tensor for tensor in tensors if not isinstance(tensor, PretendTensor) and tensor.dim() > 0]
    packet = func._overloadpacket
    if there and here and packet is not aten.copy_:
        raise RuntimeError(f"{func}: tensors of two devices at {_line()}")
    involved = there or _is_pretend(kwargs.get("device"))
    if recorder is not None and involved and _waits(func, args, kwargs, bool(there)):
        recorder.waits.append(Wait(str(packet), _line()))
    plain_args, plain_kwargs = tree_map_only(PretendTensor, lambda tensor: tensor.values_on_cpu, (args, kwargs))
    if _is_pretend(plain_kwargs.get("device")):
        plain_kwargs = {**plain_kwargs, "device": torch.device("cpu")}
    result = func(*plain_args, **plain_kwargs)
    target = kwargs.get("device")
    stays = _is_pretend(target) if target is not None else bool(there)
    if packet is aten.copy_:
        stays = isinstance(args[0], PretendTensor)
    if not stays or packet is aten._local_scalar_dense:
        return args[0] if packet is aten.copy_ else result
    if recorder is not None and not _is_view(func) and packet not in _ALLOCATIONS | _METADATA:
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        count = flop_registry.get(packet) or flop_registry.get(getattr(aten, packet.__name__.rstrip("_"), None))
        flops = count(*plain_args, **plain_kwargs, out_val=result) if count else 0
        inputs = [leaf for leaf in tree_leaves((plain_args, plain_kwargs)) if isinstance(leaf, Tensor)]
        recorder.launches.append(Launch(str(packet), flops, _moved_bytes(inputs) + _moved_bytes(outputs)))
    return return_and_correct_aliasing(func, args, kwargs, tree_map_only(Tensor, PretendTensor, result))
