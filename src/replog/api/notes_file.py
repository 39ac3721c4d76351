"""The file in which audits keep what they found complete (`replog.client.audit_notes`). Everything here blocks.

The file is replaced by renaming: it is always whole. If it is lost, the next audit asks about every ledger.
"""

from __future__ import annotations

import os
from pathlib import Path

from replog.client.audit_notes import AuditNotes
from replog.errors import ConfigError
from replog.runtime.platform import sync_all


def restore_notes(path: str | os.PathLike[str], notes: AuditNotes) -> None:
    """Has the notes begin with what the file has, if there is one. Raises `ConfigError` if it has something else."""
    try:
        notes.restore(Path(path).read_bytes())
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"notes of audits, {os.fspath(path)}: cannot be read: {error}") from error
    except ValueError as error:
        advice = (
            "it is another file, damaged, or of another version. Nothing was asked; name another file, or delete it"
        )
        raise ConfigError(f"notes of audits, {os.fspath(path)}: {error}: {advice}") from error


def save_notes(path: str | os.PathLike[str], notes: AuditNotes) -> None:
    """Replaces the file. Raises `ConfigError`."""
    unfinished = Path(f"{os.fspath(path)}.unfinished")
    try:
        with unfinished.open("wb") as file:
            file.write(notes.saved())
            file.flush()
            sync_all(file.fileno())
        unfinished.rename(path)
    except OSError as error:
        raise ConfigError(
            f"notes of audits, {os.fspath(path)}: cannot be written: {error}; the audit is done"
        ) from error
