"""The beginning of a connection: both ends agree on a version, and prove their identities.

    client                                         bookie
    Hello    versions, nonce, whom it wants   ->
                                              <-   Welcome  version, nonce, who it is, a challenge
    Prove    the answer to the challenge      ->
                                              <-   Ready    the proof of the bookie, its limits

At any place the bookie may say Refuse, with a reason. Nonces are fresh, and proofs cover both greetings and the
certificate of the TLS session: a recorded proof is worthless in another connection.
"""

from __future__ import annotations

import hashlib
import secrets

from replog.abc import Authenticator, Identity, Peer
from replog.errors import AuthenticationError, BookieRefusedError, RemoteProtocolError
from replog.protocol import wire
from replog.protocol.wire import Frame, FrameSplitter, Greeting, Hello, Prove, Ready, Refuse, Welcome
from replog.runtime.installed import replog_version
from replog.transports.tcp.refusals import RefusedPeerError, SilentPeerError, looks_like_tls, printable
from replog.transports.tcp.stream import Stream

NO_MECHANISM = "none"
_FEATURES = wire.FEATURE_AWAITED  # that this replog understands beside what the wire version has


class Greeter:
    """One end of a greeting, over a stream of which nothing was read yet. Frames that came behind the greeting stay in
    `early`. The caller sets the deadline."""

    def __init__(self, stream: Stream, splitter: FrameSplitter) -> None:
        self._stream = stream
        self._splitter = splitter
        self._transcript = hashlib.sha256(b"replog session v1")
        self.early: list[Frame] = []
        self.has_heard = False

    def _say(self, greeting: Greeting) -> None:
        frame = wire.encode_greeting(greeting)
        self._transcript.update(frame)
        self._stream.write([frame])

    async def _hear(self) -> Greeting | None:
        """The peer's next message; None if it ended the connection. Raises `RemoteProtocolError`, OSError."""
        while not self.early:
            data = await self._stream.receive()
            if not data:
                return None
            if not self.has_heard and looks_like_tls(data):
                raise RemoteProtocolError("it speaks TLS, and this side does not")
            self.has_heard = True
            self.early = self._splitter.feed(data)
        frame = self.early.pop(0)
        greeting = wire.decode_greeting(frame)
        # All of it, also what only a later version knows.
        if isinstance(greeting, Hello | Welcome):
            self._transcript.update(wire.seal(frame.kind, frame.flags, frame.request_id, frame.fields) + frame.body)
        return greeting

    def _session(self, binding: bytes) -> bytes:
        self._transcript.update(binding)
        return self._transcript.digest()


class ClientGreeter(Greeter):
    """The client's end."""

    async def greet(self, bookie_id: str, authenticator: Authenticator | None, binding: bytes) -> tuple[str, Ready]:
        """Returns the bookie's id, and what it said last. Raises `BookieRefusedError`, `RemoteProtocolError`, OSError."""
        mechanism = NO_MECHANISM if authenticator is None else authenticator.mechanism
        nonce = secrets.token_bytes(wire.NONCE_BYTES)
        versions = wire.WIRE_VERSION, wire.WIRE_VERSION
        self._say(Hello(*versions, _FEATURES, nonce, bookie_id, mechanism, software()))
        welcome = self._accepted(await self._hear(), bookie_id)
        if not isinstance(welcome, Welcome):
            raise RemoteProtocolError(f"it answered {type(welcome).__name__}, not Welcome")
        name = welcome.bookie_id or bookie_id
        if bookie_id and welcome.bookie_id not in ("", bookie_id):
            listening = printable(welcome.bookie_id)
            raise BookieRefusedError(bookie_id, f"bookie {listening} listens there: is the address right?")
        if welcome.version != wire.WIRE_VERSION:
            raise BookieRefusedError(name, f"it speaks wire version {welcome.version}, this replog {wire.WIRE_VERSION}")
        session = self._session(binding)
        try:
            response = b"" if authenticator is None else authenticator.respond(welcome.challenge, session)
            self._say(Prove(response))
            ready = self._accepted(await self._hear(), name)
            if not isinstance(ready, Ready):
                raise RemoteProtocolError(f"it answered {type(ready).__name__}, not Ready")
            if authenticator is not None:
                authenticator.confirm(response, ready.proof, session)
        except AuthenticationError as error:
            raise BookieRefusedError(name, str(error)) from error
        return name, ready

    def _accepted(self, greeting: Greeting | None, bookie_id: str) -> Greeting:
        if greeting is None:
            raise BookieRefusedError(bookie_id, "it ended the connection during the handshake; its log says why")
        if isinstance(greeting, Refuse):
            raise BookieRefusedError(bookie_id, printable(greeting.reason))
        return greeting


