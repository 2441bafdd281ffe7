"""What each part of ISDA is worth: the paper's Table 8, and three rows of ours."""

from __future__ import annotations

from collections.abc import Sequence

from isda.analysis.studies.study import Cell, Study, plain, with_options

__all__ = ["Ablation"]

PARTS: dict[str, dict[str, object]] = {
    "identity matrix": {"covariance": "identity"},
    "diagonal matrix": {"covariance": "diagonal"},
    "single covariance matrix": {"covariance": "shared"},
    "constant λ0": {"schedule": "constant"},
    "low rank (ours)": {"covariance": "low_rank"},
    "tilted bound (ours)": {"bound": "tilted"},
    "decay 0.99 (ours)": {"decay": 0.99},
}
"""What is changed in each row."""


class Ablation(Study):
    """ISDA, and ISDA with one part changed at a time, all at the same strength."""

    title = "Ablation"

    @classmethod
    def cells(cls, methods: Sequence[str], values: Sequence[float]) -> list[Cell]:
        """The method without ISDA, as it is, and with each part changed.

        Example:
            >>> [cell.method for cell in Ablation.cells(["isda:lambda_0=1"], [])][:3]
            ['cross-entropy', 'isda:lambda_0=1', 'isda:lambda_0=1,covariance=identity']
        """
        if len(methods) != 1 or values:
            raise ValueError(f"an ablation is of one method, without values, got {list(methods)} and {list(values)}")
        method = methods[0]
        base = plain(method)
        changed = [Cell(label, with_options(method, **options)) for label, options in PARTS.items()]
        return [Cell(f"{base} (basic)", base), Cell(method, method), *changed]
