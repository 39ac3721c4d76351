"""Replays the journal at the start: fills the index, finds where writing continues, and notes losses (B3, B8).

A power loss may keep any part of the last group. That group was not acknowledged, so such a *torn tail* ends the replay
without an error. All groups before it were durable. So a group that can't be read is *lost* if anything proves that it was
durable: an intact group or record header with a higher sequence, the catalog, or the durable mark. Replay notes the place,
passes over it, and goes on with the next whole group of a higher sequence, in this file or a later one.

Behind a damaged place only these groups count: a whole group of the epoch that is current there, or one that the mark or the
catalog knows. A client can write bytes that look like a group, but it can't know an epoch.

Losses up to the sequence that the doubt accounts for were reported by an earlier start; ledgers of that time are doubted
already. Replaying changes nothing on the disk, and the same records twice give the same result.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from replog.backends.disk import Disk
from replog.backends.files.directory import journal_name
from replog.backends.files.index import Index
from replog.backends.files.log_file import JournalFile
from replog.backends.files.record import PAGE_BYTES, RECORD_HEADER_BYTES
from replog.backends.files.scanning import FoundBatch, Group, find_header, read_group
from replog.backends.files.window import LogWindow, Window

_SEQUENCE_MAX = 1 << 62  # no storage gets there; a header that says so proves nothing


class Replay:
    """One reading of all files, ascending by number. `known` is the highest sequence that is known to have been durable,
    `accounted` the one up to which losses were reported before. Raises `StorageFailedError`, `StorageIdentityError`."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        files: Sequence[JournalFile],
        open_files_max: int,
        index: Index,
        *,
        first_number: int,
        sequence: int,
        known: int,
        accounted: int,
    ) -> None:
        assert all(one.number < other.number for one, other in itertools.pairwise(files)), "files are in their order"
        self._disk = disk
        self._directory = directory
        self._files = files
        self._open_files_max = open_files_max
        self._next_number = first_number  # of the file in which the next group is expected
        self._known = known
        self._accounted = accounted
        self._has_gaps = False
        self._trace = 0, ""  # the highest sequence of an intact header that belongs to no whole group, and its place
        self.index = index
        self.sequence = sequence  # of the last group
        self.tail = files[0] if files else None  # the file with the last group
        self.last_group_start = PAGE_BYTES  # in the tail; the end is the tail's position
        self.losses: list[str] = []  # durable groups that can't be read
        self.unreadable: list[str] = []  # places that the disk refused to read: their content is unknown

    def run(self) -> None:
        """Reads everything."""
        opened: list[JournalFile] = []
        for at, file in enumerate(self._files):
            window = LogWindow(self._disk, file, passes_over=True)
            opened.append(file)
            self._replay_file(window, file)
            self.unreadable += [f"{file.path} can't be read at {offset}" for offset in window.unreadable]
            # The tail stays open: writing goes on in it.
            if at >= self._open_files_max:
                self._close_oldest(opened)
        assert len(opened) <= self._open_files_max + 1, "replay keeps no more files open than the options allow"
        self._find_missing_end()

    def _close_oldest(self, opened: list[JournalFile]) -> None:
        for file in opened:
            if file is not self.tail:
                self._disk.close(file.fd)
                file.fd = -1
                opened.remove(file)
                return

    @property
    def unused(self) -> list[JournalFile]:
        """The files after the tail: prepared, never used."""
        tail = self.tail
        return [] if tail is None else [file for file in self._files if file.number > tail.number]

    @property
    def goes_on_elsewhere(self) -> bool:
        """True if nothing more may be written to the tail: the bytes behind its last group must stay as they are."""
        tail = self.tail
        return tail is None or not tail.has_header or self._has_gaps or bool(self.unreadable)

    # -- what was lost --------------------------------------------------------------------------------------------

    def _find_missing_end(self) -> None:
        """Notes durable groups behind the last group found as lost."""
        sequence, place = self._trace
        if sequence > self.sequence + 1:
            self._note_loss(sequence, self._end, f"group {sequence} began at {place}")
        # The mark knows of groups that neither a later group nor a header proves: those at the very end.
        if self._known > max(self.sequence, self._accounted):
            self._note_loss(self._known, self._end, f"group {self._known} was durable")

    @property
    def _end(self) -> str:
        """The place where the group after the last one should be."""
        tail, following = self.tail, f"{self._directory}/{journal_name(self._next_number)}"
        if tail is None:
            return f"{self._directory} has no journal file"
        if tail.number > self._next_number:
            return f"{following} is missing"
        if tail.number == self._next_number:  # the first file, and nothing in it
            return f"{tail.path} is damaged at {tail.position}"
        return f"{tail.path} is damaged at {tail.position}, or {following} is missing or damaged"

    def _note_loss(self, last: int, place: str, proof: str) -> None:
        """Notes that the groups up to this one are gone. It is a loss unless an earlier start reported it."""
        assert last > self.sequence, "a group that was read is not lost"
        self._has_gaps = True
        if last <= self._accounted:
            return
        self._accounted = last
        groups = f"group {last} is" if last == self.sequence + 1 else f"groups {self.sequence + 1} to {last} are"
        self.losses.append(f"{place}: {groups} unreadable, though {proof}")

    @property
    def reached(self) -> int:
        """The sequence after which writing goes on: higher than that of any group that ever was written."""
        return max(self.sequence, self._accounted)

    # -- one file -------------------------------------------------------------------------------------------------

    def _replay_file(self, window: Window, file: JournalFile) -> None:
        while True:
            start = file.position
            # A file without its header page has no epoch that could be trusted: only the search below finds groups in it.
            group = read_group(window, file, start, file.epoch, self.sequence + 1) if file.has_header else None
            if group is None:
                found = self._find_group(window, file)
                if found is None:
                    return
                start, group = found
            assert group.sequence > self.sequence, "no group counts twice, and none after a later one"
            assert file.position <= start < group.end, "a group stands behind the one before it"
            if group.sequence > self.sequence + 1:
                self._note_gap(file, start, group.sequence)
            self._apply(group)
            self.tail = file
            self._next_number = file.number + 1
            self.last_group_start = start
            file.position = group.end
            file.epoch = group.epoch
            file.first_sequence = file.first_sequence or group.sequence
            file.last_sequence = self.sequence = group.sequence

    def _note_gap(self, file: JournalFile, start: int, sequence: int) -> None:
        missing = [f"{self._directory}/{journal_name(number)}" for number in range(self._next_number, file.number)]
        assert start >= file.position, "the gap is before the group that was found"
        place = self._end
        if start > file.position:
            place = f"{file.path} is damaged at {file.position}"
        elif missing:
            several = f" and {len(missing) - 1} more after it are" if len(missing) > 1 else " is"
            place = f"{missing[0]}{several} missing or damaged"
        self._note_loss(sequence - 1, place, f"group {sequence} stands at {start} in {file.path}")

    def _find_group(self, window: Window, file: JournalFile) -> tuple[int, Group] | None:
        """The next whole group that counts, and where it stands, or None if the rest of the file has none."""
        offset = file.position
        while (found := find_header(window, offset, file.seed)) is not None:
            offset, header = found
            if not self.sequence < header.sequence < _SEQUENCE_MAX:
                offset += 1
                continue
            is_trusted = header.epoch == file.epoch or header.sequence <= self._known
            if is_trusted and not header.position:
                group = read_group(window, file, offset, header.epoch, header.sequence)
                if group is not None:
                    assert offset >= file.position, "a search goes forward"
                    return offset, group
            self._trace = max(self._trace, (header.sequence, f"{offset} in {file.path}"))
            # A payload is skipped: what looks like a group inside one was written by a client.
            offset += RECORD_HEADER_BYTES + (header.length if is_trusted else 0)
        return None

    def _apply(self, group: Group) -> None:
        for record_type, content in group.records:
            if isinstance(content, FoundBatch):
                self.index.put_batch(*content)
            else:
                self.index.put_record(record_type, content)
