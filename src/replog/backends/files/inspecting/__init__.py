"""Looking into a storage from outside, on a stopped bookie or a running one: strictly read-only.

Nothing here takes a lock, opens a file for writing, or makes or touches one. A bookie that runs meanwhile appends to files,
recycles or removes them: what was read is reported as of then, and a file that is gone is reported as gone.

Each function yields or returns reports (see `replog.backends.inspection.reports`). Damage is a report too, never an
exception; only what can't be inspected at all raises: `StorageIdentityError`, `StorageDamagedError`, `StorageFailedError`,
`ConfigError`.
Files are read forward in windows, so memory is bounded by the largest record, and by what is known of each ledger.

There is one parser of each format, the storage's own: `scanning` for records, `indexing` for indexes, `catalog`, `directory`
and `durable_mark`. They read through a `ReadOnlyDisk`; what is in here says what is wrong where they stop.
"""

from __future__ import annotations

from replog.backends.files.inspecting.entry_logs import inspect_entry_logs, inspect_indexes
from replog.backends.files.inspecting.journals import inspect_journal
from replog.backends.files.inspecting.places import Place, find_place
from replog.backends.files.inspecting.storages import inspect_ledger, inspect_storage

__all__ = [
    "Place",
    "find_place",
    "inspect_entry_logs",
    "inspect_indexes",
    "inspect_journal",
    "inspect_ledger",
    "inspect_storage",
]
