"""Unix sockets: their files, who may use them, and what processes that were killed leave behind."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from contextlib import closing
from pathlib import Path

import pytest
import trio
import trio.testing

from replog.abc import Role
from replog.authentication.nothing import NoAuthentication, NothingOptions
from replog.authentication.tls import TlsIdentity, TlsIdentityOptions
from replog.errors import BookieRefusedError, BookieUnreachableError, ConfigError
from replog.protocol.messages import AdminCommand, AdminRequest
from replog.runtime.nursery import open_service_nursery
from replog.runtime.platform import UNIX_PATH_BYTES_MAX as PATH_BYTES_MAX
from replog.testing import check_transport
from replog.transports.tcp import TcpTransport, UnixOptions
from replog.transports.tcp.options import UnixTuning
from replog.transports.tcp.unix import connect_to, socket_path
from tests.transports.tcp.kit import Handler, Receiver, read, settled

ADMINISTERS = NoAuthentication(NothingOptions())


def left_behind(path: Path) -> None:
    """What a process that was killed leaves: a socket's file, and nobody who listens."""
    with closing(socket.socket(socket.AF_UNIX)) as killed:
        killed.bind(str(path))
        killed.listen()


async def is_served(address: str) -> bool:
    receiver = Receiver()
    async with open_service_nursery() as nursery:
        connection = await TcpTransport(UnixOptions()).connect(address, receiver, nursery)
        connection.send([read(1)])
        with trio.fail_after(30):
            while not receiver.responses:  # noqa: ASYNC110 - nobody tells
                await trio.sleep(0.001)
        await connection.aclose()
    return True


async def test_conformance_suite(short_path: Path) -> None:
    await check_transport(lambda: TcpTransport(UnixOptions()), str(short_path / "bookie.sock"))


# -- paths ------------------------------------------------------------------------------------------------------------


