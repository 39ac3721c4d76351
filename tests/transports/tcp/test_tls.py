"""TLS and authentication between two ends: who is let in, and what both are told if somebody is not."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import trio

from replog.abc import Authenticator, Identity, Peer, Role
from replog.errors import BookieRefusedError, ConfigError
from replog.protocol.messages import AdminCommand, AdminRequest, Status
from replog.transports.tcp import TcpOptions, TcpTransport
from tests.authentication.files import CLIENT_SECRET, OTHER_SECRET, secrets_file
from tests.transports.tcp.credentials import BOOKIE_ID, Asker, Authority, ask, encrypted, listening


class Files:
    """All the files that a test may need, made once."""

    def __init__(self, directory: Path) -> None:
        ours, others = Authority(directory, "ours"), Authority(directory, "others")
        self.authority, self.other_authority = str(ours.file), str(others.file)
        self.bookie = str(ours.sign("127.0.0.1", "localhost"))
        self.expired = str(ours.sign("127.0.0.1", days=-1))
        self.other_host = str(ours.sign("elsewhere.example"))
        self.client = str(ours.sign("app.example", common_name="app"))
        self.operator = str(ours.sign("ops.example", common_name="ops"))
        self.expired_client = str(ours.sign("app.example", days=-2))
        self.stranger = str(others.sign("app.example", common_name="app"))
        self.encrypted = str(encrypted(Path(self.bookie)))
        self.secrets = str(
            secrets_file(directory / "all.toml", administrators=("ops",), app=CLIENT_SECRET, ops=OTHER_SECRET)
        )
        self.app = str(secrets_file(directory / "app.toml", app=CLIENT_SECRET))
        self.wrong = str(secrets_file(directory / "wrong.toml", app=OTHER_SECRET))
        self.unknown = str(secrets_file(directory / "unknown.toml", nobody=CLIENT_SECRET))

    def tls_bookie(self) -> TcpOptions:
        return TcpOptions(tls_certificate_file=self.bookie)

    def mutual_bookie(self) -> TcpOptions:
        return TcpOptions(tls_certificate_file=self.bookie, tls_ca_file=self.authority)

    def tls_client(self) -> TcpOptions:
        return TcpOptions(tls_ca_file=self.authority)

    def mutual_client(self, certificate: str = "") -> TcpOptions:
        return TcpOptions(tls_ca_file=self.authority, tls_certificate_file=certificate or self.client)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("credentials"))


# -- who is let in --------------------------------------------------------------------------------------------------

Choose = Callable[[Files], TcpOptions]


@pytest.mark.parametrize(
    ("bookie", "client"),
    [
        (lambda _: TcpOptions(), lambda _: TcpOptions()),
        (Files.tls_bookie, Files.tls_client),
        (Files.mutual_bookie, Files.mutual_client),
        (Files.tls_bookie, Files.mutual_client),
    ],
    ids=["clear", "tls", "mutual", "unasked-certificate"],
)
@pytest.mark.parametrize("authentication", ["", "secret"])
async def test_member_of_the_cluster_is_let_in(
    files: Files, bookie: Choose, client: Choose, authentication: str
) -> None:
    judging, proving = ("", "") if not authentication else (f"secret:{files.secrets}", f"secret:{files.app}")
    async with listening(bookie(files), judging) as listener:
        assert (await ask(listener.address, client(files), proving)).status is Status.OK


async def test_a_certificate_may_be_for_another_name_than_the_address(files: Files) -> None:
    async with listening(TcpOptions(tls_certificate_file=files.other_host)) as listener:
        named = attrs.evolve(files.tls_client(), tls_hostname="elsewhere.example")
        assert (await ask(listener.address, named)).status is Status.OK
        unchecked = attrs.evolve(files.tls_client(), tls_check_hostname=False)
        assert (await ask(listener.address, unchecked)).status is Status.OK


@attrs.frozen
class Refusal:
    """What goes wrong: both sides' options and authentication, and what each is told."""

    bookie: Callable[[Files], tuple[TcpOptions, str]]
    client: Callable[[Files], tuple[TcpOptions, str]]
    told: str
    logged: str


