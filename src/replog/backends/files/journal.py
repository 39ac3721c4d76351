"""Writing the journal: one group of records for each commit, with one write and one sync.

The journal files *are* the log: a batch's bytes go from the caller's object into the file, and are never copied again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from replog.backends.disk import ZEROS, Buffer, Disk, failed_error, named_error, read_all, write_all
from replog.backends.durable_mark import DurableMark
from replog.backends.files.journal_files import FilePool
from replog.backends.files.log_file import JournalFile, Place
from replog.backends.files.options import FilesTuning
from replog.backends.files.record import (
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    RecordType,
    pack_epoch,
    pack_record_header,
    payload_checksum,
)
from replog.errors import StorageFailedError
from replog.runtime.disk_errors import is_full
from replog.runtime.kernel_sync import KernelSync

Record = tuple[RecordType, bytes, int]  # its type, payload and the checksum of that

_EPOCH_RECORD_BYTES = RECORD_HEADER_BYTES + 8
_ALLOCATE_BYTES = 16 << 20
# Above this rate the zeros cost a writer more than waiting for metadata does. With large commits the rate is lower: the
# metadata is a small part of them, and the zeros take as much of the disk as with small ones.
_FILL_BYTES_PER_S_MAX = 100 << 20
_FILL_LARGE_BYTES_PER_S_MAX = 25 << 20
_LARGE_COMMIT_BYTES = 192 << 10

_PADDING = memoryview(ZEROS)[:PAGE_BYTES]


# A group that was written and not synced: its file and number, the places of its payloads, and what its file's end and epoch are
# when it is durable.
_Written = tuple[JournalFile, int, list[Place], int, int]


class Journal:
    """The files, and the place where the next group goes. One thread at a time writes; `files` and `sealed` change under
    `pool`'s lock."""

    def __init__(
        self,
        disk: Disk,
        options: FilesTuning,
        pool: FilePool,
        mark: DurableMark,
        files: dict[int, JournalFile],
        current: JournalFile,
    ) -> None:
        self._disk = disk
        self.mark = mark
        self._options = options
        self._capacity = options.capacity_bytes
        self._reserve_bytes = options.reserve_bytes
        self._pool = pool
        self.files = files
        self.current = current
        current.began_s = disk.clock_s()
        self.sequence = 0  # of the last group
        # full files that replay needs, oldest first: no catalog says yet that they are indexed or flushed
        self.sealed: list[JournalFile] = []
        self.rolled: list[JournalFile] = []  # files that became full since the storage last looked

    def make_room(self, size: int, *, keep_reserve: bool) -> None:
        """Makes sure that a group of this size fits into space that exists, in the current file or in a new one.

        Raises `StorageFullError`; then nothing was written. With `keep_reserve` some space stays for small groups."""
        assert size > 0, "a commit that changes nothing writes no group"
        needed = self._needed(size, keep_reserve=keep_reserve)
        file = self.current
        # An empty file takes a group of any size: a commit that is larger than a file gets a larger file.
        if file.position + needed > self._capacity and file.position > PAGE_BYTES:
            file = self._roll()
        end = -(-(file.position + needed) // PAGE_BYTES) * PAGE_BYTES
        if end > file.allocated:
            self._allocate(file, end)
        assert end <= file.allocated, "the group has no room after all"

    def has_room(self, size: int, *, keep_reserve: bool) -> bool:
        """True if `make_room` has nothing to do, which may wait for the disk: the rest of the current file suffices."""
        file = self.current
        end = file.position + self._needed(size, keep_reserve=keep_reserve)
        return end <= min(self._capacity, file.allocated)

    def _needed(self, size: int, *, keep_reserve: bool) -> int:
        return size + _EPOCH_RECORD_BYTES + (self._reserve_bytes if keep_reserve else 0)

    def _roll(self) -> JournalFile:
        ready = self._pool.take(self.current.number + 1)
        # Replay finds the next group by the next number, and takes a file with groups in it for one that it lost track of.
        assert ready.number == self.current.number + 1, "journal files are numbered without gaps"
        assert ready.position == PAGE_BYTES, "a new file holds no group"
        with self._pool.changed:
            self.files[ready.number] = ready
            self.sealed.append(self.current)
            self.rolled.append(self.current)
            self.current = ready
        return ready

    def _allocate(self, file: JournalFile, end: int) -> None:
        """Reserves space without filling it: the writes have caught up with the zeros, or a group is larger than a file."""
        # The pool's thread may be writing zeros at this very place.
        with file.filling:
            if end <= file.allocated:
                return
            file.is_outrun = True
            # More than this group needs, so that not every commit extends the file; on a full disk only what it needs.
            generous = min(file.allocated + _ALLOCATE_BYTES, self._capacity)
            try:
                self._reserve(file, max(end, generous))
            except OSError as error:
                if generous <= end or not is_full(error):
                    raise named_error(f"extend {file.path}", error) from error
                try:
                    self._reserve(file, end)
                except OSError as again:
                    raise named_error(f"extend {file.path}", again) from again

    def _reserve(self, file: JournalFile, end: int) -> None:
        assert end % PAGE_BYTES == 0, "files grow by whole pages"
        assert end > file.allocated, "files never shrink"
        self._disk.allocate(file.fd, file.allocated, end - file.allocated)
        file.allocated = end

    def write(self, records: Sequence[Record]) -> list[Place]:
        """Writes a group into the room that was made, and syncs it. Returns the place of each payload.

        Raises `StorageFullError` if the file system went back on its word, `StorageFailedError`: then the outcome is
        unknown, and nothing may be written any more (B1)."""
        group, problem = self._put(records), None
        try:
            self._disk.fdatasync(group[0].fd)
        except OSError as error:
            problem = error
        return self._synced(group, problem)

    def begin(self, records: Sequence[Record], sync: KernelSync) -> Callable[[OSError | None], list[Place]]:
        """Begins the sync of these records without waiting for it. Returns a function to call with the sync's outcome,
        before anything else is written: it returns and raises the same as `write`. Raises the errors of `write` if the
        sync did not begin."""
        group = self._put(records)
        self._disk.begin_fdatasync(group[0].fd, sync)
        return lambda problem: self._synced(group, problem)

    def _put(self, records: Sequence[Record]) -> _Written:
        file = self.current
        sequence = self.sequence + 1
        # A start that finds less than the mark has lost something: the mark must never be ahead of the written groups.
        assert sequence > self.mark.position, "the durable mark is ahead of the journal"
        buffers, places, end, epoch = self._lay_out(file, records, sequence)
        assert end <= file.allocated, "make_room comes before write"
        # If this write fails, a part of the group may be on the disk: then the next group begins another epoch.
        file.is_pristine = False
        try:
            write_all(self._disk, file.fd, buffers, file.position)
        except OSError as error:
            if is_full(error):
                self._take_back(file, buffers[0])
            raise named_error(f"write to {file.path} at {file.position}", error, self._free_bytes(file)) from error
        return file, sequence, places, end, epoch

    def _synced(self, group: _Written, problem: OSError | None) -> list[Place]:
        file, sequence, places, end, epoch = group
        if problem is not None:
            raise failed_error(f"sync {file.path}", problem) from problem
        # After the sync, because the mark must not be ahead; before the acknowledgement, so that a loss is noticed (B8).
        self.mark.advance(sequence)
        file.epoch = epoch
        file.is_pristine = True
        file.position = end
        file.first_sequence = file.first_sequence or sequence
        file.last_sequence = self.sequence = sequence
        self._prepare_ahead(file)
        return places

    def _free_bytes(self, file: JournalFile) -> int | None:
        try:
            return self._disk.free_bytes(file.path)
        except OSError:
            return None

    def _take_back(self, file: JournalFile, head: Buffer) -> None:
        """Wipes the beginning of a group that was not written to its end, durably. Raises `StorageFailedError`.

        All of the group but its padding may be on the disk. Replay would find it, although the commit is going to fail."""
        assert len(head) <= PAGE_BYTES, "one write of padding wipes it"
        try:
            if read_all(self._disk, file.fd, len(head), file.position) == head:
                write_all(self._disk, file.fd, (_PADDING[: len(head)],), file.position)
                self._disk.fdatasync(file.fd)
        except OSError as error:
            raise StorageFailedError(
                f"could not take back what was written to {file.path} at {file.position} when there was no space: {error}",
                "The storage has stopped: make room on the disk, then restart the bookie",
            ) from error

    def _lay_out(
        self, file: JournalFile, records: Sequence[Record], sequence: int
    ) -> tuple[list[Buffer], list[Place], int, int]:
        """The group's bytes up to the end of the page, the places of its payloads, its end, and its epoch."""
        buffers: list[Buffer] = []
        places: list[Place] = []
        offset = file.position
        epoch = file.epoch
        position = 0
        # Records of an earlier process, or of a write that failed, may lie ahead. Under another
        # epoch none of them can ever continue this group.
        if not file.is_pristine:
            new_epoch = int.from_bytes(self._disk.random_bytes(8), "little")
            payload = pack_epoch(new_epoch)
            checksum = payload_checksum(payload)
            header = pack_record_header(file.seed, RecordType.EPOCH, payload, 0, False, epoch, sequence, checksum)
            buffers += (header, payload)
            offset += _EPOCH_RECORD_BYTES
            epoch = new_epoch
            position = 1
        last = len(records) + position - 1
        seed = file.seed
        for record_type, payload, checksum in records:
            buffers.append(
                pack_record_header(seed, record_type, payload, position, position == last, epoch, sequence, checksum)
            )
            buffers.append(payload)
            offset += RECORD_HEADER_BYTES
            size = len(payload)
            places.append((file, offset, size, checksum))
            offset += size
            position += 1
        assert position == last + 1, "only the last record of a group says that it is the last"
        # Whole pages: the kernel need not read a page before it changes a part of it.
        padding = -offset % PAGE_BYTES
        if padding:
            buffers.append(_PADDING[:padding])
        return buffers, places, offset, epoch

    def _prepare_ahead(self, file: JournalFile) -> None:
        capacity = self._capacity
        # At the half: making the next file may take as long as writing the second half.
        if file.position > capacity // 2 and self._pool.ready is None:
            self._pool.want(file.number + 1, fill=self._is_worth_filling(file))
        ahead = self._options.fill_ahead_bytes
        if file.allocated < capacity and not file.is_outrun and file.allocated - file.position < ahead // 2:
            self._pool.fill(file)

    def _is_worth_filling(self, file: JournalFile) -> bool:
        """True if filling the next file with zeros pays, at the rate of this one."""
        assert 0 < file.first_sequence <= file.last_sequence, "it is asked after a commit"
        commits = file.last_sequence - file.first_sequence + 1
        is_large = file.position >= commits * _LARGE_COMMIT_BYTES
        bytes_per_s = _FILL_LARGE_BYTES_PER_S_MAX if is_large else _FILL_BYTES_PER_S_MAX
        return file.position < (self._disk.clock_s() - file.began_s) * bytes_per_s
