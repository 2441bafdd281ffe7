"""The built site: its links, searches, reference and copied code; nothing comes from elsewhere; pages fit a phone."""

import functools
import html
import importlib
import inspect
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from formulas import mathml  # noqa: E402
from headless_browser import headless_chromium  # noqa: E402
from hooks import pasteable  # noqa: E402
from isda.lab.cli.help import options_of  # noqa: E402
from isda.lab.cli.main import command  # noqa: E402
from reference import command_names, command_place, python_overview  # noqa: E402

DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


class Page(HTMLParser):
    """What a page links to and loads, the places in it that can be linked to, and the code that its buttons copy."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.copied: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if "data-copy" in given:
            self.copied.append(given["data-copy"])
        if "src" in given:
            self.loads.append(given["src"])
        if "href" in given:
            (self.links if tag == "a" else self.loads).append(given["href"])


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """Built as `make docs` builds it: a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=600, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="session")
def pages(site) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def test_every_link_leads_somewhere(site, pages):
    lost = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links start at the address that the site will have
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                lost.append(f"{path.relative_to(site)}: {link}")
            elif parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in pages[target].places:
                lost.append(f"{path.relative_to(site)}: {link} (no such place)")
    assert lost == []


def test_nothing_is_loaded_from_elsewhere(site, pages):
    foreign = [(path.name, load) for path, page in pages.items() for load in page.loads if urlsplit(load).netloc]
    assert foreign == []
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert "url(http" not in text
        assert "@import" not in text


def test_formulas_are_mathml_and_no_tex_is_left(site):
    text = (site / "theory.html").read_text(encoding="utf-8")
    assert text.count("<math") > 100
    assert "arithmatex" not in text
    assert "\\frac" not in text


def test_formulas_are_set_as_tex_sets_them():
    assert mathml(r"\Sigma", block=False).count('<mi mathvariant="normal">') == 1
    assert "&#x0223C;</mo>" in mathml(r"x \sim N(0, 1)", block=False)
    assert 'form="prefix"' in mathml("x = -y", block=True)
    assert 'form="prefix"' not in mathml("x - y", block=True)
    assert 'display="block"' in mathml("x", block=True)


@pytest.mark.parametrize(
    "name",
    [
        "losses",
        "losses.long_tail",
        "covariance",
        "functional",
        "networks",
        "data",
        "data.augment",
        "semi",
        "estimator",
        "integrations.huggingface",
        "integrations.accelerate",
        "integrations.lightning",
        "integrations.skorch",
        "integrations.fastai",
    ],
)
def test_the_reference_has_every_public_class_and_function(site, pages, name):
    module = importlib.import_module(f"isda.{name}")
    places = {path: page.places for path, page in pages.items() if path.is_relative_to(site / "reference")}
    for public in module.__all__:
        value = getattr(module, public)
        holders = [path for path, found in places.items() if f"isda.{name}.{public}" in found]
        if inspect.isclass(value):
            assert len(holders) == 1, f"{public} is on {len(holders)} pages"
            assert holders[0].stem in (public, f"{name.rpartition('.')[2]}.{public}"), "a class has its own page"
        elif inspect.isfunction(value):
            assert len(holders) == 1, f"{public} is on {len(holders)} pages"


def test_an_overview_links_to_a_page_for_each_class_and_for_each_group_of_functions():
    entries = ["covariance.FullCovariance", "covariance.create", "functional.jensen_bound"]
    shown = python_overview(
        "models", "# Models\n\n::: isda.{}\n\n## Making them\n\n::: isda.{}\n\n::: isda.{}\n".format(*entries)
    )
    assert [page.uri for page in shown.pages] == [
        "reference/models/FullCovariance.md",
        "reference/models/making-them.md",
    ]
    assert ":::" not in shown.text
    assert "[`create`](making-them.md#isda.covariance.create)" in shown.text
    assert all(f"::: isda.{name}" in shown.pages[1].text for name in entries[1:])


