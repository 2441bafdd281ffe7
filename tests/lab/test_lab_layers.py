"""What the packages may import of each other."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "isda"


def imports(module: Path) -> set[str]:
    nodes = ast.walk(ast.parse(module.read_text(encoding="utf-8")))
    return {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def test_the_engine_knows_no_task_and_methods_know_no_command():
    for module in (SOURCE / "lab" / "engine").rglob("*.py"):
        assert not any(name.startswith(("isda.lab.tasks", "isda.lab.cli")) for name in imports(module)), module
    for module in (SOURCE / "lab" / "methods").rglob("*.py"):
        assert not any(name.startswith("isda.lab.cli") for name in imports(module)), module
