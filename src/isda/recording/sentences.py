"""Words that several refusals end with."""

from __future__ import annotations

__all__ = ["BY_HAND", "DATA_PARALLEL", "SCRIPTED", "TENSOR_PARALLEL"]

BY_HAND = "criterion(logits, targets, features=..., weight=...)"
DATA_PARALLEL = (
    "model must not be wrapped in nn.DataParallel, whose replicas overwrite each other's features; use "
    "DistributedDataParallel"
)
SCRIPTED = (
    "torch.jit.script cannot compile a model that a criterion is attached to; call criterion.detach() first and attach "
    "again afterwards, or use torch.compile"
)
TENSOR_PARALLEL = (
    "the classifier must not be split by tensor parallelism, because its input and output are DTensors; leave it out "
    f"of the plan of parallelize_module, or call {BY_HAND} with whole tensors (full_tensor())"
)
