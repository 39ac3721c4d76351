"""An archive in a bucket: objects that are created once, under names that nobody uses twice, and read in ranges.

So every request may be made again: a put that meets its own earlier attempt finds the object there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

import obstore
from obstore import exceptions

from replog.abc import Archive, StoredObject
from replog.errors import ArchiveError
from replog_objects.options import ArchiveOptions, Target
from replog_objects.requests import Effect, RequestFailed, is_elsewhere, open_patient_store, retried

Answer = TypeVar("Answer")

_DELETED_AT_ONCE = 1000


class BucketArchive(Archive):
    """A prefix of a bucket."""

    def __init__(self, target: Target, options: ArchiveOptions) -> None:
        self._target = target
        self._prefix = f"{target.prefix}/" if target.prefix else ""
        self._timeout_s = options.timeout_s
        self._store = open_patient_store(target, options)

    def shown(self) -> str:
        """The URL, without its options."""
        return str(self._target)

    def put(self, name: str, pieces: Sequence[bytes]) -> bool:
        """Creates an object. False if there is one, maybe by an attempt of this call whose answer was lost."""

        def create() -> bool:
            try:
                obstore.put(self._store, self._prefix + name, pieces, mode="create", use_multipart=False)
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
                if is_elsewhere(error):
                    raise
                if self._range(name, 0, 1) is None:
                    raise RequestFailed(Effect.UNKNOWN, "another put of the same object is under way") from None
                return False
            return True

        return self._retried(create)

    def read(self, name: str, start: int, size_bytes: int) -> memoryview | None:
        """A range of an object; None if there is none."""
        return self._retried(lambda: self._range(name, start, size_bytes))

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """The objects below a prefix: a request for each thousand."""
        yield from self._retried(lambda: self._listed(prefix))

    def delete(self, names: Collection[str]) -> None:
        """Deletes objects, a thousand with each request."""
        paths = [self._prefix + name for name in names]
        for first in range(0, len(paths), _DELETED_AT_ONCE):
            batch = paths[first : first + _DELETED_AT_ONCE]
            with contextlib.suppress(FileNotFoundError):
                self._retried(lambda batch=batch: obstore.delete(self._store, batch))  # type: ignore[misc]

    # -- requests --------------------------------------------------------------------------------------------------

    def _range(self, name: str, start: int, size_bytes: int) -> memoryview | None:
        try:
            found = obstore.get(self._store, self._prefix + name, options={"range": (start, start + size_bytes)})
            data = memoryview(found.bytes())  # no copy
        except FileNotFoundError as error:
            if is_elsewhere(error):
                raise
            return None
        if len(data) != min(size_bytes, found.meta["size"] - start):
            raise RequestFailed(Effect.UNKNOWN, "an answer was cut")
        return data

    def _listed(self, prefix: str) -> list[StoredObject]:
        return [
            StoredObject(each["path"].removeprefix(self._prefix), each["size"], each["last_modified"].timestamp())
            for page in obstore.list(self._store, self._prefix + prefix, chunk_size=1000)
            for each in page
        ]

    def _retried(self, ask: Callable[[], Answer]) -> Answer:
        try:
            return retried(ask, self._timeout_s)
        except RequestFailed as error:
            raise ArchiveError(self._target, f"{error}. Try again when that is mended") from None
