"""The house holds together: no room uses one above it, no import goes in a circle, the map shows every file once."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "isda"

STOREYS = (
    ("", "choices", "extras", "errors", "files", "plain_text", "seeds", "devices", "autocast", "checks", "distributed"),
    ("functional",),
    ("covariance",),
    ("recording", "attach"),
    ("losses",),
    ("networks", "data"),
    ("semi",),
    ("engine",),
    ("generators",),
    ("classification",),
    ("semi_supervised", "segmentation", "detection", "generative"),
    ("transfer",),
    ("embeddings",),
    ("report", "paper"),
    ("analysis",),
    ("reproduce",),
    ("train", "estimator", "compat", "integrations", "cli", "__main__"),
)
"""From the ground up. A room may use those below it, and itself. "" is the package itself, which only shows rooms."""
STOREY = {room: number for number, rooms in enumerate(STOREYS) for room in rooms}

MODULES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(path: Path, *, lazy: bool) -> set[str]:
    """The modules of this package that a file imports: when it is imported itself, or also when its functions run."""
    found, waiting = set(), [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names if alias.name in MODULES}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path} imports relatively"
                for alias in node.names:
                    within = f"{node.module}.{alias.name}"
                    found |= {within if within in MODULES else str(node.module)} & set(MODULES)
            elif lazy or not (
                isinstance(node, ast.FunctionDef)
                or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
            ):
                waiting.append(node)
    return found


def test_every_room_has_its_storey():
    assert {room_of(module) for module in MODULES} == set(STOREY)


@pytest.mark.parametrize("module", MODULES)
def test_no_room_uses_one_above_it(module):
    mine, used = room_of(module), {room_of(other) for other in imports(MODULES[module], lazy=module != "isda")}
    assert not {room for room in used if STOREY[room] > STOREY[mine]}
    beside = {(mine, room) for room in used if STOREY[room] == STOREY[mine] and room != mine}
    assert beside <= NEIGHBOURS


NEIGHBOURS = {
    ("attach", "recording"),
    ("checks", "devices"),
    ("errors", "extras"),
    ("cli", "train"),
    ("__main__", "cli"),
}
"""Rooms of one storey of which the first uses the second."""


def test_no_import_goes_in_a_circle():
    graph = {module: imports(path, lazy=False) - {module} for module, path in MODULES.items()}
    order = list(TopologicalSorter(graph).static_order())
    assert set(order) == set(MODULES)


def test_the_map_shows_every_file_once():
    shown = re.findall(r"`([\w/]+\.py)`", (ROOT / "docs" / "map.md").read_text(encoding="utf-8"))
    files = [path.relative_to(SOURCE).as_posix() for path in MODULES.values() if path.name != "__init__.py"]
    assert sorted(shown) == sorted(files)
