"""Studies of a method: many runs that differ in one part of it, and what each part is worth."""

from isda.analysis.studies.ablation import Ablation
from isda.analysis.studies.explicit import Explicit
from isda.analysis.studies.results import Row, rows_of
from isda.analysis.studies.sensitivity import Sensitivity
from isda.analysis.studies.study import Cell, Study

__all__ = ["STUDIES", "Ablation", "Cell", "Explicit", "Row", "Sensitivity", "Study", "rows_of"]

STUDIES: dict[str, type[Study]] = {"sensitivity": Sensitivity, "ablation": Ablation, "explicit": Explicit}
"""By name; a further study is a further file."""
