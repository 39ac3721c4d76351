"""Places with packages that are linked from this environment: what `pip install` brings, without an index.

`needed_by` follows the requirements of `pyproject.toml` and of the packages installed here, by the rules that pip follows.
"""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirements_of(extra: str = "") -> list[Requirement]:
    """The requirements of replog itself, or of one of its extras."""
    found = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    return [Requirement(each) for each in found]


def needed_by(requirements: Iterable[Requirement]) -> dict[str, importlib.metadata.Distribution]:
    """All distributions that these requirements bring, by normalized name."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [(each.name, frozenset(each.extras)) for each in requirements]
    while waiting:
        name, extras = waiting.pop()
        distribution = importlib.metadata.distribution(name)
        found[re.sub(r"[-_.]+", "-", name).lower()] = distribution
        for requirement in map(Requirement, distribution.requires or []):
            wanted = [{"extra": extra} for extra in ("", *extras)]
            if requirement.marker is None or any(map(requirement.marker.evaluate, wanted)):
                entry = (requirement.name, frozenset(requirement.extras))
                if re.sub(r"[-_.]+", "-", requirement.name).lower() not in found or requirement.extras:
                    waiting.append(entry)
    return found


def link(distributions: Iterable[importlib.metadata.Distribution], site: Path) -> None:
    """Link what these distributions have installed into a site directory: packages, modules and metadata."""
    for distribution in distributions:
        # Files of scripts and of the caches are named by paths that lead out of the site.
        roots = {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}
        for name in sorted(roots):
            place = site / name
            if not place.exists():
                place.symlink_to(Path(str(distribution.locate_file(name))))


def size_of(site: Path) -> int:
    """Bytes of all files below, those behind links included, without bytecode."""
    links = (each for each in site.iterdir() if not each.name.startswith("_virtualenv"))
    files = (file for each in links for file in ([each] if each.is_file() else each.rglob("*")))
    return sum(file.stat().st_size for file in files if file.is_file() and file.suffix != ".pyc")
