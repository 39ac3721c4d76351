"""The exam of storages: what passes `check_storage` keeps the contract of `replog.abc.Storage`, as far as processes that
are killed can tell, and what passes `check_storage_damage` too never takes damage for absence. Power losses are beyond
them. Each failure cites the sentence or rule that it breaks."""

from __future__ import annotations

from replog.testing.storage_exam.batches import make_batch
from replog.testing.storage_exam.candidate import OpenStorage
from replog.testing.storage_exam.damage import check_storage_damage
from replog.testing.storage_exam.exam import check_storage

__all__ = ["OpenStorage", "check_storage", "check_storage_damage", "make_batch"]
