"""From run folders to statistics over seeds, tables and one self-contained HTML page.

`isda.engine.find_runs` reads folders, `summary` compares them, `table` prints a comparison, and `page` writes the page.
"""
