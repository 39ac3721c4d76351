"""The conformance suite of authenticators."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from replog.abc import Authenticator, Identity, Peer, Role
from replog.errors import AuthenticationError
from replog.protocol.wire import GREETING_BYTES_MAX
from replog.testing.promises import plain_assertions, promise, promised_error

MakeAuthenticator = Callable[[], Authenticator]

_SAID_BYTES_MAX = GREETING_BYTES_MAX // 2
_SOMEBODY = Peer("192.0.2.1:1234")


def check_authenticator(
    make_client: MakeAuthenticator,
    make_bookie: MakeAuthenticator,
    *,
    peer: Peer = _SOMEBODY,
    strangers: Sequence[tuple[MakeAuthenticator, Peer]] = (),
    proves_by_itself: bool = True,
) -> None:
    """Check both sides of an authenticator; raise `AssertionError` with the first promise of `replog.abc` that it breaks.

    `peer` is what the transport knows of the client. `strangers` are clients that must be refused, each with what the
    transport knows of it. `proves_by_itself=False` is for an authenticator that relies on the transport to prove who the
    peers are: then replays and forgeries are not checked. Needs no pytest, and takes less than a second.
    """
    with plain_assertions():
        client, bookie = make_client(), make_bookie()
        _check_a_round(client, bookie, peer)
        _check_nothing_is_kept(client, bookie, peer)
        for make_stranger, stranger in strangers:
            _check_a_stranger(make_stranger(), bookie, stranger)
        _check_any_bytes(client, bookie, peer)
        if proves_by_itself:
            _check_replays(client, bookie, peer)
            _check_forgeries(client, bookie, peer)


def _new_session() -> bytes:
    return secrets.token_bytes(32)


def _answered(client: Authenticator, bookie: Authenticator, session: bytes) -> tuple[bytes, bytes]:
    challenge = bookie.challenge()
    return challenge, client.respond(challenge, session)


def _check_a_round(client: Authenticator, bookie: Authenticator, peer: Peer) -> None:
    promise(bool(client.mechanism), "a mechanism has a name")
    promise(client.mechanism == bookie.mechanism, "both sides name the same mechanism")
    session = _new_session()
    challenge, response = _answered(client, bookie, session)
    identity, proof = bookie.verify(peer, challenge, response, session)
    promise(isinstance(identity, Identity) and bool(identity.name), "an accepted client has a name")
    promise(identity.roles <= frozenset(Role), "roles are members of Role")
    client.confirm(response, proof, session)
    for said in (challenge, response, proof):
        promise(len(said) <= _SAID_BYTES_MAX, f"each message has at most {_SAID_BYTES_MAX} bytes")


def _check_nothing_is_kept(client: Authenticator, bookie: Authenticator, peer: Peer) -> None:
    sessions = [_new_session() for _ in range(3)]
    said = [_answered(client, bookie, session) for session in sessions]
    # In the opposite order: a bookie that kept state from one handshake to the next would mix them up.
    judged = [bookie.verify(peer, *each, session) for each, session in zip(reversed(said), sessions[::-1], strict=True)]
    for (_, response), (_, proof), session in zip(said, judged[::-1], sessions, strict=True):
        client.confirm(response, proof, session)  # handshakes may overlap
    promise(len({identity.name for identity, _ in judged}) == 1, "the same client is the same identity each time")


def _check_a_stranger(stranger: Authenticator, bookie: Authenticator, peer: Peer) -> None:
    session = _new_session()
    challenge, response = _answered(stranger, bookie, session)
    with promised_error(AuthenticationError, "a stranger is refused by AuthenticationError"):
        bookie.verify(peer, challenge, response, session)


def _check_any_bytes(client: Authenticator, bookie: Authenticator, peer: Peer) -> None:
    """Any bytes of a peer lead to an identity or to `AuthenticationError`."""
    session = _new_session()
    challenge, response = _answered(client, bookie, session)
    _, proof = bookie.verify(peer, challenge, response, session)
    for said in _distorted(response):
        with _only_refusals("verify"):
            bookie.verify(peer, challenge, said, session)
    for said in _distorted(proof):
        with _only_refusals("confirm"):
            client.confirm(response, said, session)


@contextmanager
def _only_refusals(method: str) -> Iterator[None]:
    try:
        yield
    except AuthenticationError as error:
        promise(bool(str(error)), "an error says what is wrong")
    except Exception as error:
        raise AssertionError(
            f"the contract is broken: {method} raises AuthenticationError alone, not {error!r}"
        ) from error


def _check_replays(client: Authenticator, bookie: Authenticator, peer: Peer) -> None:
    session, later = _new_session(), _new_session()
    challenge, response = _answered(client, bookie, session)
    _, proof = bookie.verify(peer, challenge, response, session)
    with promised_error(AuthenticationError, "a recorded response is refused in another session"):
        bookie.verify(peer, challenge, response, later)
    _, own = _answered(client, bookie, later)
    with promised_error(AuthenticationError, "a recorded proof of a bookie is refused in another session"):
        client.confirm(own, proof, later)
    with promised_error(
        AuthenticationError, "a client's own response, sent back to it, is refused as a proof of a bookie"
    ):
        client.confirm(own, own, later)


def _check_forgeries(client: Authenticator, bookie: Authenticator, peer: Peer) -> None:
    session = _new_session()
    challenge, response = _answered(client, bookie, session)
    _, proof = bookie.verify(peer, challenge, response, session)
    for said in _distorted(response):
        with promised_error(AuthenticationError, "a changed response is refused"):
            bookie.verify(peer, challenge, said, session)
    for said in _distorted(proof):
        with promised_error(AuthenticationError, "a changed proof of a bookie is refused"):
            client.confirm(response, said, session)


def _distorted(said: bytes) -> Iterator[bytes]:
    """Other bytes than these: empty, too short, too long, with one bit flipped in each place, and random."""
    others = [b"", said[:-1], said[1:], said + b"\0", b"\xff" * len(said), secrets.token_bytes(_SAID_BYTES_MAX)]
    # At most 256 places: each is a check of its own, and messages may be long.
    others += [said[:at] + bytes([said[at] ^ 1]) + said[at + 1 :] for at in range(min(len(said), 256))]
    return (other for other in others if other != said)
