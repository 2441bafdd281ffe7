"""The habits of the rooms: every module says what it offers, imports by full names, and writes nothing again."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "isda"
MODULES = sorted(SOURCE.rglob("*.py"))


def parsed(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_says_what_it_offers(module):
    defined, offered = set(), None
    for node in parsed(module).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            offered = set(ast.literal_eval(node.value))
    public = {name for name in defined if not name.startswith("_")}
    if offered is None:
        assert not public, "no __all__"
    else:
        assert public <= offered, "defined in public, but not in __all__"


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_by_full_names_and_suggests_words_in_the_one_way(module):
    imports = [node for node in ast.walk(parsed(module)) if isinstance(node, ast.ImportFrom | ast.Import)]
    assert [ast.unparse(node) for node in imports if getattr(node, "level", 0)] == []
    suggests = [ast.unparse(node) for node in imports if "difflib" in ast.unparse(node)]
    assert suggests == [] or module.name == "choices.py"


def test_no_module_asserts():
    """Under ``python -O`` an assert is not there: neither a check nor a branch may depend on one."""
    asserts = [
        f"{module.relative_to(SOURCE)}:{node.lineno}"
        for module in MODULES
        for node in ast.walk(parsed(module))
        if isinstance(node, ast.Assert)
    ]
    assert asserts == []