async def test_relative_path_is_announced_as_an_absolute_one(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(short_path)
    async with TcpTransport(UnixOptions()).listen("here.sock", Handler()) as address:
        assert address == str(Path.cwd() / "here.sock")
        monkeypatch.chdir("/")
        assert await is_served(address)


async def test_bookies_share_a_directory_under_their_names(short_path: Path) -> None:
    transport = TcpTransport(UnixOptions())
    async with transport.listen(f"{short_path}/", Handler(), bookie_id="bookie-1") as first:
        async with transport.listen(f"{short_path}/", Handler(), bookie_id="bookie-2") as second:
            assert [Path(each).name for each in (first, second)] == ["bookie-1.sock", "bookie-2.sock"]
            assert await is_served(second)


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("/" + PATH_BYTES_MAX * "x", f"at most {PATH_BYTES_MAX} bytes, and this one has {PATH_BYTES_MAX + 1}"),
        ("/" + PATH_BYTES_MAX // 2 * "ö" + "x", f"this one has {PATH_BYTES_MAX + 1}"),
        ("", "is not a path"),
        ("a\0b", "is not a path"),
    ],
)
def test_impossible_socket_path_is_refused(address: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        socket_path(address)


async def test_longest_path_works(short_path: Path) -> None:
    path = str(short_path / "x")
    longest = path + "x" * (PATH_BYTES_MAX - len(path))
    async with TcpTransport(UnixOptions()).listen(longest, Handler()) as address:
        assert await is_served(address)


# -- the file -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "mode"), [(UnixOptions(), 0o600), (UnixOptions(mode="0660"), 0o660)])
async def test_socket_has_its_permissions_under_any_umask(options: UnixOptions, mode: int, short_path: Path) -> None:
    path = short_path / "bookie.sock"
    for umask in (0o000, 0o077):
        before = os.umask(umask)
        try:
            async with TcpTransport(options).listen(str(path), Handler()):
                assert stat.S_IMODE(path.stat().st_mode) == mode
        finally:
            os.umask(before)


@pytest.mark.parametrize("mode", ["rw", "0o600", "600600", "0699"])
def test_non_octal_mode_is_refused(mode: str) -> None:
    with pytest.raises(ConfigError, match=f"mode={mode}: must be permissions in octal"):
        UnixOptions(mode=mode)


async def test_file_is_removed_when_the_bookie_leaves(short_path: Path) -> None:
    async with TcpTransport(UnixOptions()).listen(str(short_path / "bookie.sock"), Handler()):
        pass
    assert os.listdir(short_path) == []


async def test_file_of_another_one_is_kept_when_the_bookie_leaves(short_path: Path) -> None:
    path = short_path / "bookie.sock"
    async with TcpTransport(UnixOptions()).listen(str(path), Handler()):
        path.unlink()
        left_behind(path)
    assert path.is_socket()


async def test_socket_of_a_killed_process_is_replaced(short_path: Path) -> None:
    path = short_path / "bookie.sock"
    left_behind(path)
    async with TcpTransport(UnixOptions()).listen(str(path), Handler()) as address:
        assert await is_served(address)


async def test_socket_with_a_listener_is_kept(short_path: Path) -> None:
    path, transport = short_path / "bookie.sock", TcpTransport(UnixOptions())
    async with transport.listen(str(path), Handler()) as address:
        with pytest.raises(ConfigError, match="another process listens there already"):
            async with transport.listen(str(path), Handler()):
                pass
        assert await is_served(address)


async def test_socket_is_kept_when_its_queue_is_full(short_path: Path) -> None:
    path = short_path / "other.sock"
    with closing(socket.socket(socket.AF_UNIX)) as other, closing(socket.socket(socket.AF_UNIX)) as waiting:
        other.bind(str(path))
        other.listen(0)
        waiting.connect(str(path))
        with pytest.raises(ConfigError, match="another process listens there already"):
            async with TcpTransport(UnixOptions()).listen(str(path), Handler()):
                pass


async def test_one_of_many_simultaneous_starters_takes_over_leftovers(short_path: Path) -> None:
    """Without the lock on the directory, one would remove the socket of another that has just begun."""
    path = short_path / "bookie.sock"
    left_behind(path)
    listening, refused = [], []
    leave = trio.Event()

    async def begin() -> None:
        try:
            async with TcpTransport(UnixOptions()).listen(str(path), Handler()) as address:
                listening.append(address)
                await leave.wait()
        except ConfigError as error:
            refused.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(begin)
        with trio.fail_after(30):
            while len(listening) + len(refused) < 10:  # noqa: ASYNC110 - nobody tells
                await trio.sleep(0.001)
        assert len(listening) == 1
        assert await is_served(str(path))
        leave.set()


async def test_locked_directory_is_an_error(short_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    directory = os.open(short_path, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another process keeps the directory locked"):
            async with TcpTransport(UnixOptions()).listen(str(short_path / "bookie.sock"), Handler()):
                pass
    finally:
        os.close(directory)


async def test_other_files_are_left_as_they_are(short_path: Path) -> None:
    path = short_path / "precious"
    path.write_text("data")
    with pytest.raises(ConfigError, match="a file is there that is not a socket"):
        async with TcpTransport(UnixOptions()).listen(str(path), Handler()):
            pass
    assert path.read_text() == "data"


async def test_missing_directory_is_an_error(short_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot listen there: No such file or directory"):
        async with TcpTransport(UnixOptions()).listen(str(short_path / "missing" / "bookie.sock"), Handler()):
            pass


# -- connecting ---------------------------------------------------------------------------------------------------------


async def test_client_waits_for_a_lagging_bookie(short_path: Path) -> None:
    """The kernel says EAGAIN while the backlog is full; for TCP that would be "under way"."""
    path = str(short_path / "busy.sock")
    with closing(socket.socket(socket.AF_UNIX)) as busy, closing(socket.socket(socket.AF_UNIX)) as waiting:
        busy.bind(path)
        busy.listen(0)
        waiting.connect(path)
        with trio.move_on_after(0.05):
            (await connect_to(path)).close()
            pytest.fail("there was no room")
        busy.accept()[0].close()
        with trio.fail_after(30):
            connected = await connect_to(path)
        with closing(connected):
            assert connected.getpeername() == path


async def test_error_names_the_path_without_a_listener(short_path: Path) -> None:
    path = short_path / "bookie.sock"
    left_behind(path)
    for where, problem in ((path, "Connection refused"), (short_path / "none", "No such file or directory")):
        with pytest.raises(BookieUnreachableError, match=f"{where}: {problem}"):
            await is_served(str(where))


async def test_users_are_limited_each_by_himself_and_named_in_the_log(
    short_path: Path, patient_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    transport = TcpTransport(UnixTuning(failed_handshakes_max=2))
    async with transport.listen(str(short_path / "bookie.sock"), Handler(), bookie_id="bookie-1") as address:
        strangers = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        for stranger in strangers:
            stranger.connect(address)
            stranger.send(b"GET / HTTP/1.0")
            stranger.close()
        await settled()
        with pytest.raises(BookieRefusedError, match="too many handshakes"):
            await is_served(address)
    assert caplog.messages[0].startswith(f"client process {os.getpid()} of user {os.geteuid()} was refused: ")


async def test_clients_are_of_this_machine_and_may_administer(short_path: Path) -> None:
    handler, receiver = Handler(), Receiver()
    transport = TcpTransport(UnixOptions())
    path = str(short_path / "bookie.sock")
    async with transport.listen(path, handler, authenticator=ADMINISTERS) as address, trio.open_nursery() as nursery:
        connection = await transport.connect(address, receiver, nursery, authenticator=ADMINISTERS)
        connection.send([AdminRequest(1, AdminCommand.COLLECT_GARBAGE)])
        with trio.fail_after(30):
            while not receiver.responses:  # noqa: ASYNC110 - nobody tells
                await trio.sleep(0.001)
        await connection.aclose()
    assert len(handler.requests) == 1, Role.ADMIN


async def test_authentication_by_certificates_needs_tcp(short_path: Path) -> None:
    transport, authenticator = TcpTransport(UnixOptions()), TlsIdentity(TlsIdentityOptions())
    path = str(short_path / "bookie.sock")
    with pytest.raises(ConfigError, match="'tls' needs TLS, which is for tcp:HOST:PORT only"):
        async with transport.listen(path, Handler(), authenticator=authenticator):
            pass
    async with transport.listen(path, Handler()) as address, open_service_nursery() as nursery:
        with pytest.raises(BookieRefusedError, match="'tls' needs TLS, which Unix sockets don't have"):
            await transport.connect(address, Receiver(), nursery, authenticator=authenticator)