class BookieGreeter(Greeter):
    """The bookie's end."""

    async def greet(
        self, bookie_id: str, peer: Peer, authenticator: Authenticator | None, binding: bytes, limits: tuple[int, int]
    ) -> Identity | None:
        """Returns the client's identity, None if it does not matter.

        Raises `RefusedPeerError`, `SilentPeerError`, `RemoteProtocolError`, OSError."""
        hello = await self._begin()
        if not isinstance(hello, Hello):
            raise RemoteProtocolError("it did not begin with Hello")
        mechanism = NO_MECHANISM if authenticator is None else authenticator.mechanism
        self._check(hello, bookie_id, mechanism)
        challenge = b"" if authenticator is None else authenticator.challenge()
        nonce = secrets.token_bytes(wire.NONCE_BYTES)
        self._stream.features = features = hello.features & _FEATURES
        self._say(Welcome(wire.WIRE_VERSION, features, nonce, bookie_id, challenge, software()))
        session = self._session(binding)
        prove = await self._hear()
        if not isinstance(prove, Prove):
            raise RemoteProtocolError("the connection ended" if prove is None else "it did not go on with Prove")
        identity, proof = None, b""
        if authenticator is not None:
            try:
                identity, proof = authenticator.verify(peer, challenge, prove.response, session)
            except AuthenticationError as error:
                raise RefusedPeerError(str(error), error.detail) from error
            except Exception as error:
                # Somebody else's code, with what a stranger said: it must not end the bookie.
                problem = "this bookie could not judge what the client said"
                raise RefusedPeerError(problem, f"its authenticator broke its contract: {error!r}") from error
        self._say(Ready(proof, "" if identity is None else identity.name, *limits))
        return identity

    async def _begin(self) -> Greeting:
        # A load balancer's probe connects and leaves: that is not a failed handshake, and is not logged.
        try:
            hello = await self._hear()
        except ConnectionError as error:
            if self.has_heard:
                raise
            raise SilentPeerError from error
        if hello is None:
            if self.has_heard:
                raise RemoteProtocolError("it ended the connection within its first message")
            raise SilentPeerError
        return hello

    def _check(self, hello: Hello, bookie_id: str, mechanism: str) -> None:
        if not hello.lowest_version <= wire.WIRE_VERSION <= hello.highest_version:
            spoken = f"{hello.lowest_version} to {hello.highest_version}"
            raise RefusedPeerError(
                f"this bookie speaks wire version {wire.WIRE_VERSION}, the client {spoken}: upgrade one"
            )
        if hello.bookie_id and bookie_id and hello.bookie_id != bookie_id:
            raise RefusedPeerError(
                f"this is bookie {bookie_id}, not {printable(hello.bookie_id)}: is the address right?"
            )
        if hello.mechanism != mechanism:
            asked = f"this bookie asks for authentication by {mechanism!r}, the client offers {hello.mechanism!r}"
            raise RefusedPeerError(f"{asked}: correct the client's option `authentication`")


def software() -> str:
    """The name and version of this side, for the logs of the other one."""
    return f"replog {replog_version()}"
