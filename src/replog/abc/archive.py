"""The seam of archives: a store of objects that are written once, each under its own name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence

import attrs


@attrs.frozen
class StoredObject:
    """An object in a listing. `modified_at_s` is in s since the epoch, by the store's clock."""

    name: str
    size_bytes: int
    modified_at_s: float


class Archive(ABC):
    """Where the entries of archived fragments are. What the objects hold is replog's business: see Formats.

    Names are words of lower-case letters, digits and `-`, joined by `/`. Every method blocks, for as long as its store takes with
    its own retries, and may be called from several threads at once. Whatever fails raises `ArchiveError`: it says what to do,
    without credentials."""

    @abstractmethod
    def shown(self) -> str:
        """The archive, as errors and reports name it: without credentials."""

    @abstractmethod
    def put(self, name: str, pieces: Sequence[bytes]) -> bool:
        """Creates an object of these pieces, one behind the other, durably; False if there is one of this name, which stays as it
        is. After an error it may be there, or may come yet."""

    @abstractmethod
    def read(self, name: str, start: int, size_bytes: int) -> bytes | memoryview | None:
        """So many bytes of an object, fewer only at its end, before which `start` lies; None if there is no such object."""

    @abstractmethod
    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """The objects whose names begin with this prefix, which is "" or ends with `/`, in any order."""

    @abstractmethod
    def delete(self, names: Collection[str]) -> None:
        """Deletes these objects, as far as they exist."""
