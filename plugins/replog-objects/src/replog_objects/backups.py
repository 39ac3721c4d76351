"""A back-up in a bucket: the manifest is replaced under a condition, and each ledger file has a name that is used once.

A bucket has no locks. So two back-ups at once write different objects, and whichever would replace a manifest that it has not
read is refused. A run removes objects that no manifest needs, and adopts those that a killed run has finished. A run that
adopts must not meet one that removes: an object is adopted for half a day after it was written, and removed after a day; and
removed are only objects that were there when the run began, before its manifest.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar

import obstore
from obstore import exceptions

from replog.abc import BackupPlace, ReadFile, WrittenFile
from replog.errors import BackupDamagedError, BackupError
from replog_objects.options import BackupOptions, Target
from replog_objects.requests import (
    Conflict,
    RequestFailed,
    Tag,
    failing,
    is_elsewhere,
    open_patient_store,
    retried,
    tag_of,
)

Answer = TypeVar("Answer")

_MANIFEST = "manifest.json"
_LEDGERS = "ledgers"
_PROBE = "conditions"
_ADOPTED_FOR_S, _REMOVED_AFTER_S = 12 * 3600.0, 24 * 3600.0
_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 2
_STALE = Tag('"00000000000000000000000000000000"', None)
_ENDING = ".ledger"


class BucketPlace(BackupPlace):
    """A prefix of a bucket."""

    def __init__(self, target: Target, options: BackupOptions) -> None:
        self._target = target
        self._prefix = f"{target.prefix}/" if target.prefix else ""
        self._timeout_s = options.timeout_s
        self._store = open_patient_store(target, options)
        self._read_tag: Tag | None = None
        self._found: dict[str, tuple[int, float]] | None = (
            None  # size and time of each ledger object, when the run began
        )

    def shown(self, name: str = "") -> str:
        """The URL of the place, or of an object."""
        if not name:
            return str(self._target)
        return f"{self._target}/{name}" if name == _MANIFEST else f"{self._target}/{_LEDGERS}/{name}"

    def exists(self) -> bool:
        """True: a bucket that is not there raises."""
        self.read_manifest()
        return True

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Looks whether the store keeps conditions. Two that are in such a block find out when they write a manifest."""
        for expected in (None, None, _STALE):
            with contextlib.suppress(Conflict):
                self._put(_PROBE, b"Back-ups of replog put this under a condition.\n", expected)
                if expected is _STALE:
                    problem = "this store ignores conditions: two back-ups at once would not notice each other"
                    raise BackupError(self._target, f"{problem}. Nothing else was written; use another store")
        self._found = None
        yield

    def read_manifest(self) -> bytes | None:
        """The manifest; None if there is none yet."""
        found = self._retried(lambda: self._get(_MANIFEST))
        self._read_tag = None if found is None else found[1]
        return None if found is None else found[0]

    def write_manifest(self, data: bytes) -> None:
        """Replaces the manifest if it is the one that was read."""
        self._listed()  # before: what is written behind this manifest is another run's
        try:
            self._put(_MANIFEST, data, self._read_tag)
            return
        except (Conflict, BackupError) as error:
            failure = error
        # An attempt whose answer was lost may have been done: then it is there. Its time makes its bytes this run's.
        found = self._retried(lambda: self._get(_MANIFEST))
        if found is not None and found[0] == data:
            return
        if isinstance(failure, Conflict):
            problem = "another back-up has written its manifest meanwhile: that one stays, and this one is refused; run it again"
            raise BackupError(self._target, problem)
        raise failure

    def begin(self, file_name: str) -> WrittenFile:
        """Begins an object with a name of its own."""
        name = f"{file_name.removesuffix(_ENDING)}-{secrets.token_hex(8)}{_ENDING}"
        with self._named():
            writer = obstore.open_writer(
                self._store, self._path(name), buffer_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE
            )
            return _Unfinished(self, name, writer)

    def finished_before(self, file_name: str) -> Sequence[str]:
        """Objects of this ledger that were written in the last half a day."""
        begins, after_s = f"{file_name.removesuffix(_ENDING)}-", time.time() - _ADOPTED_FOR_S
        return [
            name
            for name, (_, modified_at_s) in self._listed().items()
            if name.startswith(begins) and modified_at_s > after_s
        ]

    def size_bytes(self, name: str) -> int | None:
        """The size of an object, as of when the run began; None if there was none."""
        found = self._listed().get(name)
        return self.size_now(name) if found is None else found[0]

    def size_now(self, name: str) -> int | None:
        """The size of an object; None if there is none."""

        def size() -> int | None:
            try:
                # Not a HEAD: without a body, a refusal would not say why.
                return obstore.get(self._store, self._path(name), options={"range": (0, 1)}).meta["size"]
            except FileNotFoundError as error:
                if is_elsewhere(error):
                    raise
                return None

        return self._retried(size)

    def open(self, name: str, read_ahead_bytes: int) -> ReadFile:
        """An object, read in ranges of so many bytes. Raises `BackupDamagedError` if there is none."""
        size_bytes = self.size_bytes(name)
        if size_bytes is None:
            raise BackupDamagedError(self.shown(name), "it is not there")
        return _Readable(self, name, size_bytes, read_ahead_bytes)

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """A part of an object. Raises `BackupDamagedError` if it has no such part."""

        def read() -> bytes | None:
            try:
                return bytes(obstore.get_range(self._store, self._path(name), start=start, length=length))
            except FileNotFoundError as error:
                if is_elsewhere(error):
                    raise
                return None

        found = self._retried(read)
        if found is None or len(found) != length:
            raise BackupDamagedError(self.shown(name), "it is not there any more, or was cut")
        return found

    def remove_all_but(self, names: Collection[str]) -> None:
        """Removes objects that were there when the run began, if they are older than a day."""
        before_s = time.time() - _REMOVED_AFTER_S
        unneeded = [
            self._path(name)
            for name, (_, modified_at_s) in self._listed().items()
            if name not in names and modified_at_s < before_s
        ]
        for first in range(0, len(unneeded), 1000):
            batch = unneeded[first : first + 1000]
            with contextlib.suppress(FileNotFoundError):
                self._retried(lambda batch=batch: obstore.delete(self._store, batch))  # type: ignore[misc]

    # -- requests --------------------------------------------------------------------------------------------------

    def _listed(self) -> dict[str, tuple[int, float]]:
        if self._found is None:
            self._found = self._retried(self._list)
        return self._found

    def _list(self) -> dict[str, tuple[int, float]]:
        found = {}
        prefix = f"{self._prefix}{_LEDGERS}/"
        for page in obstore.list(self._store, prefix, chunk_size=1000):
            for each in page:
                found[each["path"].removeprefix(prefix)] = each["size"], each["last_modified"].timestamp()
        return found

    def _get(self, name: str) -> tuple[bytes, Tag] | None:
        try:
            result = obstore.get(self._store, self._prefix + name)
            return bytes(result.bytes()), tag_of(result.meta)
        except FileNotFoundError as error:
            if is_elsewhere(error):
                raise
            return None

    def _put(self, name: str, data: bytes, expected: Tag | None) -> None:
        """Raises `Conflict`, `BackupError`."""
        mode: Any = "create" if expected is None else expected.as_mode()
        with self._named():
            try:
                obstore.put(self._store, self._prefix + name, data, mode=mode, use_multipart=False)
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
                if is_elsewhere(error):
                    raise
                raise Conflict from None

    def _retried(self, ask: Callable[[], Answer]) -> Answer:
        """Raises `BackupError`."""
        try:
            return retried(ask, self._timeout_s)
        except RequestFailed as error:
            raise self.problem(error) from None

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            with failing():
                yield
        except RequestFailed as error:
            raise self.problem(error) from None

    def problem(self, error: RequestFailed) -> BackupError:
        """The error for a request that failed."""
        return BackupError(self._target, f"{error}; what was finished stays. Run it again when that is mended")

    def _path(self, name: str) -> str:
        return f"{self._prefix}{_LEDGERS}/{name}"


