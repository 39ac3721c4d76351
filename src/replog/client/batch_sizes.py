"""How many gathered entries a ledger's writer sends as one batch for each rotation of the write set (W1)."""

from __future__ import annotations

from replog.client.backlog import Backlog
from replog.protocol.batch import PackedPayloads
from replog.protocol.envelope import Enveloped

_HALVED_BYTES_MIN = 512 << 10  # less is sent as one batch: a second batch would cost more than the overlap saves
_ENTRY_OVERHEAD_BYTES = 4  # of an entry in a batch, beside its payload
_BATCH_ENTRIES_MAX = 1 << 16


class BatchSizes:
    """Takes batches from one writer's backlog."""

    def __init__(self, backlog: Backlog, batch_bytes_max: int, stride: int) -> None:
        self._backlog = backlog
        self._batch_bytes_max = batch_bytes_max
        self._stride = stride

    def take(self, *, is_pushed: bool) -> tuple[list[bytes], int]:
        """Takes the entries for the next batch, and their size in bytes: as many as fit into one batch for each rotation, and at
        least one for each."""
        backlog, gathered = self._backlog, self._backlog.gathered
        # A lone append is judged by its latency: it needs none of the arithmetic below.
        if len(gathered) == 1:
            backlog.gathered = []
            return gathered, len(gathered[0])
        size_bytes = backlog.gathered_bytes
        stride, limit_bytes = self._stride, self._bytes_max(is_pushed=is_pushed)
        fits = size_bytes + _ENTRY_OVERHEAD_BYTES * len(gathered) <= limit_bytes
        if fits and len(gathered) <= _BATCH_ENTRIES_MAX:
            backlog.gathered = []
            return gathered, size_bytes
        # By the average size: to look at each entry would cost more than the rare second try.
        fitting = len(gathered) * limit_bytes * stride // (size_bytes + _ENTRY_OVERHEAD_BYTES * len(gathered))
        batch = gathered[: max(1, min(_BATCH_ENTRIES_MAX, fitting))]
        while len(batch) > stride and self._largest_bytes(batch) > limit_bytes:
            # The estimate was wrong because the sizes differ much.
            del batch[len(batch) // 2 :]
        del gathered[: len(batch)]
        return batch, sum(map(len, batch))

    def fits(self, packed: PackedPayloads) -> bool:
        """True if these entries may be one batch as they are."""
        stored_bytes = packed.size_bytes + _ENTRY_OVERHEAD_BYTES * len(packed)
        is_small = stored_bytes <= self._batch_bytes_max and len(packed) <= _BATCH_ENTRIES_MAX
        return is_small and self._stride == 1

    def keep_one_kind(self, batch: list[bytes], size_bytes: int) -> tuple[list[bytes], int]:
        """Cuts the batch where plain entries and envelopes meet; puts the rest back."""
        count = _same_kind(list(map(type, batch)))
        if count == len(batch):
            return batch, size_bytes
        self._backlog.gathered[:0] = batch[count:]
        del batch[count:]
        return batch, sum(map(len, batch))

    def _bytes_max(self, *, is_pushed: bool) -> int:
        """The limit, or half of the gathered bytes if nearly everything unconfirmed has gathered: then the bookies write one half
        while the client builds the other. Entries that a caller waits for go as a whole."""
        backlog, limit_bytes = self._backlog, self._batch_bytes_max
        gathered_bytes = backlog.gathered_bytes
        is_nearly_all = gathered_bytes * 4 >= backlog.unconfirmed_bytes * 3
        if not is_pushed or not is_nearly_all or gathered_bytes < _HALVED_BYTES_MIN:
            return limit_bytes
        stored_bytes = gathered_bytes + _ENTRY_OVERHEAD_BYTES * len(backlog.gathered)
        return min(limit_bytes, stored_bytes // (2 * self._stride))

    def _largest_bytes(self, entries: list[bytes]) -> int:
        """The size of the largest batch that these entries make (W1)."""
        rotations = [entries[rotation :: self._stride] for rotation in range(self._stride)]
        return max(sum(map(len, rotation)) + _ENTRY_OVERHEAD_BYTES * len(rotation) for rotation in rotations)


def _same_kind(kinds: list[type]) -> int:
    """How many of the first entries of these types are envelopes, or are none, as the first one."""
    if len(set(kinds)) == 1:
        return len(kinds)
    is_envelope = [kind is Enveloped for kind in kinds]
    return is_envelope.index(not is_envelope[0]) if (not is_envelope[0]) in is_envelope else len(kinds)
