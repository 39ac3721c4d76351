"""The errors of an LMDB metastore whose disk refuses something: the event, its outcome, and the remedy."""

from __future__ import annotations

from replog.errors import MetastoreError, MetastoreFullError, MetastoreUnavailableError
from replog.runtime.disk_errors import Trouble, code_of, described, free_bytes_at, trouble_of

NEW_BYTES = 192 << 10  # what the files of a new metastore take, with the pages of its first commits
# Waiting does not help.
_LASTING = (Trouble.READ_ONLY, Trouble.FORBIDDEN, Trouble.GONE, Trouble.BROKEN)


def is_full(error: Exception, path: str) -> bool:
    """Whether the error is only a lack of space on the disk of this directory."""
    return trouble_of(error, free_bytes_at(path)) is Trouble.FULL


def not_opened(path: str, what: str, error: Exception) -> MetastoreError:
    """The error for a directory that cannot be opened or made: `what` says which of them."""
    return _refused(f"metastore {path}: {what}: {described(error)}. Nothing was changed", error, path, NEW_BYTES)


def not_written(path: str, error: Exception, held_back: str = "") -> MetastoreError:
    """The error for a change that the disk refused, of which nothing is left. `held_back` names the process that keeps
    it from using space."""
    return _refused(
        f"metastore {path}: a change failed: {described(error)}; nothing was written{held_back}", error, path
    )


def _refused(problem: str, error: Exception, path: str, needed_bytes: int = 0) -> MetastoreError:
    trouble = trouble_of(error, free_bytes_at(path))
    kind: type[MetastoreError] = MetastoreUnavailableError
    if trouble is Trouble.FULL:
        kind = MetastoreFullError
    elif trouble in _LASTING and code_of(error) > 0:
        kind = MetastoreError
    advice = advice_for(error, path, needed_bytes)
    return kind(f"{problem}. {advice}, then try again" if advice else f"{problem}. Try again")


def advice_for(error: Exception, path: str, needed_bytes: int = 0) -> str:
    """The remedy, as a sentence; empty if the error has no errno. A new directory needs so many bytes."""
    free_bytes = free_bytes_at(path)
    trouble = trouble_of(error, free_bytes)
    if trouble is Trouble.FULL:
        free = "" if free_bytes is None else f": {free_bytes} bytes are free"
        needed = f", and a new metastore needs {needed_bytes}" if free and needed_bytes else ""
        return f"The disk is full{free}{needed}. Make room on it"
    return f"{trouble.value[0].upper()}{trouble.value[1:]}" if code_of(error) > 0 else ""
