"""The conformance suites of storages.

A storage that passes `check_storage` keeps the contract of `replog.abc.Storage`, even when its process is killed. One that also
passes `check_storage_damage` never reports damaged data as absent. Neither checks power losses. Each failure cites the sentence
or rule that is broken."""

from __future__ import annotations

from replog.testing.storage_conformance.batches import make_batch
from replog.testing.storage_conformance.candidate import OpenStorage
from replog.testing.storage_conformance.damage import check_storage_damage
from replog.testing.storage_conformance.suite import check_storage

__all__ = ["OpenStorage", "check_storage", "check_storage_damage", "make_batch"]
