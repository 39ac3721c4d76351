"""Real processes of Python in which replog is imported already: each is forked from one process that has imported it.

To import replog and its command costs most of a second of processor, in each process that is started as usual. One that is
forked has descriptors, a directory, an environment, arguments, signals and an exit status of its own, too, and ends as any
program does: threads are joined, exit handlers run. `Forked` and `run` stand for `subprocess.Popen` and `subprocess.run`, and
take the same command lines of this Python: `-m MODULE`, `-c CODE`, or a file, behind options
`-W ACTION::CATEGORY`.

What a process is like that has imported nothing yet is for `subprocess` to start.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import json
import os
import pkgutil
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, cast

_ROOT = Path(__file__).parent.parent
REQUEST_BYTES = 1 << 17
_STREAMS = 3
ENDING_S = 60.0


# -- in the process of the tests ------------------------------------------------------------------------------------------


class Preload(NamedTuple):
    """A library in LD_PRELOAD, and the modules that are imported already instead of the command: where processes fork a
    hundred more, each is as small as it can be."""

    library: str
    modules: tuple[str, ...]


class Forked:
    """A process. It takes what `subprocess.Popen` takes, and has the same methods."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        text: bool = False,
        start_new_session: bool = False,
        preload: Preload | None = None,
    ) -> None:
        python, *self.arguments = map(str, command)
        assert python == sys.executable, f"{python} is not this Python"
        self.returncode: int | None = None
        self.stdin: IO[Any] | None = None
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None
        self._lock = threading.Lock()
        self._is_text = text
        self._to_close: list[int] = []
        theirs = self._open_streams(stdin, stdout, stderr)
        self._status, status = os.pipe()
        request = {
            "arguments": self.arguments,
            "directory": str(cwd or Path.cwd()),
            "environment": dict(os.environ if env is None else env),
            "is_leader": start_new_session,
        }
        try:
            socket.send_fds(_server(preload), [json.dumps(request).encode()], [*theirs, status])
        finally:
            for each in (*self._to_close, status):
                os.close(each)
        self.pid = self._read_number()

    def _open_streams(self, *wanted: int | IO[Any] | None) -> list[int]:
        theirs: list[int] = []
        for number, each in enumerate(wanted):
            if each == subprocess.PIPE:
                reading, writing = os.pipe()
                their, ours = (reading, writing) if number == 0 else (writing, reading)
                self._to_close.append(their)
                name, mode = (("stdin", "w"), ("stdout", "r"), ("stderr", "r"))[number]
                setattr(self, name, self._open(ours, mode))
            elif each == subprocess.STDOUT:
                their = theirs[1]
            elif each == subprocess.DEVNULL:
                their = os.open(os.devnull, os.O_RDWR)
                self._to_close.append(their)
            elif each is None:
                their = number
            else:
                their = each if isinstance(each, int) else each.fileno()
            theirs.append(their)
        return theirs

    def _open(self, descriptor: int, mode: str) -> IO[Any]:
        if self._is_text:
            return open(descriptor, mode, encoding="utf-8")
        return open(descriptor, f"{mode}b", buffering=0 if mode == "w" else -1)

    def _read_number(self) -> int:
        found = b""
        while not found.endswith(b"\n"):
            read = os.read(self._status, 1)
            assert read, f"the process that forks has ended: {self.arguments}"
            found += read
        return int(found)

    def __enter__(self) -> Forked:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
        self.close()
        self.wait()

    def close(self) -> None:
        """Closes the pipes."""
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended: its exit status, negative for the signal that ended it."""
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._status, select.POLLIN)
            if not waiting.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(self.arguments, timeout or 0.0)
        with self._lock:
            if self.returncode is None:
                self.returncode = self._read_number()
                os.close(self._status)
            return self.returncode

    def poll(self) -> int | None:
        """The exit status; None while it runs."""
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, given: str | bytes | None = None, timeout: float = ENDING_S) -> tuple[Any, Any]:
        """Gives it this to read, and reads all that it writes, until it has ended."""
        found: dict[str, Any] = {}

        def write() -> None:
            assert self.stdin is not None
            with suppress(BrokenPipeError), self.stdin as stream:
                if given:
                    stream.write(given)

        def read(name: str, stream: IO[Any]) -> None:
            with stream:
                found[name] = stream.read()

        threads = [threading.Thread(target=write)] if self.stdin is not None and not self.stdin.closed else []
        for name, stream in (("stdout", self.stdout), ("stderr", self.stderr)):
            if stream is not None and not stream.closed:
                threads.append(threading.Thread(target=read, args=(name, stream)))
        for each in threads:
            each.start()
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        finally:
            for each in threads:
                each.join(timeout)
        return found.get("stdout"), found.get("stderr")


def run(
    command: Sequence[str | Path],
    *,
    given: str | bytes | None = None,
    timeout: float = ENDING_S,
    text: bool = True,
    stdout: int | IO[Any] | None = subprocess.PIPE,
    stderr: int | IO[Any] | None = subprocess.PIPE,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    preload: Preload | None = None,
) -> subprocess.CompletedProcess[Any]:
    """Starts it with this on its standard input, and waits for its end."""
    stdin = subprocess.DEVNULL if given is None else subprocess.PIPE
    with Forked(
        command, stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, env=env, text=text, preload=preload
    ) as process:
        output, errors = process.communicate(given, timeout)
        return subprocess.CompletedProcess(command, process.wait(), output, errors)


@cache
def _server(preload: Preload | None) -> socket.socket:
    """Connected to the process that forks, which lives as long as this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests.forks", str(theirs.fileno()), *(preload.modules if preload else ())]
    environment = os.environ | ({"LD_PRELOAD": preload.library} if preload else {})
    process = subprocess.Popen(
        command, cwd=_ROOT, env=environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
    )
    theirs.close()

    @atexit.register
    def end() -> None:
        ours.close()
        process.wait(ENDING_S)

    return ours


