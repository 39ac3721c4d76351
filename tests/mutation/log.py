"""Mutants of logs made of ledgers, beside those of the simulators' tables."""

from tests.mutation.table import SourceMutant

_FIRST = {
    "log/catalog.py": ("tests/log/test_ids.py", "tests/log/test_catalog.py", "tests/log/test_trimming.py"),
    "log/producers.py": ("tests/log/test_ids.py",),
    "protocol/producers.py": ("tests/protocol/test_producers.py", "tests/log/test_ids.py"),
    "log/compacting.py": ("tests/log/test_compacting.py",),
    "log/log_reader.py": (
        "tests/log/test_reading_cancelled.py",
        "tests/log/test_reader.py",
        "tests/log/test_reader_amid_roll.py",
        "tests/log/test_following.py",
    ),
    "log/log_driver.py": ("tests/log/test_pages.py", "tests/log/test_sweeping.py", "tests/log/test_writer.py"),
    "log/log_records.py": ("tests/log/test_pages.py",),
    "log/since.py": ("tests/log/test_since.py",),
    "log/sweeping.py": ("tests/log/test_sweeping.py",),
    "log/log_writer.py": (
        "tests/log/test_ids.py",
        "tests/log/test_fenced_positions.py",
        "tests/log/test_writer.py",
        "tests/log/test_closing_previous.py",
    ),
    "log/rolling.py": (
        "tests/log/test_unbounded_logs.py",
        "tests/log/test_fenced_positions.py",
        "tests/log/test_writer.py",
        "tests/log/test_closing_previous.py",
    ),
    "protocol/dropping.py": (
        "tests/protocol/test_chaining.py",
        "tests/log/test_trimming.py",
        "tests/log/test_deleting.py",
        "tests/protocol/test_log_pages.py",
    ),
    "protocol/rolling.py": (
        "tests/protocol/test_splicing.py",
        "tests/protocol/test_unbounded_logs.py",
        "tests/protocol/test_chaining.py",
    ),
    "protocol/chaining.py": (
        "tests/protocol/test_unbounded_logs.py",
        "tests/protocol/test_chaining.py",
        "tests/protocol/test_spec_logs.py",
        "tests/protocol/test_log_pages.py",
    ),
}
_THEN = ("tests/log", "tests/simulator")


def _mutant(name: str, rule: str, file: str, old: str, new: str, why: str) -> SourceMutant:
    return SourceMutant(name, rule, file, old, new, why, (*_FIRST[file], *_THEN))


