"""The changelog has an entry for the version in hand, and fragments are named so that none is left out of it."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TYPES = {each["directory"] for each in PROJECT["tool"]["towncrier"]["type"]}
# Of an issue, or of no issue and then with a plus; a number tells apart those of one issue and type.
NAME = re.compile(rf"(\d+|\+[a-z0-9][a-z0-9.-]*)\.({'|'.join(sorted(TYPES))})(\.\d+)?\.md")


def test_fragments_have_a_known_type() -> None:
    """towncrier ignores others without a word."""
    names = [each.name for each in (ROOT / "changelog.d").iterdir() if each.name != "README.md"]
    assert [name for name in names if not NAME.fullmatch(name)] == []


def test_fragments_say_something() -> None:
    fragments = [each for each in (ROOT / "changelog.d").glob("*.md") if each.name != "README.md"]
    assert [each.name for each in fragments if len(each.read_text(encoding="utf-8").split()) < 5] == []


def test_changelog_begins_with_the_version_in_hand() -> None:
    marker = PROJECT["tool"]["towncrier"]["start_string"]
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert text.count(marker) == 1
    released = PROJECT["project"]["version"].partition(".dev")[0]
    first = re.search(r"^## (.+)$", text.partition(marker)[2], re.MULTILINE)
    assert first is not None
    assert first[1].startswith(f"{released} (")
