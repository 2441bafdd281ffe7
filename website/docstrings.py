"""Docstrings as the reference shows them: ``Example:`` is code that was run, and roles of Sphinx are plain names."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

__all__ = ["PlainDocstrings"]


class PlainDocstrings(Extension):
    """Changes the text of each docstring before it is parsed."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Griffe knows code by the heading ``Examples:``, and nothing of roles."""
        if obj.docstring is not None:
            text = re.sub(r"(?m)^(\s*)Example:$", r"\1Examples:", obj.docstring.value)
            obj.docstring.value = re.sub(r":(?:func|class|meth|mod|attr):`~?([^`]+)`", r"``\1``", text)
