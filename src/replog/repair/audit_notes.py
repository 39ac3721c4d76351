"""Results of earlier audits, so that later ones ask bookies only about ledgers that may have changed.

A bookie holds less than before only if it was started again, found damage, or is in doubt about its storage (B8). Its
statistics count all of that, so two equal answers prove that it has lost nothing in between. Entries that a bookie
drops because a record names others do not count: the next audit of that ledger sees a new version of the record.

Rules, which make this exact:

- A bookie's state is read before any ledger is asked about, and a note says of which round of states it is.
- A note holds as long as the ledger's record has the same version, and no member of its fragments changed its state since.
- A bookie that does not tell its state has changed.

Notes may outlive their process in a file (format 1, a JSON object): `states` has four numbers of each bookie, by its id, as they
were before it was asked; `ledgers` has a pair for each ledger that lacked nothing: how much higher its id is than the one before,
and the version of its record. Notes know nothing of a metastore that is put back from a back-up: versions repeat then, and
bookies may have dropped what old records name. An audit without notes sees that. The file is replaced by renaming, so it is
always whole; if it is lost, the next audit asks about every ledger.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path

import attrs

from replog.client.administration import BookieStatistics
from replog.errors import ConfigError
from replog.runtime.platform import sync_all

FORMAT = 1


@attrs.frozen
class BookieState:
    """The counters that change when a bookie may hold less than before."""

    started_at_s: float
    damage_reports: float
    doubted_below: float
    doubts_raised: float  # the doubt may have ended since: the bookie heals itself, and lost entries stay lost

    @classmethod
    def of(cls, statistics: BookieStatistics) -> BookieState | None:
        """The state; None if this version of a bookie does not tell it."""
        names = ("started_at_s", "damage_reports", "doubted_below_ledger_id", "doubts_raised")
        numbers = [statistics.numbers.get(name) for name in names]
        if any(each is None for each in numbers):
            return None
        return cls(*(float(each) for each in numbers if each is not None))


class AuditNotes:
    """The ledgers that lacked nothing when they were last asked about."""

    def __init__(self) -> None:
        self._full: dict[int, tuple[int, int]] = {}  # by ledger: the version of its record, and the round
        self._states: dict[str, BookieState] = {}
        self._changed_in: dict[str, int] = {}  # by bookie: the round in which its state was another one
        self._round = 0

    def begin(self, states: Mapping[str, BookieState | None]) -> int:
        """Begins a round, with the states of the bookies that were asked; returns its number."""
        self._round += 1
        for bookie_id in self._states.keys() | states.keys():
            state = states.get(bookie_id)
            if state is None or state != self._states.get(bookie_id):
                self._changed_in[bookie_id] = self._round
                self._states.pop(bookie_id, None)
            if state is not None:
                self._states[bookie_id] = state
        return self._round

    def is_full(self, ledger_id: int, version: int, bookie_ids: Iterable[str]) -> bool:
        """True if the ledger, with this version of its record and these members, lacked nothing and cannot lack anything now."""
        known_version, noted_in = self._full.get(ledger_id, (-1, -1))
        return version == known_version and all(
            bookie_id in self._states and self._changed_in[bookie_id] <= noted_in for bookie_id in bookie_ids
        )

    def note(self, ledger_id: int, version: int, round_number: int) -> None:
        """The ledger lacked nothing when it was asked about in this round."""
        self._full[ledger_id] = version, round_number

    def keep(self, ledger_ids: Iterable[int]) -> None:
        """Forgets all other ledgers: they are deleted, or another service audits them."""
        kept = set(ledger_ids)
        self._full = {ledger_id: note for ledger_id, note in self._full.items() if ledger_id in kept}

    def restore(self, value: bytes) -> None:
        """Begins with what `saved` returned in another process. Changes nothing if a round has begun. Raises ValueError if the
        value is something else."""
        states, ledgers = _decoded(value)
        if not self._round:
            round_number = self.begin({bookie_id: BookieState(*numbers) for bookie_id, numbers in states.items()})
            for ledger_id, version in ledgers:
                self.note(ledger_id, version, round_number)

    def saved(self) -> bytes:
        """The results of the last round, to be restored."""
        states = {bookie_id: list(attrs.astuple(state)) for bookie_id, state in sorted(self._states.items())}
        numbers, before = [], 0
        for ledger_id, (version, noted_in) in sorted(self._full.items()):
            if noted_in == self._round:
                numbers += [ledger_id - before, version]
                before = ledger_id
        fields = {"format": FORMAT, "states": states, "ledgers": numbers}
        return json.dumps(fields, separators=(",", ":")).encode()


def _decoded(value: bytes) -> tuple[dict[str, list[float]], Iterable[tuple[int, int]]]:
    fields = json.loads(value)
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise ValueError(f"not notes of an audit in format {FORMAT}")
    states, numbers = fields.get("states"), fields.get("ledgers")
    if not isinstance(states, dict) or not all(map(_is_state, states.values())):
        raise ValueError("its states are not four numbers for each bookie")
    if not isinstance(numbers, list) or len(numbers) % 2 or not all(type(each) is int for each in numbers):
        raise ValueError("its ledgers are not pairs of numbers")
    return states, zip(accumulate(numbers[::2]), numbers[1::2], strict=True)


def _is_state(value: object) -> bool:
    is_list = isinstance(value, list) and len(value) == len(attrs.fields(BookieState))
    return is_list and all(type(each) in (int, float) for each in value)  # type: ignore[attr-defined]


def restore_notes(path: str | os.PathLike[str], notes: AuditNotes) -> None:
    """Has the notes begin with what the file has, if there is one. Raises `ConfigError` if it has something else. Blocks."""
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
    """Replaces the file. Raises `ConfigError`. Blocks."""
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
