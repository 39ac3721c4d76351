"""Authentication by the names in certificates."""

from __future__ import annotations

import pytest

from replog.abc import Authenticator, Identity, Peer, Role
from replog.errors import AuthenticationError, ConfigError
from replog.registry import Registry


def opened(url: str) -> Authenticator:
    return Registry(load_installed=False).open_authenticator(url)


def judged(url: str, *names: str) -> Identity:
    return opened(url).verify(Peer("192.0.2.1:1", certificate_names=names), b"", b"", bytes(32))[0]


def test_any_signed_client_may_connect_and_none_may_administer() -> None:
    assert judged("tls", "app.example", "app") == Identity("app.example", frozenset({Role.CLIENT}))


def test_only_named_clients_may_connect() -> None:
    assert judged("tls:?clients=app,other", "host.example", "app") == Identity("app", frozenset({Role.CLIENT}))
    with pytest.raises(AuthenticationError, match=r"certificate of host\.example is in order, but") as raised:
        judged("tls:?clients=app,other", "host.example")
    assert "`clients`" in raised.value.detail


def test_administrators_are_named_and_need_not_be_clients() -> None:
    assert judged("tls:?clients=app&administrators=ops", "x", "ops") == Identity(
        "ops", frozenset({Role.CLIENT, Role.ADMIN})
    )
    assert judged("tls:?administrators=ops", "app").roles == {Role.CLIENT}


def test_repairers_are_named_and_need_not_administer() -> None:
    """B7: they may copy ledgers whose password they do not know."""
    assert judged("tls:?clients=app&repairers=mender", "x", "mender").roles == {Role.CLIENT, Role.REPAIRER}
    assert judged("tls:?administrators=ops&repairers=ops&members=ops", "ops").roles == frozenset(Role)
    assert judged("tls:?clients=app&members=m1", "m1").roles == {Role.CLIENT, Role.MEMBER}


def test_names_are_compared_as_a_whole() -> None:
    for name in ("app.evil", "evil.app", "APP", "app ", "*"):
        with pytest.raises(AuthenticationError):
            judged("tls:?clients=app", name)


def test_error_names_the_missing_part_without_mutual_tls() -> None:
    with pytest.raises(AuthenticationError, match=r"tls_certificate_file, and the bookie a tls_ca_file"):
        judged("tls")


def test_it_has_no_address() -> None:
    with pytest.raises(ConfigError, match="no address"):
        opened("tls:localhost")
