"""The method needs no laboratory."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "isda"
METHOD = [
    path
    for path in sorted(SOURCE.rglob("*.py"))
    if path.relative_to(SOURCE).parts[0] not in ("lab", "estimator", "__main__.py", "__init__.py")
]


@pytest.mark.parametrize("path", METHOD, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_method_never_imports_the_lab(path):
    names = [
        name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    ]
    assert [name for name in names if name.startswith("isda.lab")] == []
