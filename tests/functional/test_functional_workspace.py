"""Scratch memory: reused when free, never shared while in use."""

from __future__ import annotations

import torch

from isda.functional import grouping as workspace
from isda.functional.grouping import Scratch


def test_memory_is_used_again_after_its_owner_died():
    like = torch.empty(0, dtype=torch.float64)
    first = Scratch((64, 64), like)
    address = first.tensor.data_ptr()
    del first
    assert Scratch((8, 16), like).tensor.data_ptr() == address


def test_memory_in_use_is_not_handed_out_again():
    like = torch.empty(0, dtype=torch.float32)
    first, second = Scratch((8, 8), like), Scratch((8, 8), like)
    first.tensor.fill_(1)
    second.tensor.fill_(2)
    assert (first.tensor == 1).all()


def test_shape_and_dtype_are_as_asked():
    for dtype in (torch.float32, torch.float64):
        tensor = Scratch((3, 5, 7), torch.empty(0, dtype=dtype)).tensor
        assert tensor.shape == (3, 5, 7)
        assert tensor.dtype == dtype
        assert tensor.is_contiguous()


def test_memory_made_in_inference_mode_is_not_used_again(monkeypatch):
    monkeypatch.setattr(workspace, "_spare", {})
    like = torch.empty(0, dtype=torch.float64)
    with torch.inference_mode():
        first = Scratch((8, 8), like)
        assert first.tensor.is_inference()
        del first
    assert not Scratch((8, 8), like).tensor.is_inference()