REFUSALS = {
    "client without TLS": Refusal(
        lambda files: (files.tls_bookie(), ""),
        lambda files: (TcpOptions(), ""),
        r"this bookie speaks TLS only: give the client a tls_ca_file",
        r"it does not speak TLS",
    ),
    "bookie without TLS": Refusal(
        lambda files: (TcpOptions(), ""),
        lambda files: (files.tls_client(), ""),
        r"it does not speak TLS, and says: .*it speaks TLS, and this side does not",
        r"it speaks TLS, and this side does not",
    ),
    "unknown authority": Refusal(
        lambda files: (files.tls_bookie(), ""),
        lambda files: (TcpOptions(tls_ca_file=files.other_authority), ""),
        r"its certificate is not signed by an authority in this client's tls_ca_file",
        r"it does not trust who signed this bookie's certificate",
    ),
    "the system's authorities": Refusal(
        lambda files: (files.tls_bookie(), ""),
        lambda files: (TcpOptions(tls=True), ""),
        r"its certificate is not signed by an authority",
        r"it does not trust who signed this bookie's certificate",
    ),
    "expired certificate": Refusal(
        lambda files: (TcpOptions(tls_certificate_file=files.expired), ""),
        lambda files: (files.tls_client(), ""),
        r"its certificate has expired: renew it",
        r"this bookie's certificate has expired: renew it",
    ),
    "another host's certificate": Refusal(
        lambda files: (TcpOptions(tls_certificate_file=files.other_host), ""),
        lambda files: (files.tls_client(), ""),
        r"its certificate is for another host: .*127\.0\.0\.1",
        r"it refuses this bookie's certificate: is it for the host",
    ),
    "no client certificate": Refusal(
        lambda files: (files.mutual_bookie(), ""),
        lambda files: (files.tls_client(), ""),
        r"it asks for a client certificate: give this client a tls_certificate_file",
        r"it showed no certificate, and this bookie asks for one",
    ),
    "a stranger's certificate": Refusal(
        lambda files: (files.mutual_bookie(), ""),
        lambda files: (files.mutual_client(files.stranger), ""),
        r"it does not trust who signed this client's certificate",
        r"its certificate is not signed by an authority in this bookie's tls_ca_file",
    ),
    "an expired client certificate": Refusal(
        lambda files: (files.mutual_bookie(), ""),
        lambda files: (files.mutual_client(files.expired_client), ""),
        r"this client's certificate \(tls_certificate_file\) has expired",
        r"its certificate has expired",
    ),
    "wrong secret": Refusal(
        lambda files: (TcpOptions(), f"secret:{files.secrets}"),
        lambda files: (TcpOptions(), f"secret:{files.wrong}"),
        r"'app' is unknown to this bookie, or has another secret here$",
        r"\(.*all\.toml has another secret\)",
    ),
    "unknown name": Refusal(
        lambda files: (TcpOptions(), f"secret:{files.secrets}"),
        lambda files: (TcpOptions(), f"secret:{files.unknown}"),
        r"'nobody' is unknown to this bookie, or has another secret here$",
        r"\(there is no such name in .*all\.toml\)",
    ),
    "another mechanism": Refusal(
        lambda files: (TcpOptions(), f"secret:{files.secrets}"),
        lambda files: (TcpOptions(), "none"),
        r"this bookie asks for authentication by 'secret', the client offers 'none'",
        r"asks for authentication by 'secret', the client offers 'none'",
    ),
    "secret where none is asked": Refusal(
        lambda files: (TcpOptions(), "none"),
        lambda files: (TcpOptions(), f"secret:{files.app}"),
        r"this bookie asks for authentication by 'none', the client offers 'secret'",
        r"asks for authentication by 'none', the client offers 'secret'",
    ),
    "a name that may not connect": Refusal(
        lambda files: (files.mutual_bookie(), "tls:?clients=other"),
        lambda files: (files.mutual_client(), "tls"),
        r"the certificate of app\.example, app is in order, but that name may not connect",
        r"add it to the option `clients`",
    ),
}


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("name", REFUSALS)
async def test_both_sides_learn_the_fault(files: Files, name: str, caplog: pytest.LogCaptureFixture) -> None:
    refusal = REFUSALS[name]
    async with listening(*refusal.bookie(files)) as listener:
        options, authentication = refusal.client(files)
        with pytest.raises(BookieRefusedError, match=refusal.told) as raised:
            await ask(listener.address, options, authentication, bookie_id=BOOKIE_ID)
        assert raised.value.bookie_id == BOOKIE_ID
    (line,) = logged(caplog)
    assert re.search(refusal.logged, line)
    assert "was refused" in line
    for secret in (CLIENT_SECRET, OTHER_SECRET):
        assert secret not in line
        assert secret not in str(raised.value)


