"""A batch on its way to an ack quorum."""

from __future__ import annotations

from replog.protocol.batch import Batch


class PendingBatch:
    """A batch, and the indices of its write set that acknowledged it, as bit masks."""

    __slots__ = ("acknowledged", "batch", "write_mask")

    def __init__(self, batch: Batch, write_mask: int) -> None:
        self.batch = batch
        self.write_mask = write_mask
        self.acknowledged = 0
