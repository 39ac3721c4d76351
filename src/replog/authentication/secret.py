"""Authentication by a shared secret, which never passes over the wire: `secret:/etc/replog/secrets.toml?name=app`.

A bookie and a client each prove to the other that they know the secret of a name:

    client to bookie   name, HMAC(secret, "client" + session + name)
    bookie to client         HMAC(secret, "bookie" + session + name + the client's proof)

`session` is a digest of both sides' fresh nonces and of the TLS certificate, so a recorded proof is worth nothing in another
connection, and neither is one that a man in the middle passes on. The two purposes differ, so no proof can be sent back.
Without TLS a listener can try guesses offline: so secrets are random and long, and short ones are refused.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping, Sequence

import attrs

from replog.abc import Authenticator, Identity, Peer, Role
from replog.authentication.secret_file import NAME, NamedSecret, read_secrets
from replog.errors import AuthenticationError, ConfigError
from replog.hookspecs import Backend, hookimpl

_CLIENT = b"replog secret client v1"
_BOOKIE = b"replog secret bookie v1"
_PROOF_BYTES = 32
_SECRETS_MAX = 2  # of a name: its own, and the previous one
_NAME = re.compile(NAME)


@attrs.frozen
class SecretOptions:
    """`name`: the client's name, among those in the file; none: the only one in it. A bookie knows all of them."""

    name: str | None = None


class SecretAuthenticator(Authenticator):
    """Knows the secrets of some names, and is one of them if it is a client's."""

    __slots__ = ("_known", "_name", "_nobody", "_place")

    def __init__(self, known: Mapping[str, NamedSecret], name: str | None, place: str) -> None:
        self._known = dict(known)
        self._name = name
        self._place = place
        self._nobody = [secrets.token_bytes(_PROOF_BYTES) for _ in range(_SECRETS_MAX)]  # of unknown names

    @property
    def mechanism(self) -> str:
        return "secret"

    def respond(self, challenge: bytes, session: bytes) -> bytes:
        if self._name is None:
            listed = ", ".join(sorted(self._known))
            raise AuthenticationError(
                f"{self._place} has several names, {listed}: say which one this client is, as in secret:PATH?name=app"
            )
        name = self._name.encode()
        # Always the new secret: a bookie takes the previous one, too, so bookies get a new file first, then clients.
        return _proof(self._known[self._name].secrets[0], _CLIENT, session, name) + name

    def verify(self, peer: Peer, challenge: bytes, response: bytes, session: bytes) -> tuple[Identity, bytes]:
        proof, name = response[:_PROOF_BYTES], response[_PROOF_BYTES:].decode("ascii", "replace")
        if not _NAME.fullmatch(name):
            raise AuthenticationError("no name and proof, as authentication by secret has them")
        known = self._known.get(name)
        candidates = () if known is None else known.secrets
        matching = b""
        for place, secret in enumerate(
            (*candidates, *self._nobody)[:_SECRETS_MAX]
        ):  # known and unknown names cost the same
            is_right = hmac.compare_digest(proof, _proof(secret, _CLIENT, session, name.encode()))
            if is_right and place < len(candidates):
                matching = secret
        if known is None or not matching:
            why = f"there is no such name in {self._place}" if known is None else f"{self._place} has another secret"
            problem = f"{name!r} is unknown to this bookie, or has another secret here"
            raise AuthenticationError(problem, detail=why)
        # A member shows its peers the name that it has itself.
        roles = known.roles | {Role.MEMBER} if name == self._name else known.roles
        return Identity(name, roles), _proof(matching, _BOOKIE, session, name.encode(), proof)

    def confirm(self, response: bytes, proof: bytes, session: bytes) -> None:
        assert self._name is not None  # else there was no response
        secret = self._known[self._name].secrets[0]
        expected = _proof(secret, _BOOKIE, session, self._name.encode(), response[:_PROOF_BYTES])
        if not hmac.compare_digest(proof, expected):
            raise AuthenticationError(f"it does not know the secret of {self._name!r}: it is not one of our bookies")


def _proof(secret: bytes, purpose: bytes, *covered: bytes) -> bytes:
    mac = hmac.new(secret, purpose, "sha256")
    for each in covered:
        mac.update(len(each).to_bytes(4, "little") + each)  # with lengths: no two lists read the same
    return mac.digest()


@hookimpl
def replog_authenticators() -> Sequence[Backend[Authenticator]]:
    """Offers "secret"."""
    return [Backend("secret", _open, SecretOptions, summary="a shared secret, in a file: secret:PATH?name=NAME")]


def _open(rest: str, options: SecretOptions) -> Authenticator:
    if not rest:
        raise ConfigError("secret: names no file; it looks like secret:/etc/replog/secrets.toml?name=app")
    known = read_secrets(rest)
    name = options.name
    if name is None and len(known) == 1:
        (name,) = known
    if name is not None and name not in known:
        raise ConfigError(f"{rest} has no name {name!r}; it has: {', '.join(sorted(known))}")
    return SecretAuthenticator(known, name, rest)
