"""The built site: every link leads somewhere, nothing comes from elsewhere, and pages fit a desk and a phone."""

import functools
import importlib
import inspect
import os
import subprocess
import sys
import threading
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from formulas import mathml  # noqa: E402
from headless_browser import headless_chromium  # noqa: E402

DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


class Page(HTMLParser):
    """What a page links to and loads, and the places in it that can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
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
def test_the_reference_has_every_public_class_and_function(pages, name):
    module = importlib.import_module(f"isda.{name}")
    places = {place for path, page in pages.items() if path.parent.name == "reference" for place in page.places}
    offered = [(one, getattr(module, one)) for one in module.__all__]
    missing = [one for one, value in offered if inspect.isclass(value) or inspect.isfunction(value)]
    assert [one for one in missing if f"isda.{name}.{one}" not in places] == []


def test_pages_fit_a_phone_and_a_desk_and_ask_nobody_else(site, pages):
    asked: list[str] = []
    too_wide = []
    seen = {"desk": (DESK, [site / "index.html", site / "theory.html"]), "phone": (PHONE, list(pages))}
    with headless_chromium() as browser:
        for name, (viewport, shown) in seen.items():
            tab = browser.new_page(viewport=viewport)
            tab.on("request", lambda request: asked.append(request.url))
            for path in shown:
                tab.goto(path.as_uri(), wait_until="domcontentloaded")
                if tab.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
                    too_wide.append(f"{path.relative_to(site)} on a {name}")
            tab.close()
    assert too_wide == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def test_search_finds_a_page_where_the_site_is_served(site):
    """From a disk browsers do not let the search read its index; served, it must need nothing else."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, headless_chromium() as browser:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab = browser.new_page(viewport=DESK)
        tab.goto(f"http://127.0.0.1:{server.server_port}/index.html")
        tab.fill(".md-search__input", "tilted bound")
        tab.wait_for_selector(".md-search-result__link[href*='theory']", timeout=60_000, state="attached")
        server.shutdown()
