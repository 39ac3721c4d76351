"""A proxy before a store that answers as bad days do: errors instead of an answer, or after the store has done what was asked."""

from __future__ import annotations

import contextlib
import enum
import http.client
import http.server
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from s3_server import ACCESS_KEY, SECRET_KEY, SESSION_TOKEN

_LINGER_NOT = struct.pack("ii", 1, 0)  # with this option, closing a socket sends a reset
_SILENCE_S = 30.0
_ERROR = (
    "<?xml version='1.0'?><Error><Code>{code}</Code><Message>refused</Message>"
    f"<AWSAccessKeyId>{ACCESS_KEY}</AWSAccessKeyId><StringToSign>{SECRET_KEY} {SESSION_TOKEN}</StringToSign></Error>"
)


class Fault(enum.Enum):
    """What becomes of a request. Those that end in `AFTER` are done by the store, and its answer is lost."""

    NONE = enum.auto()
    INTERNAL_ERROR = enum.auto()
    INTERNAL_ERROR_AFTER = enum.auto()
    SLOW_DOWN = enum.auto()
    RESET = enum.auto()
    RESET_AFTER = enum.auto()
    SILENCE = enum.auto()
    SILENCE_AFTER = enum.auto()
    TRUNCATED_AFTER = enum.auto()  # the end of the connection in the middle of the body
    SHORTENED_AFTER = enum.auto()  # a shorter body, with a length that fits it
    CONFLICT = enum.auto()
    EXPIRED = enum.auto()
    DENIED = enum.auto()
    MISDIRECTED = enum.auto()  # a 404 that says nothing of an object


PASSING = [each for each in Fault if each not in (Fault.NONE, Fault.EXPIRED, Fault.DENIED, Fault.MISDIRECTED)]
_ANSWERS = {
    Fault.INTERNAL_ERROR: (500, "InternalError"),
    Fault.INTERNAL_ERROR_AFTER: (500, "InternalError"),
    Fault.SLOW_DOWN: (503, "SlowDown"),
    Fault.CONFLICT: (409, "ConditionalRequestConflict"),
    Fault.EXPIRED: (400, "ExpiredToken"),
    Fault.DENIED: (403, "AccessDenied"),
    Fault.MISDIRECTED: (404, "NoSuchWebsiteConfiguration"),
}

Plan = Callable[[str, str], Fault]


class BadProxy:
    """`plan` decides for each request, by its method and path. `counts` has the requests by method; lists are "LIST"."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.plan: Plan = lambda method, path: Fault.NONE
        self.counts: Counter[str] = Counter()
        self.faults: Counter[Fault] = Counter()
        self.ignores_conditions_of: Sequence[str] = ()  # methods
        self.over = threading.Event()
        self._lock = threading.Lock()

    def decide(self, method: str, path: str) -> Fault:
        with self._lock:
            self.counts["LIST" if "list-type" in path else method] += 1
            fault = self.plan(method, path)
            self.faults[fault] += 1
            return fault

    def next_one(self, fault: Fault, method: str, times: int = 1) -> None:
        """The next requests with this method have this fault."""
        left = times

        def plan(asked: str, path: str) -> Fault:
            nonlocal left
            if asked == method and left:
                left -= 1
                return fault
            return Fault.NONE

        self.plan = plan

    def at_random(self, seed: int, share: float, faults: Sequence[Fault] = PASSING) -> None:
        """So many of all requests have one of these faults."""
        entropy = random.Random(seed)
        self.plan = lambda method, path: entropy.choice(faults) if entropy.random() < share else Fault.NONE


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: BadProxy

    def serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.proxy.decide(self.command, self.path)
        if fault is Fault.NONE or fault.name.endswith("AFTER"):
            try:
                self.spoil(fault, *self.forwarded(body))
            except (OSError, http.client.HTTPException):
                self.reset()
        else:
            self.spoil(fault, 0, [], b"")

    def forwarded(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        with contextlib.closing(http.client.HTTPConnection(self.proxy.target, timeout=_SILENCE_S)) as connection:
            headers = dict(self.headers)
            if self.command in self.proxy.ignores_conditions_of:
                headers = {
                    name: value for name, value in headers.items() if name.lower() not in ("if-match", "if-none-match")
                }
            connection.request(self.command, self.path, body, headers)
            got = connection.getresponse()
            return got.status, got.getheaders(), got.read()

    def spoil(self, fault: Fault, status: int, headers: list[tuple[str, str]], answer: bytes) -> None:
        if fault in (Fault.RESET, Fault.RESET_AFTER):
            self.reset()
        elif fault in (Fault.SILENCE, Fault.SILENCE_AFTER):
            self.proxy.over.wait(_SILENCE_S)
            self.reset()
        elif fault in _ANSWERS:
            status, code = _ANSWERS[fault]
            self.answer(status, [], _ERROR.format(code=code).encode())
        elif fault is Fault.TRUNCATED_AFTER:
            self.answer(status, headers, answer, sent=len(answer) // 2)
            self.reset()
        elif fault is Fault.SHORTENED_AFTER:
            self.answer(status, headers, answer[: len(answer) * 2 // 3])
        else:
            self.answer(status, headers, answer)

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes, sent: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        is_head = self.command == "HEAD"
        length = dict(headers).get("Content-Length", "0") if is_head else str(len(body))
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(b"" if is_head else body[:sent])

    def reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)

    do_GET = do_PUT = do_DELETE = do_HEAD = do_POST = serve

    def log_message(self, *arguments: object) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that left: it has its own deadline

    def shutdown_request(self, request: object) -> None:
        self.close_request(request)  # type: ignore[arg-type] # without a farewell, so that a reset stays one


@contextlib.contextmanager
def bad_proxy(target: str) -> Iterator[tuple[BadProxy, str]]:
    """The proxy, and its address."""
    proxy = BadProxy(target)
    with _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": proxy})) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield proxy, f"127.0.0.1:{server.server_address[1]}"
        finally:
            proxy.over.set()
            server.shutdown()
            thread.join()