class _Readable:
    """An object that is read from its beginning."""

    def __init__(self, place: BucketPlace, name: str, size_bytes: int, read_ahead_bytes: int) -> None:
        self._place = place
        self._name = name
        self._left_bytes = size_bytes
        self._next = 0
        self._read_ahead_bytes = read_ahead_bytes
        self._buffer = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        pieces = []
        while size > 0 and (self._buffer or self._left_bytes):
            if not self._buffer:
                length = min(self._left_bytes, max(self._read_ahead_bytes, 1))
                self._buffer = memoryview(self._place.read_range(self._name, self._next, length))
                self._next += length
                self._left_bytes -= length
            piece = self._buffer[:size]
            self._buffer = self._buffer[len(piece) :]
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        self._buffer, self._left_bytes = memoryview(b""), 0


class _Unfinished:
    """An object that is being written, in parts."""

    def __init__(self, place: BucketPlace, name: str, writer: Any) -> None:
        self._place = place
        self._name = name
        self._writer = writer
        self._size_bytes = 0

    def write(self, data: bytes, /) -> object:
        try:
            with failing():
                self._writer.write(data)
        except RequestFailed as error:
            raise self._place.problem(error) from None
        self._size_bytes += len(data)
        return None

    def finish(self) -> str:
        try:
            with failing():
                self._writer.close()
        except RequestFailed as error:
            raise self._place.problem(error) from None
        found = self._place.size_now(self._name)
        if found != self._size_bytes:
            problem = f"it has {found} bytes, and {self._size_bytes} were written. Run the back-up again"
            raise BackupError(self._place.shown(self._name), problem)
        return self._name

    def close(self) -> None:
        # Only `finish` makes an object of the parts. Those that are left go by the bucket's rule for incomplete uploads.
        self._writer = None
