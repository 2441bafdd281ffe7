"""The README as a package index shows it: there its links and pictures have no files beside them to lead to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

__all__ = ["IndexReadme", "for_index"]

_FENCED = re.compile(r"(?ms)(^```.*?^```)")
_LINK = re.compile(r"(?P<picture>!?)\[(?P<words>[^\]]*)\]\((?P<target>(?!\w+:|#)[^)\s]+)\)")


def for_index(text: str, address: str | None) -> str:
    """Markdown whose relative links lead to ``address``, where the files of the repository can be read.

    Without an address links become their words, and pictures, alone on their lines, are left out.
    """

    def turned(link: re.Match[str]) -> str:
        if address is not None:
            return f"{link['picture']}[{link['words']}]({address.rstrip('/')}/{link['target']})"
        return "" if link["picture"] else str(link["words"])

    # Code between fences, every second part, stays as it is: model[2](features) is no link.
    parts = _FENCED.split(text)
    return "".join(part if index % 2 else _LINK.sub(turned, part) for index, part in enumerate(parts))


class IndexReadme(MetadataHookInterface):
    """Gives wheel and sdist their long description; ``files`` in pyproject.toml is the address, once there is one."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling with the project table."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": for_index(text, self.config.get("files"))}
