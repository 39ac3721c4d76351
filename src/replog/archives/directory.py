"""An archive in a directory: `file:/mnt/archive`, which every client and reader must see at the same path.

An object is durable before it has its name, and so are the directories above it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from replog.abc import Archive, StoredObject
from replog.errors import ArchiveError, ConfigError
from replog.hookspecs import Backend, NoOptions, hookimpl
from replog.runtime.disk_errors import ABSENT, trouble_of
from replog.runtime.platform import sync_all, sync_directory

_UNFINISHED = "unfinished"
_LEFT_S = 86_400.0  # without a write: the program that wrote it was killed
_TRIES_MAX = 16  # of others that remove a directory while an object is put there


class DirectoryArchive(Archive):
    """A directory that exists."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def shown(self) -> str:
        return f"file:{self._path}"

    def put(self, name: str, pieces: Sequence[bytes]) -> bool:
        path, unfinished = self._path / name, self._path / _UNFINISHED / secrets.token_hex(16)
        with self._named():
            self._make_directory(unfinished.parent)
            try:
                with unfinished.open("xb") as file:
                    file.writelines(pieces)
                    file.flush()
                    sync_all(file.fileno())
                self._link(unfinished, path)
                self._remove_left(unfinished)
            except FileExistsError:
                return False
            finally:
                unfinished.unlink(missing_ok=True)
            sync_directory(path.parent)
        return True

    def _link(self, unfinished: Path, path: Path) -> None:
        for tries_left in reversed(range(_TRIES_MAX)):
            try:
                self._make_directory(path.parent)
                return os.link(unfinished, path)
            except FileNotFoundError:
                # `delete` has removed the directory, which was empty; or the archive's own is gone.
                if not tries_left:
                    raise

    def _remove_left(self, unfinished: Path) -> None:
        """Removes what killed programs left beside this file long before, by the clock of their disk."""
        now_s = unfinished.stat().st_mtime
        for each in unfinished.parent.iterdir():
            with contextlib.suppress(OSError):  # it is another user's, or open there: it harms nothing
                if now_s - each.stat().st_mtime > _LEFT_S:
                    each.unlink()

    def read(self, name: str, start: int, size_bytes: int) -> bytes | None:
        with self._named():
            try:
                with (self._path / name).open("rb") as file:
                    file.seek(start)
                    return file.read(size_bytes)
            except FileNotFoundError:
                self._path.stat()  # without the directory nothing is known of the object
                return None

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        with self._named():
            self._path.stat()
            for root, _, names in os.walk(self._path / prefix, onerror=_raise_unless_absent):
                place = Path(root)
                if place.is_relative_to(self._path / _UNFINISHED):
                    continue
                for name in names:
                    with contextlib.suppress(*ABSENT):  # it was deleted meanwhile
                        found = (place / name).stat()
                        shown = (place / name).relative_to(self._path).as_posix()
                        yield StoredObject(shown, found.st_size, found.st_mtime)

    def delete(self, names: Collection[str]) -> None:
        with self._named():
            for name in names:
                path = self._path / name
                path.unlink(missing_ok=True)
                for above in path.relative_to(self._path).parents[:-1]:
                    try:
                        (self._path / above).rmdir()
                    except OSError:  # it has others
                        break

    def _make_directory(self, path: Path) -> None:
        """Makes a directory below the archive's own, durably. Raises `FileNotFoundError` if another task removes an empty one
        meanwhile."""
        if not path.is_dir():
            if path.parent != self._path:
                self._make_directory(path.parent)
            path.mkdir(exist_ok=True)
            sync_directory(path.parent)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = f": {error.filename}" if error.filename else ""
            problem = f"{error.strerror or error}{where}. {trouble_of(error).value.capitalize()}, then try again"
            raise ArchiveError(self.shown(), problem) from error


def _raise_unless_absent(error: OSError) -> None:
    if not isinstance(error, ABSENT):
        raise error


@hookimpl
def replog_archives() -> Sequence[Backend[Archive]]:
    """Offers "file"."""
    return [Backend("file", _open, summary="a directory that all clients see: file:/mnt/archive")]


def _open(rest: str, options: NoOptions) -> Archive:
    if not rest.startswith("/"):
        raise ConfigError(f"file:{rest} names no directory from the root on: each client would take another one")
    return DirectoryArchive(rest)
