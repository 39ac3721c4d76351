"""Checking back-ups in directories."""

from __future__ import annotations

import os

from replog.backup import saving
from replog.backup.content import open_backup
from replog.registry import Registry


def check(path: str | os.PathLike[str]) -> saving.BackupReport:
    """What `replog verify` finds."""
    return saving.check(open_backup(path, Registry(load_installed=False)))