MUTANTS = (
    _mutant(
        "trim-drops-unread-ids",
        "L11",
        "log/catalog.py",
        "head.trimmed_before(end if unread is None else min(end, unread))",
        "head.trimmed_before(end)",
        "the segment of a leader that died is trimmed before anybody has read its ids",
    ),
    _mutant(
        "record-begun-without-a-touch",
        "L11",
        "log/producers.py",
        "head = await edit(self._name, touch, self._ledgers, self._logs)",
        "head, _ = await self._logs.get(self._name)",
        "a trim that looked before there was a record drops the first ids",
    ),
    _mutant(
        "record-goes-back",
        "L11",
        "log/producers.py",
        "if found is not None and found.place >= record.place:",
        "if found is not None and found.place == record.place:",
        "a deposed leader writes an older record over that of its successor",
    ),
    _mutant(
        "producers-of-a-deleted-log",
        "L11",
        "log/producers.py",
        "if record is None or record.deletions < self._deletions or self._is_beginning:",
        "if record is None or self._is_beginning:",
        "a log takes the ids of a deleted one of its name for its own",
    ),
    _mutant(
        "ids-of-earlier-terms-unread",
        "L11",
        "log/producers.py",
        "if not is_closed and not self._first.entry:",
        "if not is_closed:",
        "a leader that goes on in a ledger does not know the ids that are in it",
    ),
    _mutant(
        "open-segment-forgets",
        "L11",
        "protocol/producers.py",
        "while self._recent and self._recent[0][0].segment <= through:",
        "while self._recent:",
        "ids are forgotten, or written down, whose entries may still be lost",
    ),
    _mutant(
        "forgotten-id-taken-for-new",
        "L11",
        "protocol/producers.py",
        "if position is None and entry_id.sequence <= producer.forgotten:",
        "if position is None and entry_id.sequence < producer.forgotten:",
        "the last id that was forgotten is appended again",
    ),
    _mutant(
        "repetition-not-waited-for",
        "L11",
        "log/log_writer.py",
        "if writer is not None and writer.last_add_confirmed < position.entry:",
        "if writer is None:",
        "an entry in flight is said to be confirmed",
    ),
    _mutant(
        "pushed-without-another-look",
        "L11",
        "log/log_writer.py",
        "await self._wait_for_room(len(stored))\n                continue",
        "await self._wait_for_room(len(stored))\n                position = self.push_nowait(stored)",
        "two tasks that repeat one id wait for room, and both append it",
    ),
    _mutant(
        "first-value-kept",
        "-",
        "log/compacting.py",
        "return not record.is_tombstone and self._last.get(record.key) == record.position",
        "return not record.is_tombstone",
        "a compaction keeps values that were replaced",
    ),
    _mutant(
        "deposed-leader-rolls",
        "L5",
        "protocol/rolling.py",
        "if segments and segments[-1] == self._current:",
        "if segments:",
        "a leader that was deposed adds its next ledger to the log",
    ),
    _mutant(
        "roll-taken-for-won",
        "L5",
        "protocol/rolling.py",
        "if segments and segments[-1] == proposed.segments[-1]:",
        "if segments and segments[-1].number == proposed.segments[-1].number:",
        "a leader that was deposed while it rolled goes on",
    ),
    _mutant(
        "roll-ignores-the-term",
        "L9",
        "protocol/rolling.py",
        "if segments and segments[-1] == self._current:",
        "if segments and segments[-1].ledger_id == self._current.ledger_id:",
        "a leader that was deposed in its own ledger, and has nothing to append, rolls, and two lead",
    ),
    _mutant(
        "serves-before-naming-its-term",
        "L9",
        "protocol/chaining.py",
        "        self._propose(led.open_from(log.next_segment_number - 1), pages)",
        "        self._finish(self._ledger_id)",
        "a takeover that goes on in the last ledger serves though the log's record may have changed",
    ),
    _mutant(
        "previous-goes-on",
        "L9",
        "log/rolling.py",
        "            await previous.finish()",
        "            await previous.aclose()",
        "an unbounded ledger stays open behind which there is another, and followers never cross to that",
    ),
    _mutant(
        "drops-what-is-named",
        "L3",
        "protocol/dropping.py",
        "DropSegments(log.name, log.deleted_before_number, log.first_segment_number,",
        "DropSegments(log.name, log.deleted_before_number, log.first_segment_number + 1,",
        "ledgers are deleted that the log still names",
    ),
    _mutant(
        "deletes-the-next-log",
        "L3",
        "protocol/dropping.py",
        "elif self._deletions is not None and log.deletions != self._deletions:",
        "elif False:",
        "a deletion whose answer was lost deletes the log that was begun after it",
    ),
    _mutant(
        "giving-back-what-is-named",
        "L3",
        "protocol/chaining.py",
        (
            "        if listed is not None and listed.ledger_id == segment.ledger_id:\n"
            "            # It was written, and somebody has changed the record since: the log owns it.\n"
            "            return\n"
        ),
        "",
        "a ledger that the log names is deleted as if its CAS had lost",
    ),
    _mutant(
        "position-of-the-next",
        "L4",
        "log/log_writer.py",
        "            return Position(segment, await writer.append(data))",
        ("            entry = await writer.append(data)\n            return Position(self._segment, entry)"),
        "an append that a roll overtakes is given a position in the new segment",
    ),
    _mutant(
        "flush-forgets-previous",
        "L2",
        "log/log_writer.py",
        "writers = [self._writer] if previous is None else [previous, self._writer]",
        "writers = [self._writer]",
        "a flush over a roll returns before the previous ledger is confirmed",
    ),
    _mutant(
        "new-ledger-sends-early",
        "L2",
        "log/rolling.py",
        "        self.writer.hold()\n",
        "",
        "records for the new ledger may be confirmed before older ones",
    ),
    _mutant(
        "previous-stays-open",
        "L1",
        "log/rolling.py",
        "is_closed = await self._close_previous(previous)\n",
        "is_closed = False\n",
        "ledgers before the last two stay open, and no takeover fences them",
    ),
    _mutant(
        "deposed-leader-goes-on",
        "L5",
        "log/rolling.py",
        "            self._current.writer.abandon(error)\n            raise\n        if answered",
        "            raise\n        if answered",
        "a leader that learns on a roll that it is deposed goes on appending",
    ),
    _mutant(
        "fate-of-previous-forgotten",
        "W4",
        "log/rolling.py",
        "            error.positions = [*earlier, *error.positions]\n",
        "            pass\n",
        "FencedError does not tell of unconfirmed records in the previous segment",
    ),
    _mutant(
        "conflict-is-won",
        "L1",
        "log/log_driver.py",
        (
            "            machine.log_conflict()\n"
            "        except MetastoreUncertainError as error:\n"
            "            # Counted from"
        ),
        (
            "            machine.log_written((expected or 0) + 1)\n"
            "        except MetastoreUncertainError as error:\n"
            "            # Counted from"
        ),
        "a leader serves though its CAS lost",
    ),
    _mutant(
        "gap-in-segments",
        "L6",
        "log/log_records.py",
        "                found = []  # otherwise there would be a gap\n",
        "                pass\n",
        "a list of segments has a gap when the log is trimmed meanwhile",
    ),
    _mutant(
        "sweep-forgets-new-names",
        "L3",
        "log/log_driver.py",
        "unnamed = tuple(each for each in effect.ledger_ids if each not in named)",
        "unnamed = tuple(effect.ledger_ids)",
        "a sweep deletes what the log has come to name",
    ),
    _mutant(
        "reader-ends-with-open-segment",
        "L6",
        "log/log_reader.py",
        "        if scan.is_at_end:\n            self._scan = None\n            return True\n",
        "        if scan.is_at_end or not self._follow:\n            self._scan = None\n            return True\n",
        "a reader leaves a segment that is not closed",
    ),
    _mutant(
        "batch-does-not-move-reader",
        "L6",
        "log/log_reader.py",
        "self._position, self._record = Position(segment.number, batch.last_entry_id), None",
        "self._record = None",
        "who reads batches resumes from the beginning",
    ),
    _mutant(
        "search-by-time-halves-too-far",
        "L6",
        "log/since.py",
        "                high = middle\n",
        "                high = middle - 1\n",
        "an entry that was sent since the time is skipped",
    ),
    _mutant(
        "search-by-time-trusts-other-clocks",
        "L6",
        "log/since.py",
        "        for segment in segments:\n",
        "        for segment in segments[-2:]:\n",
        "entries of a leader whose clock was ahead of its successors' are skipped",
    ),
    _mutant(
        "grace-is-ignored",
        "L3",
        "log/sweeping.py",
        "if registered_at_ms is not None and registered_at_ms >= before_ms:",
        "if False:",
        "a sweep deletes ledgers of jobs that still run",
    ),
    _mutant(
        "trims-past-the-end",
        "L3",
        "log/catalog.py",
        "if before.segment >= head.next_segment_number:",
        "if False:",
        "a position that the log never had trims it",
    ),
)
