"""Which errors may pass by waiting: a list, and the pages that repeat it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from replog import errors
from replog.errors import BookieUnreachableError, FencedError, MetastoreError, TransientError

DOCS = Path(__file__).parent.parent / "docs" / "reference"
TRANSIENT = {
    "AddTimeoutError",
    "ArchiveUnreadableError",
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
        "MetastoreFullError",
        "MetastoreKeyError",
        "VersionConflictError",
    }


def test_transient_error_advises_a_retry() -> None:
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


def test_the_reference_shows_all_errors_with_their_bases() -> None:
    """A base tells which may pass by waiting."""
    page = (DOCS / "python" / "errors.md").read_text(encoding="utf-8")
    assert ".. automodule:: replog.errors\n   :members:\n   :show-inheritance:\n" in page


def section(page: str, heading: str) -> str:
    """What a page says below a heading."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return text.partition(f"{heading}\n")[2].partition("\n## ")[0]