@pytest.mark.parametrize("name", [name for _, name, _ in command_names()])
def test_every_command_has_a_page_with_its_options_and_an_example(site, pages, name):
    path = (site / "reference" / "commands" / command_place(name)).with_suffix(".html")
    text = path.read_text(encoding="utf-8")
    options = options_of(command(name))
    expected = {option.name if option.positional else f"--{option.name}" for option in options}
    assert expected <= pages[path].places
    shown = re.sub(r"<[^>]+>", "", text)
    assert "For example:" in shown
    defaults = [option.default.replace("`", "") for option in options if option.default not in ("", "required")]
    assert [default for default in defaults if f"(default: {html.escape(default, quote=False)})" not in shown] == []


def test_the_menu_has_at_most_seven_tabs(site):
    text = (site / "index.html").read_text(encoding="utf-8")
    assert 1 < text.count('<li class="md-tabs__item') <= 7


def test_code_is_copied_without_prompts_and_results():
    assert pasteable(">>> 1 + 1\n2\n") == "1 + 1\n"
    assert (
        pasteable(">>> if True:\n...     x = '>>> '\n>>> print(x)\n>>> \n") == "if True:\n    x = '>>> '\n\nprint(x)\n"
    )
    assert pasteable(">>> f(\n...     1,\n... )\n[1,\n 2]\n\n>>> g()\n") == "f(\n    1,\n)\ng()\n"


def test_every_example_with_prompts_can_be_pasted(pages):
    examples = 0
    for path, page in pages.items():
        text = path.read_text(encoding="utf-8")
        with_prompts = [
            block for block in text.split('highlight"')[1:] if "&gt;&gt;&gt; " in block.partition("</pre>")[0]
        ]
        assert len(with_prompts) == len(page.copied), path.name
        for code in page.copied:
            compile(code, path.name, "exec")
        examples += len(page.copied)
    assert examples > 100


def test_the_copy_button_of_the_first_page_copies_code_that_runs(site):
    with headless_chromium() as browser:
        tab = browser.new_page(viewport=DESK)
        tab.goto((site / "index.html").as_uri())
        tab.locator(".highlight:has(.gp) button[data-md-type=copy]").first.click()
        tab.evaluate("document.body.prepend(document.createElement('textarea'))")
        tab.locator("textarea").focus()
        tab.keyboard.press("Control+V")
        code = tab.locator("textarea").input_value()
    assert code.startswith("import torch\n")
    assert ">>>" not in code
    variables: dict[str, object] = {}
    exec(compile(code, "index.md", "exec"), variables)
    assert "loss" in variables


def test_pages_fit_a_phone_and_a_desk_and_ask_nobody_else(site, pages):
    asked: list[str] = []
    too_wide = []
    generated = [path for path in pages if path.is_relative_to(site / "reference") and path.name != "index.html"]
    written = [path for path in pages if path not in generated]
    seen = [
        (DESK, [site / "index.html", site / "theory.html"], True),
        (PHONE, written, True),
        (PHONE, generated, False),
    ]
    with headless_chromium() as browser:
        for viewport, shown, scripts in seen:  # pages that two templates make are measured without scripts: faster
            tab = browser.new_context(viewport=viewport, java_script_enabled=scripts).new_page()
            tab.on("request", lambda request: asked.append(request.url))
            for path in shown:
                tab.goto(path.as_uri(), wait_until="load")
                if tab.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
                    too_wide.append(f"{path.relative_to(site)} at {viewport['width']} pixels")
            tab.close()
    assert too_wide == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


@contextmanager
def address_of(site: Path, served: bool) -> Iterator[str]:
    """Where a browser opens the site: on a server of this machine, or from the disk."""
    if not served:
        yield site.as_uri()
        return
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("served", [False, True], ids=["from a disk", "served"])
def test_search_finds_a_page_and_asks_nobody_else(site, served):
    asked: list[str] = []
    with address_of(site, served) as address, headless_chromium() as browser:
        tab = browser.new_page(viewport=DESK)
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(f"{address}/reference/index.html")
        tab.locator(".md-search__input").press_sequentially("tilted bound")
        link = tab.wait_for_selector(".md-search-result__link[href*='theory']", timeout=60_000, state="attached")
        assert (link.get_attribute("href") or "").startswith(address)
    assert [url for url in asked if not url.startswith((address, "data:", "blob:", "about:"))] == []