async def test_another_bookie_than_the_intended_one_is_refused(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    async with listening(files.tls_bookie()) as listener:
        with pytest.raises(BookieRefusedError, match=r"this is bookie bookie-1, not bookie-2: is the address right"):
            await ask(listener.address, files.tls_client(), bookie_id="bookie-2")
    assert "not bookie-2" in logged(caplog)[0]


async def test_certificate_names_the_client(files: Files) -> None:
    async with listening(files.mutual_bookie(), "tls:?administrators=ops") as listener:
        request = AdminRequest(1, AdminCommand.COMPACT)
        answer = await ask(listener.address, files.mutual_client(), "tls", request)
        assert answer.status is Status.UNAUTHORIZED
        answer = await ask(listener.address, files.mutual_client(files.operator), "tls", request)
        assert answer.status is Status.OK


async def test_only_an_administrator_administers(files: Files) -> None:
    request = AdminRequest(1, AdminCommand.COLLECT_GARBAGE)
    async with listening(TcpOptions(), f"secret:{files.secrets}") as listener:
        answer = await ask(listener.address, TcpOptions(), f"secret:{files.secrets}?name=app", request)
        assert (answer.status, "administrator" in answer.detail) == (Status.UNAUTHORIZED, True)
        answer = await ask(listener.address, TcpOptions(), f"secret:{files.secrets}?name=ops", request)
        assert answer.status is Status.OK
        answer = await ask(
            listener.address, TcpOptions(), f"secret:{files.app}", AdminRequest(1, AdminCommand.STATISTICS)
        )
        assert answer.status is Status.OK


async def test_stranger_has_no_access_to_ledgers(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "watcher.toml"
    path.write_text(f'[clients.watcher]\nsecret = "{CLIENT_SECRET}"\nroles = ["admin"]\n', encoding="utf-8")
    path.chmod(0o600)
    async with listening(TcpOptions(), f"secret:{path}") as listener:
        assert (await ask(listener.address, TcpOptions(), f"secret:{path}")).status is Status.UNAUTHORIZED
        administered = await ask(
            listener.address, TcpOptions(), f"secret:{path}", AdminRequest(1, AdminCommand.COMPACT)
        )
        assert administered.status is Status.OK


# -- what can't work is said at the beginning -----------------------------------------------------------------------


async def test_unusable_files_are_refused(files: Files, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    faults = {
        TcpOptions(tls_certificate_file=files.bookie, tls_key_file=files.encrypted): r"encrypted.*openssl pkey",
        TcpOptions(tls_certificate_file=files.bookie, tls_key_file=files.client): r"is not the key of the certificate",
        TcpOptions(tls_certificate_file=str(tmp_path / "missing.pem")): r"missing\.pem: No such file",
        TcpOptions(tls_certificate_file=str(empty)): r"no certificate \(PEM\) in .*empty\.pem",
        TcpOptions(tls_certificate_file=files.bookie, tls_ca_file=str(empty)): r"no certificates and keys.*empty\.pem",
        TcpOptions(tls_certificate_file=files.authority): r"no certificates and keys",
        TcpOptions(tls_ca_file=files.authority): r"a bookie needs a tls_certificate_file",
    }
    for options, fault in faults.items():
        with pytest.raises(ConfigError, match=fault):
            async with listening(options):
                raise AssertionError("it listens")
    for path in (tmp_path / "missing.pem", empty):
        with pytest.raises(ConfigError, match=path.name):
            TcpTransport(TcpOptions(tls_ca_file=str(path)))


async def test_identities_by_certificate_need_mutual_tls(files: Files) -> None:
    for options in (TcpOptions(), files.tls_bookie()):
        with pytest.raises(
            ConfigError, match=r"authentication by 'tls' needs a tls_certificate_file and a tls_ca_file"
        ):
            async with listening(options, "tls"):
                raise AssertionError("it listens")
    async with listening(files.mutual_bookie(), "tls") as listener:
        for options in (TcpOptions(), files.tls_client()):
            with pytest.raises(BookieRefusedError, match=r"authentication by 'tls' needs a tls_certificate_file"):
                await ask(listener.address, options, "tls")


# -- warnings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bookie", "authentication", "warned"),
    [
        (lambda _: TcpOptions(), "none", ["in clear", "everybody may connect"]),
        (lambda _: TcpOptions(), "", ["in clear", "everybody may connect"]),
        (lambda _: TcpOptions(), "secret", ["in clear"]),
        (Files.tls_bookie, "none", ["everybody may connect"]),
        (Files.tls_bookie, "secret", []),
        (Files.mutual_bookie, "none", []),
    ],
)
async def test_listening_publicly_without_tls_warns_once(
    files: Files, bookie: Choose, authentication: str, warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    judging = f"secret:{files.secrets}" if authentication == "secret" else authentication
    async with listening(bookie(files), judging, host="0.0.0.0"):
        pass
    text = "".join(logged(caplog))
    assert len(logged(caplog)) == bool(warned)
    for danger in ("in clear", "everybody may connect"):
        assert (danger in text) is (danger in warned)
    caplog.clear()
    async with listening(bookie(files), judging, host="127.0.0.1"):
        pass
    assert not logged(caplog)


# -- in between -------------------------------------------------------------------------------------------------------


async def test_a_man_in_the_middle_is_detected_by_the_certificate(files: Files, tmp_path: Path) -> None:
    """A proof covers the bookie's certificate: passed on to the real bookie, it proves nothing."""
    relayed = Relay()
    async with listening(files.tls_bookie(), f"secret:{files.secrets}") as listener:
        relay_options = TcpOptions(tls_certificate_file=files.other_host)
        async with listening(relay_options) as between:
            between._authenticator = relayed
            client = attrs.evolve(files.tls_client(), tls_check_hostname=False)
            with pytest.raises(BookieRefusedError):
                await ask(between.address, client, f"secret:{files.app}")
        assert relayed.response
        asker = Asker()
        transport = TcpTransport(files.tls_client())
        async with trio.open_nursery() as nursery:
            with pytest.raises(BookieRefusedError, match="another secret here"):
                await transport.connect(listener.address, asker, nursery, authenticator=relayed)


class Relay(Authenticator):
    """Passes on to a bookie what a client said to it."""

    def __init__(self) -> None:
        self.response = b""

    @property
    def mechanism(self) -> str:
        return "secret"

    def respond(self, challenge: bytes, session: bytes) -> bytes:
        return self.response

    def verify(self, peer: Peer, challenge: bytes, response: bytes, session: bytes) -> tuple[Identity, bytes]:
        self.response = response
        return Identity("app", frozenset(Role)), bytes(32)

    def confirm(self, response: bytes, proof: bytes, session: bytes) -> None:
        pass


# -- renewal ----------------------------------------------------------------------------------------------------------


async def test_renewed_certificates_are_used_without_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path, "renewing")
    file = authority.sign("127.0.0.1", days=-1, file=tmp_path / "bookie.pem")
    client = TcpOptions(tls_ca_file=str(authority.file))
    async with listening(TcpOptions(tls_certificate_file=str(file))) as listener:
        with pytest.raises(BookieRefusedError, match="has expired"):
            await ask(listener.address, client)
        authority.sign("127.0.0.1", file=file)
        assert (await ask(listener.address, client)).status is Status.OK
        caplog.clear()
        file.write_text("half a certifica")
        assert (await ask(listener.address, client)).status is Status.OK
        assert (await ask(listener.address, client)).status is Status.OK
        (line,) = logged(caplog)
        assert "those from before are used" in line
        authority.sign("127.0.0.1", file=file)
        assert (await ask(listener.address, client)).status is Status.OK


async def test_a_misbehaving_authenticator_ends_no_bookie(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Relay):
        def verify(self, peer: Peer, challenge: bytes, response: bytes, session: bytes) -> tuple[Identity, bytes]:
            raise KeyError("not caught")

    async with listening(TcpOptions()) as listener:
        listener._authenticator = Broken()
        transport = TcpTransport(TcpOptions())
        async with trio.open_nursery() as nursery:
            with pytest.raises(BookieRefusedError, match=r"could not judge what the client said$"):
                await transport.connect(listener.address, Asker(), nursery, authenticator=Broken())
        listener._authenticator = None
        assert (await ask(listener.address, TcpOptions())).status is Status.OK
    assert "broke its contract: KeyError('not caught')" in logged(caplog)[0]
