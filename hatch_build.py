"""What hatchling runs when it builds replog: README.md becomes the description that a package index shows, and a wheel gets the
types of `replog.aio` and `replog.blocking`, which hatch_stubs.py writes.

An index shows the description without the files beside it, so that a link to `docs/errors.md` leads nowhere there. With
`[project.urls] Source` in pyproject.toml, such links become absolute. Without it they become plain text, and pictures go.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

# Fenced and inline code is text to copy: nothing in it is a link.
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
_ABSOLUTE = r"(?!https?://|mailto:|#)"
# A text may have brackets inside, such as a picture that is a link.
_PICTURE = re.compile(rf"!\[([^\]]*)\]\({_ABSOLUTE}([^)\s]+)[^)]*\)")
_LINK = re.compile(rf"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\({_ABSOLUTE}([^)\s]+)\)")
_HTML_PICTURE = re.compile(r"<picture>.*?</picture>|<img\b[^>]*>", re.DOTALL)
_HTML_PLACE = re.compile(rf"\b(src|srcset|href)=\"{_ABSOLUTE}([^\"\s]+)\"")


def description_of(readme: str, source: str | None) -> str:
    """The text of a README whose relative links lead below `source`, or are plain text if there is no source."""
    if source is None:
        readme = _HTML_PICTURE.sub(lambda found: "" if _HTML_PLACE.search(found[0]) else found[0], readme)
    # Links around code have it inside, so code that is part of a link's text is put aside before links are looked for.
    aside: list[str] = []

    def put_aside(found: re.Match[str]) -> str:
        aside.append(found[0])
        return f"\0{len(aside) - 1}\0"

    text = _CODE.sub(put_aside, readme)
    if source is None:
        text = _LINK.sub(r"\1", _PICTURE.sub("", text))
        text = re.sub(rf"<a {_HTML_PLACE.pattern}>(.*?)</a>", r"\3", text, flags=re.DOTALL)
    else:
        pages, files = f"{source.rstrip('/')}/blob/main/", f"{source.rstrip('/')}/raw/main/"
        text = _LINK.sub(rf"[\1]({pages}\2)", _PICTURE.sub(rf"![\1]({files}\2)", text))
        text = _HTML_PLACE.sub(lambda found: f'{found[1]}="{pages if found[1] == "href" else files}{found[2]}"', text)
    return re.sub("\0(\\d+)\0", lambda found: aside[int(found[1])], text)


class ReadmeHook(MetadataHookInterface):
    """Sets `project.readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = description_of(readme, metadata.get("urls", {}).get("Source"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class StubsHook(BuildHookInterface[BuilderConfig]):
    """Writes the stubs among the sources, which a wheel copies, and to which an editable wheel leads."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # In a process of its own: this one may have imported another replog, or an older state of this one.
        subprocess.run([sys.executable, "hatch_stubs.py"], cwd=self.root, check=True, timeout=120)
