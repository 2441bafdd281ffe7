"""Reports of run folders: statistics over seeds, tables, charts and one self-contained HTML page.

`load` compares the runs in folders; `statistics` has the intervals for figures from elsewhere.
"""

from isda.lab.report import statistics
from isda.lab.report.comparison import Comparison, load, summarise

__all__ = ["Comparison", "load", "statistics", "summarise"]