# -- in the process that forks --------------------------------------------------------------------------------------------


def serve(requests: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Returns in each process that was forked what it shall be, and None when nobody asks any more."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.data is not None:  # a process has ended
                    pid, status = key.data
                    waiting.unregister(key.fd)
                    os.close(key.fd)
                    tell(status, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                    os.close(status)
                    continue
                message, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES, _STREAMS + 1)
                if not message:
                    return None
                *streams, status = descriptors
                pid = os.fork()
                if pid == 0:
                    requests.detach()
                    return json.loads(message), streams
                tell(status, pid)
                for each in streams:
                    os.close(each)
                waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, status))


def tell(status: int, number: int) -> None:
    try:
        os.write(status, b"%d\n" % number)
    except BrokenPipeError:
        return  # nobody waits for it any more


def become(request: dict[str, Any], streams: list[int]) -> None:
    """Has what a new interpreter would have."""
    for number, each in enumerate(streams):
        os.dup2(each, number)
    os.closerange(_STREAMS, os.sysconf("SC_OPEN_MAX"))
    if request["is_leader"]:
        os.setsid()
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.stdin = opened(0, "r")
    is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdout = opened(1, "w", line_buffering=is_unbuffered or os.isatty(1))
    sys.stderr = opened(2, "w", line_buffering=True, errors="backslashreplace")


def opened(
    number: int, mode: Literal["r", "w"], *, line_buffering: bool = False, errors: str = "strict"
) -> TextIOWrapper:
    raw = open(number, f"{mode}b", closefd=False)  # noqa: SIM115 - for the rest of the process
    return TextIOWrapper(raw, encoding="utf-8", errors=errors, line_buffering=line_buffering)


def run_program(arguments: list[str]) -> None:
    while arguments[0] == "-W":
        action, _, category = arguments[1].partition("::")
        warnings.simplefilter(cast(Any, action), getattr(builtins, category))
        del arguments[:2]
    first, *others = arguments
    if first == "-m":
        module, *sys.argv[1:] = others
        sys.path[0] = os.getcwd()
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    elif first == "-c":
        code, *arguments = others
        sys.path[0] = ""
        sys.argv[:] = ["-c", *arguments]
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), sys.modules["__main__"].__dict__)
    else:
        sys.argv[:] = [first, *others]
        sys.path[0] = str(Path(first).parent.resolve())
        runpy.run_path(first, run_name="__main__")


def import_modules(names: list[str]) -> None:
    for each in names:
        import_module(each)


def import_all() -> None:
    import asyncio  # noqa: F401
    import tomllib  # noqa: F401

    # What commands import when they need it.
    import rich.progress
    import rich.table  # noqa: F401
    import structlog.dev  # noqa: F401
    from pydantic import TypeAdapter  # noqa: F401

    import replog.aio
    import replog.blocking
    import replog.cli
    from replog.registry import Registry

    Registry()  # imports all plugins
    for each in pkgutil.walk_packages(replog.cli.__path__, "replog.cli."):
        if not each.name.endswith("__main__"):
            import_module(each.name)


if __name__ == "__main__":
    import_modules(sys.argv[2:]) if sys.argv[2:] else import_all()
    gc.freeze()  # what is imported is not looked through by each of them
    if (forked := serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        become(*forked)
        run_program(forked[0]["arguments"])
