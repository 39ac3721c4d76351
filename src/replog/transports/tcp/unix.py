"""Unix sockets: listening at a path, connecting to it, and removing leftovers of a killed process.

Rules: the file of a socket is replaced only if no process listens there; two bookies that begin at once decide that one
after the other, under a lock on the directory. Nobody can connect before the file has its permissions. A bookie that
leaves removes its own file, and no other one's.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import trio

from replog.errors import ConfigError
from replog.runtime.platform import UNIX_PATH_BYTES_MAX

_BACKLOG = 128
_LOCK_S = 5.0  # how long a bookie waits for others that begin in the same directory: they need a millisecond
_AGAIN_S = 0.005


def socket_path(address: str, bookie_id: str = "") -> str:
    """The absolute path that an address names; below a directory ("run/") a socket that has the bookie's name.

    Raises `ConfigError`."""
    if not address or "\0" in address:
        raise ConfigError(f"unix:{address!r} is not a path; an address looks like unix:/run/app/bookie.sock")
    named = f"{address}{bookie_id or 'bookie'}.sock" if address.endswith("/") else address
    path = os.path.abspath(named)
    length = len(os.fsencode(path))
    if length > UNIX_PATH_BYTES_MAX:
        raise ConfigError(
            f"unix:{path}: the path of a socket has at most {UNIX_PATH_BYTES_MAX} bytes, and this one has {length}: "
            "choose a shorter one, such as /run/app/bookie.sock"
        )
    return path


# -- the bookie's side --------------------------------------------------------------------------------------------------


class PathSocket(socket.socket):
    """A socket at a path. Closing it removes the file, if it is still this socket's."""

    def __init__(self, path: str) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path = path
        self._identity: tuple[int, int] | None = None

    def listen_with(self, mode: int) -> None:
        """Takes the path, and listens with these permissions. Raises OSError, and leaves no file then."""
        self.setblocking(False)
        self.bind(self._path)
        self._identity = _identity(self._path)
        # Before `listen`: no client can connect until then.
        os.chmod(self._path, mode)
        self.listen(_BACKLOG)

    def close(self) -> None:
        """Removes the file first: as long as this listens, no other process takes the path."""
        identity, self._identity = self._identity, None
        # It is gone, or its directory is: there is nothing to remove.
        with suppress(OSError):
            if identity is not None and _identity(self._path) == identity:
                os.unlink(self._path)
        super().close()


async def listen_at(path: str, mode: int) -> socket.socket:
    """A socket that listens there.

    Raises `ConfigError` if a process listens there, if a file is there that is not a socket, or if the system refuses."""
    try:
        directory = os.open(Path(path).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            await _lock(directory, path)
            _remove_what_is_left(path)
            listening = PathSocket(path)
            with _closed_on_error(listening):
                listening.listen_with(mode)
            return listening
        finally:
            os.close(directory)  # and with it the lock
    except OSError as error:
        raise ConfigError(f"unix:{path}: cannot listen there: {error.strerror or error}") from error


async def _lock(directory: int, path: str) -> None:
    deadline_s, pause_s = trio.current_time() + _LOCK_S, _AGAIN_S
    while True:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if trio.current_time() >= deadline_s:
                raise ConfigError(
                    f"unix:{path}: another process keeps the directory locked, for {_LOCK_S:g} s now: listen in another one"
                ) from None
            await trio.sleep(pause_s)
            pause_s *= 2
        else:
            return


def _remove_what_is_left(path: str) -> None:
    """Removes the socket of a process that is gone."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(f"unix:{path}: a file is there that is not a socket: it was left as it is; name another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        result = asking.connect_ex(path)
    # Connected, or the queue is full: either way a process listens.
    if result in (0, errno.EAGAIN):
        raise ConfigError(f"unix:{path}: another process listens there already: is another bookie running?")
    if result == errno.ECONNREFUSED:
        os.unlink(path)
    elif result != errno.ENOENT:
        raise OSError(result, f"is a process there? {os.strerror(result)}")


@contextmanager
def _closed_on_error(opened: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        opened.close()
        raise


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


# -- the client's side --------------------------------------------------------------------------------------------------


async def connect_to(path: str) -> socket.socket:
    """A socket that is connected there. Raises OSError. The caller sets the deadline: a bookie with a full backlog is
    awaited."""
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _closed_on_error(connecting):
        connecting.setblocking(False)
        # Unlike TCP, a Unix socket that cannot be connected at once is not being connected: it has to be asked again. Nothing
        # tells when there is room, and trio's own `connect` would take it for connected.
        while (result := connecting.connect_ex(path)) == errno.EAGAIN:  # noqa: ASYNC110
            await trio.sleep(_AGAIN_S)
        if result:
            raise OSError(result, os.strerror(result))
        await trio.lowlevel.checkpoint()
    return connecting
