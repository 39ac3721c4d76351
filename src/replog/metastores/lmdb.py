"""A metastore in a directory of this machine: `lmdb:PATH`. Durable, with CAS across processes; the embedded default.

One machine means one kernel, one pid namespace and a local file system: no network mounts, no sharing between containers
that don't see each other's processes. A value is durable when its change is answered, and visible to every process then.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import attrs
import lmdb
import trio
from attrs.validators import gt, lt

from replog.abc import Metastore, ValuesPage, Versioned, check_key, check_value
from replog.errors import (
    KeyNotFoundError,
    MetastoreCorruptError,
    MetastoreError,
    MetastoreUnavailableError,
    MetastoreUncertainError,
    VersionConflictError,
)
from replog.hookspecs import Backend, hookimpl
from replog.metastores.lmdb_directory import damaged, finish_directory, make_directory, prepare_directory
from replog.metastores.lmdb_environment import Environment, Limits, NeedsWriterError
from replog.metastores.lmdb_errors import not_opened
from replog.metastores.lmdb_jobs import Job
from replog.metastores.lmdb_records import FORMAT, Reading, Words, Writing
from replog.metastores.lmdb_waits import KeyWaits
from replog.metastores.options import MetastoreOptions
from replog.runtime.lmdb_file import DataFileDamagedError
from replog.runtime.lmdb_map import ForkedInUseError
from replog.runtime.threads import run_in_thread

Answer = TypeVar("Answer")


_POSITIVE: Any = [gt(0), lt(math.inf)]


@attrs.frozen(kw_only=True)
class LMDBOptions(MetastoreOptions):
    """`create` a directory that is not there. The map doubles up to `map_bytes_max`; the first opening of a directory in
    a process decides it. And those of `MetastoreOptions`: a process that hangs counts as gone after `lease_s`, a dead one at
    once."""

    create: bool = True
    map_bytes_max: int = attrs.field(default=64 << 30, validator=_POSITIVE)
    lease_s: float = 5.0


@attrs.frozen(kw_only=True)
class LMDBTuning(LMDBOptions):
    """The options, and beside them the constants. No configuration sets these; tests do, to see much soon."""

    # The size of the map at first: metadata of some ten thousand ledgers. Only what is used takes space on disk.
    map_bytes: int = attrs.field(default=16 << 20, validator=_POSITIVE)
    # How often changes by other processes are looked for. A look costs microseconds; 50 ms are less than an election takes.
    poll_s: float = attrs.field(default=0.05, validator=_POSITIVE)


def tuned(options: LMDBOptions) -> LMDBTuning:
    """The options with the constants."""
    return options if isinstance(options, LMDBTuning) else LMDBTuning(**attrs.asdict(options))


class LMDBMetastore(Metastore):
    """The metastore of a directory, which is opened at the first call. For one trio run; several instances share.

    A change is done by the directory's writer thread. Cancelled, or out of time, before that thread began with it, it
    never happens; later its outcome is unknown. Reads stay in the caller's thread, except for those
    that may be large. In a child after a fork every call raises `MetastoreError`: open a new one there.
    """

    def __init__(self, path: str | os.PathLike[str], options: LMDBOptions = LMDBOptions()) -> None:
        self._path = os.fspath(path)
        self._options = options = tuned(options)
        self.lease_s = options.lease_s
        self._pid = os.getpid()
        self._opening = trio.Lock()
        self._environment: Environment | None = None
        self._unwatch: Callable[[], None] | None = None
        self._changed = trio.Event()  # by a commit of this process
        self._waits = KeyWaits(options.poll_s)
        self._closed = False

    async def create(self, key: str, value: bytes) -> int:
        """Creates the key and returns its version. Raises `KeyExistsError`, `MetastoreUncertainError`."""
        check_value(key, value)
        return await self._change(key, lambda writing: writing.create(key, value), len(value))

    async def get(self, key: str) -> Versioned:
        """Raises `KeyNotFoundError` only if the key does not exist."""
        return await self._ask(key, lambda reading: reading.get(key))

    async def put(self, key: str, value: bytes, expected: int) -> int:
        """Replaces the value and returns the new version.

        Raises `VersionConflictError`, `KeyNotFoundError`, `MetastoreUncertainError`."""
        check_value(key, value)
        return await self._change(key, lambda writing: writing.put(key, value, expected), len(value))

    async def delete(self, key: str, expected: int | None = None) -> None:
        """Deletes the key. Raises `VersionConflictError`, `KeyNotFoundError`, `MetastoreUncertainError`."""
        await self._change(key, lambda writing: writing.delete(key, expected))

    async def children(self, key: str) -> list[str]:
        """The words that follow the key in existing keys, sorted. In a worker thread, since there may be many."""
        return (await self._list(key)).words

    async def values(self, key: str) -> dict[str, Versioned]:
        """The values right below this key, by their last words: one snapshot."""
        return await self._read_much(key, lambda reading: reading.values(key))

    async def values_page(self, key: str, first: str, count_max: int) -> ValuesPage:
        """The values right below this key from this last word on: one snapshot for each page."""
        return await self._read_much(key, lambda reading: reading.values_page(key, first, count_max))

    async def wait_changed(self, key: str, version: int | None) -> None:
        """Returns once the key has another version than this (None: once it exists)."""
        while await self._ask(key, lambda reading: reading.version(key)) == version:
            await self._waits.wait(await self._opened(), key, version)

    async def wait_children_changed(self, key: str, known: Sequence[str]) -> None:
        """Returns once the children differ from these. Lists again only after a commit, or if one may have died."""
        seen: Words | None = None
        while True:
            # The event is taken before the look, so that a change between the look and the wait is not missed.
            changed = self._changed
            environment = await self._opened()
            if seen is None or seen.is_fickle or not environment.is_unchanged(seen.last_change):
                seen = await self._list(key)
                if seen.words != list(known):
                    return
            with trio.move_on_after(self._options.poll_s):
                await changed.wait()

    @asynccontextmanager
    async def announce(self, key: str, value: bytes) -> AsyncIterator[None]:
        """Keeps the key in existence while the context is open and this process lives; for others it vanishes as soon
        as they look after its death, or after `lease_s` if it hangs. Raises `KeyExistsError`."""
        version = await self._announce(key, value)
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):
                await self._leave(key, version)

    async def _leave(self, key: str, version: int) -> None:
        """Deletes the announcement; never raises `MetastoreError`, since the caller's own work has succeeded.

        If the disk fails, this is tried again later; the announcement ends with this process in any case."""

        def leave(writing: Writing) -> int:
            return writing.delete(key, version)

        try:
            await self._change(key, leave)
        except (KeyNotFoundError, VersionConflictError):
            pass
        except MetastoreError:
            if self._environment is not None:
                self._environment.try_later(leave)

    async def announced(self, key: str) -> dict[str, bytes]:
        """The values that live processes announce right below this key, by their last words: one snapshot."""
        return await self._read_much(key, lambda reading: reading.announced(key))

    async def _announce(self, key: str, value: bytes) -> int:
        """Announces the key. If its caller does not wait any more, takes it back: no other process could, while this
        one lives."""
        check_key(key)
        environment = await self._opened()
        made: list[int] = []

        def announce(writing: Writing) -> int:
            made.append(writing.announce(key, value))
            return made[-1]

        def take_back(writing: Writing) -> int:
            return writing.delete(key, made[-1]) if made else 0

        try:
            return await self._submit(environment, announce, len(key) + len(value), f"key {key!r}")
        except (trio.Cancelled, MetastoreUncertainError):
            # It is being closed, or has failed: it ends with this process's seat.
            with suppress(MetastoreError):
                environment.submit(Job(take_back, len(key), _tell_nobody))  # behind the other one in the writer's queue
            raise

    async def aclose(self) -> None:
        """Lets go of the directory; waits of this instance end with `trio.ClosedResourceError`. Idempotent."""
        self._closed = True
        self._notify_changed()
        environment, self._environment = self._environment, None
        # In a child after a fork the environment is its parent's: closing it here would free the parent's places in LMDB's
        # table.
        if environment is None or os.getpid() != self._pid:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        if self._unwatch is not None:
            self._unwatch()
        with trio.CancelScope(shield=True):
            await run_in_thread(_give_back, environment)

    # -- asking and changing --------------------------------------------------------------------------------------

    async def _ask(self, key: str, question: Callable[[Reading], Answer]) -> Answer:
        check_key(key)
        # A read does not wait for anything: without this a task that only reads would keep all others from running.
        await trio.lowlevel.checkpoint()
        environment = await self._opened()
        while True:
            try:
                return environment.read(question)
            except NeedsWriterError:
                await self._submit(environment, _do_nothing, 0, "reading")

    async def _list(self, key: str) -> Words:
        return await self._read_much(key, lambda reading: reading.children(key))

    async def _read_much(self, key: str, question: Callable[[Reading], Answer]) -> Answer:
        """Reads a large answer like `_ask`, but in a worker thread."""
        check_key(key)
        environment = await self._opened()
        while True:
            try:
                return await run_in_thread(environment.read, question)
            except NeedsWriterError:
                await self._submit(environment, _do_nothing, 0, "reading")

    async def _change(self, key: str, change: Callable[[Writing], int], size_bytes: int = 0) -> int:
        check_key(key)
        environment = await self._opened()
        return await self._submit(environment, change, len(key) + size_bytes, f"key {key!r}")

    async def _submit(
        self, environment: Environment, change: Callable[[Writing], int], size_bytes: int, what: str
    ) -> int:
        """Waits for the writer thread's answer, as long as `timeout_s`."""
        token = trio.lowlevel.current_trio_token()
        answered = trio.Event()

        def notify() -> None:
            with suppress(trio.RunFinishedError):  # nobody waits any more
                token.run_sync_soon(answered.set)

        job = Job(change, size_bytes, notify)
        environment.submit(job)
        try:
            with trio.move_on_after(self._options.timeout_s):
                await answered.wait()
        finally:
            # Even if this was cancelled: a change that has not started then never happens.
            abandoned = job.abandon()
        if job.is_finished:
            return job.answer()
        problem = f"metastore {self._path}: {what}: no answer within {self._options.timeout_s} s"
        if abandoned:
            raise MetastoreUnavailableError(
                f"{problem}; nothing was written. Another process holds the writer lock: is one stopped?"
            )
        raise MetastoreUncertainError(f"{problem}: the disk hangs; read back before you go on")

    def _notify_changed(self) -> None:
        """Wakes the waits of this instance. In the trio thread."""
        self._changed.set()
        self._changed = trio.Event()
        if self._environment is None or self._closed:
            self._waits.end()
        else:
            self._waits.look(self._environment)

    # -- opening --------------------------------------------------------------------------------------------------

    async def _opened(self) -> Environment:
        if self._environment is not None and not self._closed and os.getpid() == self._pid:
            return self._environment
        self._check_usable()
        async with self._opening:
            self._check_usable()
            if self._environment is None:
                self._environment = await self._open()
        return self._environment

    def _check_usable(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this metastore was closed")
        if os.getpid() != self._pid:
            raise MetastoreError(
                f"metastore {self._path}: opened by process {self._pid}, used in its fork {os.getpid()}; nothing was done. "
                "Open a new one after the fork"
            )

    async def _open(self) -> Environment:
        options = self._options
        limits = Limits(min(options.map_bytes, options.map_bytes_max), options.map_bytes_max, options.lease_s)
        # Opening maps and checks a file, and may wait for another process that is making the directory.
        environment = await run_in_thread(_borrow, self._path, limits, options.create)
        try:
            found = await self._format(environment)
            # A new directory. Two processes may be here at once: the writer lock orders them, and the second finds it done.
            if found is None:
                await self._submit(environment, Writing.initialize, 0, "initializing")
                found = await self._format(environment)
            if found != FORMAT:
                raise MetastoreCorruptError(
                    f"metastore {self._path}: an LMDB directory that says it is {found!r}, and {FORMAT!r} was expected: "
                    "another program's, or another version's. Nothing was changed; use another directory"
                )
            await run_in_thread(_finish, environment)
        except BaseException:
            with trio.CancelScope(shield=True):
                await run_in_thread(_give_back, environment)
            raise
        token = trio.lowlevel.current_trio_token()

        # Called in the writer thread, maybe for several trio runs: each has its own token.
        def changed() -> None:
            with suppress(trio.RunFinishedError):
                # Idempotent: a burst of commits wakes the waiting tasks once.
                token.run_sync_soon(self._notify_changed, idempotent=True)

        self._unwatch = environment.watch(changed)
        return environment

    async def _format(self, environment: Environment) -> bytes | None:
        while True:
            try:
                return environment.read(Reading.format)
            except NeedsWriterError:
                await self._submit(environment, _do_nothing, 0, "reading")


def _do_nothing(_writing: Writing) -> int:
    """Before its transaction the writer thread has opened the environment again, if that was closed; in it, it has taken
    over the size of the map."""
    return 0


# -- the environments of this process -----------------------------------------------------------------------------

_environments: dict[str, Environment] = {}
_inherited: dict[str, Environment] = {}
_lock = threading.Lock()


def _borrow(path: str, limits: Limits, create: bool) -> Environment:
    """The environment of this directory, opened if it isn't open in this process. Give it back when done. Blocks."""
    with _lock:
        try:
            if create:
                make_directory(Path(path))
            # By real path: LMDB breaks its locks when one process opens a file twice, even under different names.
            real_path = os.path.realpath(path, strict=True)
            environment = _environments.get(real_path)
            if environment is not None and environment.has_ended():
                environment = None
            if environment is None:
                if (inherited := _inherited.pop(real_path, None)) is not None:
                    # Before this process opens that file itself: closing it later would release
                    # this process's own locks. The parent's are not touched, since record locks
                    # belong to a process and not to a descriptor.
                    inherited.presence.close()
                prepare_directory(real_path)
                environment = Environment(real_path, limits)
                environment.start()
                _environments[real_path] = environment
        except DataFileDamagedError as error:
            raise damaged(path, error) from error
        except (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError, lmdb.PageNotFoundError) as error:
            raise MetastoreCorruptError(
                f"metastore {path}: its data.mdb can't be read ({error}). Nothing was changed; restore it from a backup, or "
                "use another directory"
            ) from error
        except ForkedInUseError as error:
            raise MetastoreError(f"metastore {error}") from error
        except (lmdb.Error, OSError) as error:
            absent = "; create=true would make the directory" if isinstance(error, FileNotFoundError) else ""
            raise not_opened(path, f"cannot be opened{absent}", error) from error
        environment.users += 1
        return environment


def _finish(environment: Environment) -> None:
    try:
        finish_directory(environment.path)
    except OSError as error:
        raise not_opened(environment.path, "cannot be finished", error) from error


def _give_back(environment: Environment) -> None:
    """Stops the environment if no other handle uses it. Blocks for as long as its last changes take."""
    with _lock:
        environment.users -= 1
        if environment.users:
            return
        ended = environment.stop()
        # If the thread hangs, the directory stays in the map: LMDB must not open it a second time in this process.
        if ended and _environments.get(environment.path) is environment:
            del _environments[environment.path]


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    # They can't be closed here, during the fork. Opening the same path closes the inherited ones.
    _inherited.update(_environments)
    _environments.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


@hookimpl
def replog_metastores() -> Sequence[Backend[Metastore]]:
    """Offers "lmdb"."""
    return [Backend("lmdb", LMDBMetastore, LMDBOptions, summary="a directory, shared by processes: lmdb:PATH; durable")]


def _tell_nobody() -> None:
    pass
