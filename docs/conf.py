"""Sphinx configuration: `make docs` builds the site. Tables and pictures of evidence are made from the result files."""

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "website"), str(ROOT / "src")]
os.environ["PYTHONPATH"] = str(ROOT / "src")
os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # cells call `isda`

import commands  # noqa: E402
import evidence  # noqa: E402

project = "isda"
author = "The isda developers"
copyright = author

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx-mathjax-offline",
]
exclude_patterns = ["**/_*.md"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_in_temp = True
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_output_stderr = "remove"

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autosummary_generate = True
napoleon_numpy_docstring = False
default_role = "py:obj"
# Inventories are fetched; a build without a network does without their links.
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", None),
    "torch": ("https://docs.pytorch.org/docs/stable", None),
    "sklearn": ("https://scikit-learn.org/stable", None),
} if "ISDA_ONLINE" in os.environ else {}  # fmt: skip
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

html_theme = "pydata_sphinx_theme"
html_title = "isda"
templates_path = ["templates"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
pages = (
    "index",
    "quickstart",
    "how-it-works",
    "should-i-use-it",
    "install",
    "which-lambda",
    "troubleshooting",
    "glossary",
)
html_sidebars = {name: [] for name in (*pages, "contributing")}
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": False,
    "footer_start": ["copyright"],
    "footer_end": [],
}

_CODE = re.compile(r"(``.*?``|`[^`]*`|:\w+:`[^`]*`)")


def plain_docstring(app, what, name, obj, options, lines):
    """Docstrings are plain text: asterisks, bars and trailing underscores of formulas are no markup."""
    for index, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...", ":")):
            parts = _CODE.split(line)
            parts[::2] = [re.sub(r"(?<!\\)([*|]|(?<=\w)_(?!\w))", r"\\\1", part) for part in parts[::2]]
            lines[index] = "".join(parts)


def setup(app):
    """Write what pages include, and read docstrings as plain text."""
    evidence.write()
    commands.write()
    app.connect("autodoc-process-docstring", plain_docstring)
