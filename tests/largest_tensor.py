"""A watch for memory: the largest tensor that any operation reads or writes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):
    """Remembers the largest storage that any operation reads or writes, apart from those of ``allowed`` tensors."""

    def __init__(self, allowed: Iterable[Tensor]) -> None:
        super().__init__()
        self.allowed = {tensor.untyped_storage().data_ptr() for tensor in allowed}
        self.largest, self.where, self.operations = 0, "", 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.operations += 1
        for leaf in tree_leaves((result, args, kwargs)):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage().data_ptr() not in self.allowed:
                size = leaf.untyped_storage().nbytes()
                if size > self.largest:
                    self.largest, self.where = size, f"{function} {tuple(leaf.shape)}"
        return result
