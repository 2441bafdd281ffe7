"""A step of a fit holds rows, logits and C x C tables, never rows x classes x features."""

from __future__ import annotations

import pytest
import torch

from isda.estimator.covariances import ClassRows, row_covariances
from isda.estimator.objective import ConvexObjective
from isda.estimator.solver import Preconditioner
from largest_tensor import LargestTensor


@pytest.mark.parametrize("name", ["within", "shrunk", "full", "diagonal"])
@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_no_tensor_is_larger_than_a_few_times_the_rows_or_the_logits(name, bound):
    n, dim, classes = 200, 30, 10
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % classes
    inputs = torch.randn(n, dim, generator=generator, dtype=torch.float64) + labels.unsqueeze(1) / 10
    with LargestTensor([]) as watch:
        rows = ClassRows.of(inputs, labels, classes)
        made = ConvexObjective(rows, row_covariances(name, rows), strength=1.0, penalty=0.01, bound=bound)
        start = torch.randn(made.shape, generator=generator, dtype=torch.float64)
        here, preconditioner = made.evaluate(start), Preconditioner(made)
        preconditioner.update(here)
        preconditioner.solve(here.gradient)
        made.hessian_product(start)(start)
    # The search for tilts tries a dozen lengths of a step at once.
    limit = (12 if bound == "tilted" else 1) * n * max(dim, classes) * 8
    assert watch.largest <= limit, watch.where
    assert watch.operations > 100
