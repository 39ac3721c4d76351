"""Which errors may pass by waiting: a list, and the pages that repeat it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import replog
from replog import errors
from replog.errors import BookieUnreachableError, FencedError, MetastoreError, TransientError

DOCS = Path(__file__).parent.parent / "docs" / "reference"
TRANSIENT = {
    "AddTimeoutError",
    "CommandTimeoutError",
    "BookieRefusedError",
    "BookieTooBusyError",
    "BookieUnreachableError",
    "EntryUnreadableError",
    "MetastoreDoubtedError",
    "MetastoreUnavailableError",
    "MetastoreUncertainError",
    "NotEnoughBookiesError",
    "PlacementUnmetError",
    "RecoveryUndecidedError",
    "TakeoverFailedError",
    "WriteQuorumError",
}


def errors_that_are(kind: type[Exception]) -> set[str]:
    return {name for name, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, kind)} - {
        kind.__name__
    }


def test_transient_errors_are_these_and_no_others() -> None:
    assert errors_that_are(TransientError) == TRANSIENT


def test_deposed_writers_and_damage_are_not_transient() -> None:
    assert errors_that_are(FencedError).isdisjoint(TRANSIENT)
    lasting = errors_that_are(MetastoreError) - TRANSIENT
    assert lasting == {
        "KeyExistsError",
        "KeyNotFoundError",
        "MetastoreCorruptError",
        "MetastoreKeyError",
        "VersionConflictError",
    }


def test_a_transient_error_says_that_one_may_retry() -> None:
    """Its own docstring, or that of the class that makes it transient."""
    for name in TRANSIENT - {"BookieRefusedError"}:  # whose cause may last, as its docstring says
        assert re.search(r"Retry: (yes|when|later|only|take over)", getattr(errors, name).__doc__ or ""), name
    assert issubclass(errors.BookieRefusedError, BookieUnreachableError)


@pytest.mark.parametrize("name", sorted(TRANSIENT))
def test_the_page_of_errors_lists_each_transient_error(name: str) -> None:
    assert name in section("errors.md", "## Errors that may pass by waiting")


def test_the_page_of_errors_lists_no_other_as_transient() -> None:
    named = set(re.findall(r"^\| .*$", section("errors.md", "## Errors that may pass by waiting"), re.MULTILINE))
    assert {each for row in named for each in re.findall(r"`(\w+Error)`", row)} == TRANSIENT


def test_the_api_reference_marks_transient_errors() -> None:
    rows = re.findall(r"^\| `replog\.(\w+Error)` \| (.*) \|$", section("api.md", "## Errors"), re.MULTILINE)
    marked = {name for name, meaning in rows if meaning.startswith("*transient:*")}
    exported = {name for name in replog.__all__ if name in TRANSIENT}
    assert marked == exported


def section(page: str, heading: str) -> str:
    """What a page says below a heading."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return text.partition(f"{heading}\n")[2].partition("\n## ")[0]
