"""Quorum arithmetic: which bookies store an entry, and when enough of them have answered.

Everything counts *indices* into an ensemble, never addresses (W1). A set of indices is a bit mask: bit i is index i.
"""

from __future__ import annotations

from functools import cached_property

import attrs

from replog.errors import ConfigError

ENSEMBLE_MAX = 256  # bookies: where entries stripe, a stored ledger has a part for each


@attrs.frozen
class Quorum:
    """How widely a ledger is stored: `ensemble` bookies, each entry on `write` of them, durable once `ack` have it.

    `256 >= ensemble >= write >= ack >= 1`, else `ConfigError`. With `ack = 1` one lost bookie can make recovery wait
    without end, because recovery then needs an answer of every bookie of a write set (R9).
    """

    ensemble: int = 3
    write: int = 3
    ack: int = 2

    def __attrs_post_init__(self) -> None:
        numbers = (self.ensemble, self.write, self.ack)
        if any(not isinstance(number, int) or isinstance(number, bool) for number in numbers):
            raise ConfigError(f"quorum {numbers}: each of ensemble, write and ack is a whole number")
        if not self.ensemble >= self.write >= self.ack >= 1:
            raise ConfigError(
                f"quorum {numbers}: ensemble >= write >= ack >= 1 must hold; "
                f"got ensemble={self.ensemble}, write={self.write}, ack={self.ack}"
            )
        if self.ensemble > ENSEMBLE_MAX:
            raise ConfigError(f"quorum {numbers}: an ensemble has at most {ENSEMBLE_MAX} bookies")

    @cached_property
    def stride(self) -> int:
        """The distance of consecutive entries of one batch: 1 if every entry has the same write set, else E."""
        # A batch has one write set. Where each entry has another one, a batch takes every E-th entry.
        return 1 if self.write == self.ensemble else self.ensemble

    @property
    def negatives_needed(self) -> int:
        """How many of a write set must be covered, so that no ack quorum of it avoids them: (Qw - Qa) + 1."""
        return self.write - self.ack + 1

    @property
    def writable_needed(self) -> int:
        """How many of a write set must be there when an ensemble names bookies that are away: so many that entries can be
        confirmed, and that the ledger can be recovered, without the others (C7)."""
        return max(self.ack, self.negatives_needed)

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """The ensemble indices that store this entry, first choice first (W1)."""
        return self._write_sets[entry_id % self.ensemble]

    @cached_property
    def _write_sets(self) -> tuple[tuple[int, ...], ...]:
        size, write = self.ensemble, range(self.write)
        return tuple(tuple((rotation + offset) % size for offset in write) for rotation in range(size))

    def stores(self, index: int, entry_id: int) -> bool:
        """True if this index is in the write set of the entry."""
        return (index - entry_id) % self.ensemble < self.write

    def is_acknowledged(self, entry_id: int, indices: int) -> bool:
        """True if these indices contain an ack quorum of the entry's write set."""
        return (indices & self.write_mask(entry_id)).bit_count() >= self.ack

    def is_absent(self, entry_id: int, negatives: int) -> bool:
        """True if these negative answers prove that no ack quorum can hold the entry (R4)."""
        return (negatives & self.write_mask(entry_id)).bit_count() >= self.negatives_needed

    def is_covered(self, indices: int) -> bool:
        """True if these indices cover every write set of the ensemble, rotation by rotation (R2)."""
        return all(self.is_absent(rotation, indices) for rotation in range(self.ensemble))

    def may_acknowledge(self, usable: int) -> bool:
        """True if every write set can still reach its ack quorum with these indices alone."""
        return all(self.is_acknowledged(rotation, usable) for rotation in range(self.ensemble))

    def may_lack(self, missing: int) -> bool:
        """True if every write set keeps enough bookies if these indices are away (C7)."""
        return all(
            (self.write_mask(each) & ~missing).bit_count() >= self.writable_needed for each in range(self.ensemble)
        )

    def spread(self, count: int) -> tuple[int, ...]:
        """So many indices as far from each other as can be: if any such choice of indices may be lacking, this one may."""
        return tuple(self.ensemble * place // count for place in range(count))

    def write_mask(self, entry_id: int) -> int:
        """The write set as a bit mask."""
        return self._write_masks[entry_id % self.ensemble]

    @cached_property
    def _write_masks(self) -> tuple[int, ...]:
        masks = tuple(sum(1 << index for index in write_set) for write_set in self._write_sets)
        assert max(masks) < 1 << self.ensemble, "a write set has indices of the ensemble only (W1)"
        return masks
