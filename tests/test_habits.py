"""Conventions of the source: exports of packages, absolute imports, suggestions in one way, no asserts."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "isda"
MODULES = sorted(SOURCE.rglob("*.py"))


def parsed(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))


def test_packages_list_what_they_export():
    """Packages name their public interface in ``__all__``; so do modules that users import from directly."""
    for module in MODULES:
        assigned = [node for node in parsed(module).body if isinstance(node, ast.Assign)]
        names = [ast.unparse(target) for node in assigned for target in node.targets]
        imported = [node for node in parsed(module).body if isinstance(node, ast.ImportFrom)]
        if module.name == "__init__.py" and any(str(node.module).startswith("isda.") for node in imported):
            assert "__all__" in names, module


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_by_full_names_and_suggests_words_in_the_one_way(module):
    imports = [node for node in ast.walk(parsed(module)) if isinstance(node, ast.ImportFrom | ast.Import)]
    assert [ast.unparse(node) for node in imports if getattr(node, "level", 0)] == []
    suggests = [ast.unparse(node) for node in imports if "difflib" in ast.unparse(node)]
    assert suggests == [] or module.name in ("choices.py", "_checks.py")  # the lab's and the method's


def test_no_module_asserts():
    """Under ``python -O`` an assert is not there: neither a check nor a branch may depend on one."""
    asserts = [
        f"{module.relative_to(SOURCE)}:{node.lineno}"
        for module in MODULES
        for node in ast.walk(parsed(module))
        if isinstance(node, ast.Assert)
    ]
    assert asserts == []
