"""The adds of each sender to each bookie, as far as they matter when a ledger is closed."""

from __future__ import annotations

from collections import defaultdict

from replog.protocol.batch import Batch


class Sendings:
    """The adds of each writer, and of each recovery, to each bookie before it closed the ledger, and the reported failures."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, str], set[int]] = defaultdict(set)  # entry ids, by nonce and bookie
        self._failed: dict[tuple[str, str], set[int]] = defaultdict(set)
        self.starts: dict[str, int] = {}  # where each attempt to recover began to write back

    def sent(self, nonce: str, bookie_id: str, batch: Batch) -> None:
        """An add is on its way."""
        self._sent[nonce, bookie_id].update(batch.entry_ids)
        self._failed[nonce, bookie_id].difference_update(batch.entry_ids)

    def failed(self, nonce: str, bookie_id: str, batch: Batch) -> None:
        """The sender was told, in time, that an add failed, or that there will be no answer."""
        self._failed[nonce, bookie_id].update(batch.entry_ids)

    def is_known_to_lack(self, nonce: str, bookie_id: str, entry_id: int) -> bool:
        """Whether who closed the ledger knew that this bookie may lack the entry."""
        key = nonce, bookie_id
        return entry_id not in self._sent[key] or entry_id in self._failed[key]
