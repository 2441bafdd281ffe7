"""What a user installs: the wheel holds all that runs, and is used here where only torch and numpy are beside it."""

import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from email.message import Message
from email.parser import Parser
from importlib.metadata import distribution
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:  # the same under another name, which pytest brings
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """The sdist of this tree, and the wheel that is built from it, as an index would offer them."""
    folder = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def bare(built, tmp_path_factory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python where the wheel is installed beside torch, numpy and what they need themselves, and nothing else."""
    site = tmp_path_factory.mktemp("bare")
    install = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--target", str(site), str(built[1])]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True, capture_output=True, timeout=300)
    for name in needs("torch") | needs("numpy"):
        for top in {path.parts[0] for path in distribution(name).files or () if path.parts[0] != ".."}:
            if not (site / top).exists():
                (site / top).symlink_to(distribution(name).locate_file(top))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "PYTHONPATH": str(site)
    }

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        program = [str(site / "bin" / "isda"), *words[1:]] if words[0] == "isda" else ["-c", *words]
        # -S: this environment's own libraries stay out.
        everything = [sys.executable, "-S", *program]
        return subprocess.run(everything, capture_output=True, text=True, timeout=300, env=environment, cwd=site)

    return run


def needs(name: str, found: set[str] | None = None) -> set[str]:
    """A distribution and all that it asks for, extras aside."""
    found = set() if found is None else found
    if name not in found:
        found.add(name)
        for line in distribution(name).requires or ():
            wanted = Requirement(line)
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                needs(wanted.name, found)
    return found


def wheel_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(opened.read(name).decode())


def tracked() -> set[str]:
    """The files that version control has or would take."""
    words = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a clone: what belongs to the source is not known")
    return set(done.stdout.splitlines())


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built[1]) as opened:
        held = {name for name in opened.namelist() if ".dist-info/" not in name}
    files = {
        p.relative_to(SOURCE).as_posix() for p in SOURCE.rglob("*") if p.is_file() and "__pycache__" not in p.parts
    }
    assert held == files
    assert "isda/lab/reproduce/paper_tables/table-2.csv" in held
    assert "isda/py.typed" in held


def test_the_sdist_holds_the_source_and_no_junk(built):
    with tarfile.open(built[0]) as opened:
        held = {name.partition("/")[2] for name in opened.getnames()}
    known = tracked()
    assert held - known == {"PKG-INFO"}
    left_out = {name.split("/")[0] for name in known - held}
    development = {".ci", ".github", ".pre-commit-config.yaml", "Makefile", "constraints.txt", "constraints-oldest.txt"}
    assert left_out == development


def test_the_index_learns_what_it_is_called_and_what_it_needs(built):
    assert built[1].name == f"isda_torch-{PROJECT['version']}-py3-none-any.whl"
    about = wheel_metadata(built[1])
    assert about["Name"] == "isda-torch"
    needed = [Requirement(line) for line in about.get_all("Requires-Dist")]
    assert {wanted.name for wanted in needed if not wanted.marker} == {"torch", "numpy"}
    assert set(about.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])


def test_the_index_shows_a_readme_whose_links_lead_somewhere(built):
    about = wheel_metadata(built[1])
    assert about["Description-Content-Type"] == "text/markdown"
    shown = about.get_payload()
    assert "# isda" in shown
    assert "criterion = ISDALoss.attach(model" in shown
    # Code such as model[2](features) is no link.
    links = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"(?s)```.*?```", "", shown))
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def test_with_an_address_the_links_of_the_readme_are_absolute():
    found = spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    hook = module_from_spec(found)
    found.loader.exec_module(hook)
    rest = "[below](#citing), [paper](https://doi.org/1)\n```python\nmodel[2](features)\n```\n"
    text = f"[how](docs/guide.md#choosing), ![seen](docs/report.png), {rest}"
    base = "https://example.org"
    assert (
        hook.for_index(text, base) == f"[how]({base}/docs/guide.md#choosing), ![seen]({base}/docs/report.png), {rest}"
    )
    assert hook.for_index(text, None) == f"how, , {rest}"


TRAIN = """
import json, sys, torch, numpy; torch.manual_seed(0)
before = set(sys.modules)
import isda
from isda import ISDALoss
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
criterion = ISDALoss.attach(model, lambda_0=0.5, total_steps=10)
optimiser = torch.optim.SGD(model.parameters(), 0.1)
start = model[2].weight.detach().clone()
for _ in range(2):
    loss = criterion(model(torch.randn(16, 3)), torch.arange(16) % 4)
    optimiser.zero_grad(); loss.backward(); optimiser.step()
moved = bool((model[2].weight != start).any(1).all())
print(json.dumps([isda.__file__, int(criterion.step), moved, sorted(loaded - set(sys.stdlib_module_names))]))
"""


def test_the_criterion_trains_and_its_import_loads_nothing_but_isda_on_top_of_torch(bare):
    done = bare(TRAIN)
    assert done.returncode == 0, done.stderr
    place, step, moved, loaded = json.loads(done.stdout)
    assert not Path(place).is_relative_to(SOURCE)
    assert (step, moved) == (2, True)
    # This is why importing isda takes next to nothing on top of torch.
    assert loaded == ["isda"]


NEEDS = {
    "from isda.lab import networks; networks.create('timm:resnet18', 10)": "networks.create needs timm",
    "from isda.lab import data; data.load('digits')": "data.load needs scikit-learn",
}
REPORT = """
import json, sys
said = {}
for statement in json.loads(sys.argv[1]):
    try:
        exec(statement, {})
    except ImportError as error:
        said[statement] = f"{type(error).__name__}: {error}"
print(json.dumps(said))
"""


def lab_command(wheel: Path) -> str:
    """What installs the extra where isda was installed from a file."""
    return f'pip install "isda-torch[lab] @ {wheel.as_uri()}"'


def test_a_missing_library_is_named_with_the_extra_that_brings_it(bare, built):
    done = bare(REPORT, json.dumps(list(NEEDS)))
    assert done.returncode == 0, done.stderr
    command = lab_command(built[1])
    sentences = {code: f"MissingExtra: {needs}, which is not installed: {command}" for code, needs in NEEDS.items()}
    assert json.loads(done.stdout) == sentences


def test_pip_accepts_what_is_said_to_install_an_extra(built):
    from isda.lab.extras import requirement

    origins = [
        {"url": built[1].as_uri(), "archive_info": {}},
        {"url": ROOT.as_uri(), "dir_info": {}},
    ]
    for origin in origins:
        words = shlex.split(requirement("lab", origin))
        options = ["--dry-run", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed"]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", *options, *words], capture_output=True, text=True
        )
        assert f"Would install isda-torch-{PROJECT['version']}" in done.stdout, done.stderr


def test_commands_name_the_extra_and_end_without_a_traceback(bare, built):
    assert bare("isda", "--version").stdout == f"isda {PROJECT['version']}\n"
    helped = bare("isda", "--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    for named, options in (("train", ["--help"]), ("segment train", []), ("report", ["runs"])):
        done = bare("isda", *named.split(), *options)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"isda: isda {named} needs tyro, which is not installed: {lab_command(built[1])}\n"


def test_the_pythons_that_the_index_names_are_those_that_the_workflow_tests():
    named = {name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)}
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert set(re.findall(r'"(3\.\d+)"', workflow)) == named
    assert f">={min(named, key=lambda name: int(name.partition('.')[2]))}" == PROJECT["requires-python"]


def test_the_oldest_versions_that_are_tested_are_those_that_are_promised():
    extras = PROJECT["optional-dependencies"]
    promised = [Requirement(line) for lines in (PROJECT["dependencies"], *extras.values()) for line in lines]
    oldest = {one.name: Version(str(one.specifier).removeprefix(">=")) for one in promised if one.specifier}
    content = (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8")
    pinned = re.findall(r"^([\w-]+)==(.+)$", content, re.MULTILINE)
    assert {name: Version(version) for name, version in pinned} == {name: oldest[name] for name, _ in pinned}
    assert {Requirement(line).name for line in PROJECT["dependencies"] + extras["lab"]} <= {name for name, _ in pinned}


def test_every_library_of_an_extra_is_known_by_its_module_name():
    """Each extra that users install: what it brings, as it is imported, is in the table of isda.lab.extras."""
    from isda.lab.extras import install_command, missing_message

    modules = {"pillow": "PIL", "scikit-learn": "sklearn"}
    for extra in ("lab", "onnx", "ray", "slurm", "tables"):
        for line in PROJECT["optional-dependencies"][extra]:
            name = Requirement(line).name
            assert missing_message(modules.get(name, name.replace("-", "_"))).endswith(install_command(extra))
