"""Size and shape of the source tree: python benchmarks/structure.py [ROOT] prints a table.

Counts files, lines and imports, class names that are defined more than once, the longest chain of imports, and the
files that run in one call of an attached criterion, in one training step and in a whole `isda train`. A report, not a
test.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

STEPS = """
import sys, tempfile, threading
from pathlib import Path
import isda, torch
from isda import ISDALoss
from isda.lab.engine import Hook
from isda.lab.train import Settings, load_data, resolve, train

package, files, recording, classes = str(Path(isda.__file__).parent), set(), False, set(sys.argv[1:])

def note(frame, event, argument):
    code = frame.f_code
    if recording and code.co_filename.startswith(package) and code.co_name not in ("<module>", *classes):
        files.add(frame.f_code.co_filename)

threading.setprofile(note)
sys.setprofile(note)
network = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))
criterion = ISDALoss.attach(network, lambda_0=0.5, total_steps=10, covariance="full")
images, targets = torch.randn(8, 12), torch.arange(8)
for call in range(2):
    recording = call == 1
    criterion(network(images), targets).backward()
recording = False
print("criterion", len(files), *sorted(Path(file).relative_to(package).as_posix() for file in files))
files.clear()

class Recorder(Hook):
    def step(self, step):
        global recording
        recording = step == 1

settings = Settings(data="digits", network="resnet-8", method="isda", width=0.25, labels=100, batch_size=20, epochs=1)
data = load_data(settings)
with tempfile.TemporaryDirectory() as folder:
    train(resolve(settings, data), data, Path(folder) / "run", hooks=[Recorder()])
print("step", len(files), *sorted(Path(file).relative_to(package).as_posix() for file in files))
files.clear()

from isda.lab.cli import main
with tempfile.TemporaryDirectory() as folder:
    words = "train --data digits --network resnet-8 --method isda --width 0.25 --labels 100 --batch-size 20 --epochs 1"
    recording = True
    main([*words.split(), "--out", folder + "/run"])
    recording = False
print("command", len(files), *sorted(Path(file).relative_to(package).as_posix() for file in files))
"""

WHAT = {
    "criterion": "one call of criterion(model(x), y)",
    "step": "one training step",
    "command": "a whole `isda train`, from command line to result",
}


def main() -> None:
    """Print the report."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()
    source = root / "src"
    trees, texts = {}, {}
    for path in sorted((source / "isda").rglob("*.py")):
        name = ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
        texts[name] = path.read_text(encoding="utf-8")
        trees[name] = ast.parse(texts[name])
    lines = sum(text.count("\n") for text in texts.values())
    imports = sum(_import_lines(tree) for tree in trees.values())
    classes = Counter(node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    twice = sorted(name for name, count in classes.items() if count > 1)
    chain = _longest_chain({name: _imported(tree, set(trees)) for name, tree in trees.items()})
    code = {name: _code_lines(tree) for name, tree in trees.items()}
    print(f"files: {len(texts)}, lines: {lines}, lines per file: {lines / len(texts):.0f}")
    print(f"lines of imports and __all__: {imports} ({100 * imports / lines:.1f}%)")
    print(f"files with fewer than 15 lines of code (without __init__.py): {_small(code, trees)}")
    print(f"class names defined more than once: {len(twice)} {' '.join(twice)}")
    print(f"longest chain of imports: {len(chain)}: {' > '.join(name.removeprefix('isda.') for name in chain)}")
    run = subprocess.run(
        [sys.executable, "-c", STEPS, *classes],
        capture_output=True,
        text=True,
        check=False,
        env=_environment(source),
        cwd=root,
    )
    for line in run.stdout.splitlines():
        what, count, *files = line.split()
        if what in WHAT:
            print(f"files that run in {WHAT[what]}: {count}")
            print("  " + " ".join(files))
    if run.returncode:
        sys.exit(run.stderr)


def _environment(source: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}


def _import_lines(tree: ast.Module) -> int:
    spans = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
    ]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in spans)


def _code_lines(tree: ast.Module) -> int:
    """Lines that hold a statement other than an import, a docstring or ``__all__``."""
    held: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and not isinstance(node, ast.Import | ast.ImportFrom):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                continue
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                continue
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if isinstance(body, list) else node.end_lineno
            held |= set(range(node.lineno, (last or node.lineno) + 1))
    return len(held)


def _small(code: dict[str, int], trees: dict[str, ast.Module]) -> int:
    packages = {name.rpartition(".")[0] for name in trees}
    return sum(count < 15 for name, count in code.items() if name not in packages)


def _imported(tree: ast.Module, modules: set[str]) -> set[str]:
    """The modules of the package that are imported when this one is."""
    found, waiting = set(), list[ast.AST]([tree])
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names} & modules
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    within = f"{node.module}.{alias.name}"
                    found |= {within if within in modules else str(node.module)} & modules
            elif not isinstance(node, ast.FunctionDef) and "TYPE_CHECKING" not in ast.unparse(
                getattr(node, "test", ast.Pass())
            ):
                waiting.append(node)
    return found


def _longest_chain(graph: dict[str, set[str]]) -> list[str]:
    @cache
    def chain(module: str) -> tuple[str, ...]:
        chains: list[tuple[str, ...]] = [(), *(chain(other) for other in sorted(graph[module] - {module}))]
        return (module, *max(chains, key=len))

    longest: tuple[str, ...] = max((chain(module) for module in graph), key=len)
    return list(longest)


if __name__ == "__main__":
    main()
