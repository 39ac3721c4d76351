"""What a reader keeps of a question, to know its answer by."""

from __future__ import annotations

import attrs


@attrs.frozen
class Asked:
    """How far the ledger is confirmed was asked of this bookie, in this round; with `waits`, until that is past `after`."""

    index: int
    bookie_id: str
    in_round: int
    after: int
    waits: bool
