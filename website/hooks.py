"""What MkDocs does not do by itself: pages made from other files, formulas without a script, code that can be pasted.

Every link in docs/*.md is good where the file lies, so that the repository can be read without the site; links that
leave docs/ are turned here to the pages that this file makes of their targets.
"""

from __future__ import annotations

import doctest
import html
import posixpath
import re
from importlib.util import find_spec
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

import reference
from formulas import mathml

ROOT = Path(__file__).parent.parent
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
RESULTS = "benchmarks/results"
EXAMPLES = "examples"
FONT = "assets/STIXTwoMath-Regular.ttf"
ASSETS = ("site.css", "iframe-worker.js")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the generated pages of the reference to the menu."""
    config.nav = reference.with_generated_pages(config.nav or [])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and files that are made from others of the repository.

    Result tables and examples are reached from the pages that speak of them: they need no place in the menu.
    """
    beside = InclusionLevel.NOT_IN_NAV
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for path in sorted((ROOT / RESULTS).glob("*.*")):
        files.append(File.generated(config, f"{RESULTS}/{path.name}", abs_src_path=str(path), inclusion=beside))
    for path in sorted((ROOT / EXAMPLES).glob("*.py")):
        shown = f"# {path.name}\n\n```python\n{path.read_text(encoding='utf-8')}```\n"
        files.append(File.generated(config, f"{EXAMPLES}/{path.stem}.md", content=shown, inclusion=beside))
    for overview in reference.overviews().values():
        for generated in overview.pages:
            files.append(File.generated(config, generated.uri, content=generated.text))
    for name in ASSETS:
        files.append(File.generated(config, f"assets/{name}", abs_src_path=str(ROOT / "website" / name)))
    found = find_spec("ziamath")
    assert found is not None, "the extra docs brings it"
    font = Path(str(found.origin)).parent / "fonts" / Path(FONT).name
    files.append(File.generated(config, FONT, abs_src_path=str(font)))
    return files


_EXAMPLE = re.compile(r"(^ *```)python(\n *>>> )", re.MULTILINE)
_LINK = re.compile(r"\[(?P<words>[^\[\]]*)\]\((?P<target>(?!\w+:)[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files outside docs/ to the pages made of them; of files without a page the words stay.

    An overview of the reference gets its tables, and an example with prompts the colours of one.
    """
    overview = reference.overviews().get(page.file.src_uri)
    markdown = _EXAMPLE.sub(r"\1pycon\2", overview.text if overview else markdown)
    source = _place_in_repository(page.file.src_uri)

    def turned(link: re.Match[str]) -> str:
        place = posixpath.normpath(posixpath.join(posixpath.dirname(source), link["target"]))
        if not (ROOT / place).is_file():
            return link[0]
        uri = _place_on_site(place)
        if files.get_file_from_path(uri) is None:
            return link["words"]
        near = posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".")
        return f"[{link['words']}]({near}{link['anchor'] or ''})"

    return _LINK.sub(turned, markdown)


def _place_in_repository(uri: str) -> str:
    """Where the text of a page lies in the repository."""
    for source, page in PAGES.items():
        if uri == page:
            return source
    if uri.startswith(f"{EXAMPLES}/"):
        return f"{uri.removesuffix('.md')}.py"
    return uri if uri.startswith(f"{RESULTS}/") else f"docs/{uri}"


def _place_on_site(place: str) -> str:
    """The page that a file of the repository has, if it has one."""
    if place == "README.md":
        return "index.md"
    if place.startswith(f"{EXAMPLES}/"):
        return f"{place.removesuffix('.py')}.md"
    return PAGES.get(place, place.removeprefix("docs/"))


_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>([.,;:]?)', re.DOTALL)
_BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn formulas into MathML; what ends a sentence stays on the line of its formula. Make examples pasteable."""
    content = _CODE.sub(_with_pasteable_code, content)
    content = _BLOCK.sub(lambda found: f'<div class="formula">{_formula(found[1], page, block=True)}</div>', content)
    return _INLINE.sub(
        lambda found: f'<span class="formula">{_formula(found[1], page, block=False)}{found[2]}</span>', content
    )


def _formula(text: str, page: Page, *, block: bool) -> str:
    try:
        return mathml(html.unescape(text), block=block)
    except Exception as error:
        raise PluginError(f"{page.file.src_uri}: no formula: {text.strip()!r} ({error!r})") from error


_CODE = re.compile(r'<div class="(?P<kind>[^"]*\bhighlight)">(?P<code><pre.*?</pre>)', re.DOTALL)


def _with_pasteable_code(block: re.Match[str]) -> str:
    """An example with prompts, with its statements in the attribute that Material's copy button reads."""
    text = html.unescape(re.sub(r"<[^>]+>", "", block["code"]))
    if not re.search(r"^ *>>> ", text, re.MULTILINE):
        return block[0]
    return f'<div class="{block["kind"]}" data-copy="{html.escape(pasteable(text))}">{block["code"]}'


def pasteable(example: str) -> str:
    """The statements of an example, without prompts and results.

    An interactive Python needs an empty line after an indented block.
    """
    sources = [part.source for part in doctest.DocTestParser().get_examples(example)]
    return "".join(f"{source}\n" if source.splitlines()[-1].startswith(" ") else source for source in sources)
