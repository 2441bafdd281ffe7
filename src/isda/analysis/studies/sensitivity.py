"""How much the strength matters: the paper's Figure 11, for any ISDA method and both bounds."""

from __future__ import annotations

from collections.abc import Sequence

from isda.analysis.studies.study import Cell, Study, plain, with_options

__all__ = ["Sensitivity"]


class Sensitivity(Study):
    """Each method at each strength lambda_0, beside the same without ISDA."""

    title = "Sensitivity to the strength"
    axis = "strength λ0"
    methods = ("isda", "isda-tilted")
    values = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

    @classmethod
    def cells(cls, methods: Sequence[str], values: Sequence[float]) -> list[Cell]:
        """The method without ISDA, then every strength of every method.

        Example:
            >>> [cell.method for cell in Sensitivity.cells(["vat+isda"], [0.5])]
            ['vat', 'vat+isda:lambda_0=0.5']
        """
        bases = dict.fromkeys(map(plain, methods))
        if not values or min(values) <= 0:
            raise ValueError(f"strengths must be above 0, where the method is the one without ISDA, got {list(values)}")
        return [Cell(base, base) for base in bases] + [
            Cell(f"{method}, λ0 = {value:g}", with_options(method, lambda_0=float(value)), method, float(value))
            for method in methods
            for value in values
        ]
