"""Reports of run folders: statistics over seeds, terminal tables and one self-contained HTML page.

`isda.lab.engine.find_runs` reads run folders, `summary` compares them, `terminal_tables` prints and `page` writes HTML.
`statistics` has the intervals of a comparison for figures from elsewhere.
"""

from isda.lab.report import statistics

__all__ = ["statistics"]
