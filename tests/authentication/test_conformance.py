"""The authenticators that come with replog pass their conformance suite, and some that are wrong fail it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from replog.abc import Authenticator, Identity, Peer, Role
from replog.authentication.tls import TlsIdentity, TlsIdentityOptions
from replog.errors import AuthenticationError
from replog.registry import Registry
from replog.testing import check_authenticator
from tests.authentication.files import CLIENT_SECRET, OTHER_SECRET, secrets_file

PEER = Peer("192.0.2.1:1234")


def opened(url: str) -> Callable[[], Authenticator]:
    return lambda: Registry(load_installed=False).open_authenticator(url)


def test_nothing() -> None:
    check_authenticator(opened("none"), opened("none"), proves_by_itself=False)


def test_secrets(tmp_path: Path) -> None:
    known = secrets_file(tmp_path / "all.toml", app=CLIENT_SECRET, other=OTHER_SECRET)
    own = secrets_file(tmp_path / "app.toml", app=CLIENT_SECRET)
    wrong = secrets_file(tmp_path / "wrong.toml", app=OTHER_SECRET)
    unknown = secrets_file(tmp_path / "unknown.toml", nobody=CLIENT_SECRET)
    strangers = [(opened(f"secret:{path}"), PEER) for path in (wrong, unknown)]
    check_authenticator(opened(f"secret:{own}"), opened(f"secret:{known}"), strangers=strangers)
    check_authenticator(opened(f"secret:{known}?name=other"), opened(f"secret:{known}"), strangers=strangers)


def test_certificates() -> None:
    bookie = opened("tls:?clients=app&administrators=ops")
    strangers = [(opened("tls"), Peer("192.0.2.1:1", certificate_names=names)) for names in ((), ("somebody",))]
    peer = Peer("192.0.2.1:1", certificate_names=("app",))
    check_authenticator(opened("tls"), bookie, peer=peer, strangers=strangers, proves_by_itself=False)


class Wrong(Authenticator):
    """Breaks one promise: the one it is named for."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.seen: list[bytes] = []

    @property
    def mechanism(self) -> str:
        return "" if self.fault == "nameless" else "wrong"

    def respond(self, challenge: bytes, session: bytes) -> bytes:
        return b"long" * 4096 if self.fault == "long" else b"c" + session

    def verify(self, peer: Peer, challenge: bytes, response: bytes, session: bytes) -> tuple[Identity, bytes]:
        if self.fault == "bare" and not response:
            raise ValueError("not enough")
        if self.fault == "keeps" and response in self.seen:
            raise AuthenticationError("again")
        self.seen.append(response)
        if self.fault not in ("open", "long") and response != b"c" + session:
            raise AuthenticationError("no")
        return Identity(
            "somebody", frozenset({Role.CLIENT})
        ), b"c" + session if self.fault == "mirror" else b"b" + session

    def confirm(self, response: bytes, proof: bytes, session: bytes) -> None:
        if self.fault == "trusting":
            return
        if proof != (b"c" if self.fault == "mirror" else b"b") + session:
            raise AuthenticationError("no")


@pytest.mark.parametrize("fault", ["nameless", "long", "bare", "open", "mirror", "trusting"])
def test_a_wrong_one_fails(fault: str) -> None:
    check_authenticator(lambda: Wrong(""), lambda: Wrong(""))
    with pytest.raises(AssertionError):
        check_authenticator(lambda: Wrong(fault), lambda: Wrong(fault))


def test_bookie_fails_the_exam_when_it_admits_strangers() -> None:
    stranger = (lambda: TlsIdentity(TlsIdentityOptions()), Peer("192.0.2.1:1", certificate_names=("somebody",)))
    peer = Peer("192.0.2.1:1", certificate_names=("app",))
    with pytest.raises(AssertionError, match="stranger"):
        check_authenticator(opened("tls"), opened("tls"), peer=peer, strangers=[stranger], proves_by_itself=False)
