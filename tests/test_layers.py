"""Packages are layered: a module imports its own layer and those below it, never above, and no import is circular."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "isda"

LAYERS = {
    "helpers": ("_utils",),
    "core": ("functional", "covariance", "attach", "losses"),
    "building blocks": ("networks", "data", "semi"),
    "engine": ("engine",),
    "tasks": ("tasks",),
    "on top of runs": ("report", "analysis", "reproduce"),
    "entry points": ("estimator", "integrations", "compat", "train", "cli", "__main__"),
}
"""From the bottom up. Within a layer, packages import those before them."""
POSITION = {
    package: (layer, place) for layer, packages in enumerate(LAYERS.values()) for place, package in enumerate(packages)
}
TASKS = ("common", "classification", "semi_supervised", "segmentation", "detection", "gan", "transfer")
"""The sub-packages of tasks; each imports only those before it."""
INDEPENDENT = {("networks", "data"), ("data", "networks")}
"""Packages of one layer that do not import each other, whatever their order."""

MODULES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}


def package_of(module: str) -> str:
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


def test_every_package_has_a_layer():
    assert {package_of(module) for module in MODULES} - {""} == set(POSITION)


@pytest.mark.parametrize("package", POSITION)
def test_a_package_imports_no_package_above_it(package):
    wrong = {
        f"{module} imports {other}"
        for module, path in MODULES.items()
        if package_of(module) == package
        for other in imports(path, lazy=True)
        if package_of(other) not in ("", package)
        and (POSITION[package_of(other)] > POSITION[package] or (package, package_of(other)) in INDEPENDENT)
    }
    assert wrong == set()


def test_every_task_has_a_position():
    assert {module.split(".")[2] for module in MODULES if module.startswith("isda.tasks.")} == set(TASKS)


@pytest.mark.parametrize("task", TASKS)
def test_a_task_imports_no_task_after_it(task):
    later = tuple(f"isda.tasks.{other}." for other in TASKS[TASKS.index(task) + 1 :])
    wrong = {
        f"{module} imports {other}"
        for module, path in MODULES.items()
        if f"{module}.".startswith(f"isda.tasks.{task}.")
        for other in imports(path, lazy=True)
        if f"{other}.".startswith(later)
    }
    assert wrong == set()


def test_the_package_itself_imports_nothing_when_it_is_imported():
    assert imports(MODULES["isda"], lazy=False) == set()


def test_no_import_is_circular():
    graph = {module: imports(path, lazy=False) - {module} for module, path in MODULES.items()}
    order = list(TopologicalSorter(graph).static_order())
    assert set(order) == set(MODULES)


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_the_pages_name_the_same_layers_in_the_same_order(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    positions = [text.find(f"**{layer.capitalize()}**") for layer in LAYERS]
    assert -1 not in positions
    assert positions == sorted(positions)
