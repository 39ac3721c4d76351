"""ZooKeeper's requests and answers, as far as a log needs them: big-endian, each one behind its length (zookeeper.jute)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from benchmarks.peers.system import NotMeasured

NODE_EXISTS, NO_NODE = -110, -101
PERSISTENT, SEQUENTIAL = 0, 2  # kinds of nodes

_CREATE, _DELETE, _GET_DATA, _GET_CHILDREN, _MULTI, _ADD_WATCH = 1, 2, 4, 8, 14, 106
_EVENT_XID, _NODE_CREATED, _PERSISTENT_RECURSIVE = -1, 1, 1
_XID = 1  # of all requests: they are answered in their order, and nobody else looks at it
_EVERYBODY_MAY = struct.pack(">ii", 1, 31)  # one rule: all permissions
_ANSWER = struct.Struct(">iiqi")  # length, xid, zxid, error
_HEADER_BYTES = _ANSWER.size - 4
_INT, _INT_INT = struct.Struct(">i"), struct.Struct(">ii")
_PART_OF_MULTI = struct.Struct(">i?i")  # kind, whether it is the end, error


def buffer(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _request(kind: int, body: bytes) -> bytes:
    return buffer(_INT_INT.pack(_XID, kind) + body)


def connect(session_timeout_ms: int) -> bytes:
    """The first request on a connection: a session of its own."""
    return buffer(struct.pack(">iqiq", 0, 0, session_timeout_ms, 0) + buffer(bytes(16)) + b"\0")


def create(path: bytes, data: bytes, kind: int = PERSISTENT) -> bytes:
    rights = _EVERYBODY_MAY + buffer(b"world") + buffer(b"anyone")
    return _request(_CREATE, buffer(path) + buffer(data) + rights + _INT.pack(kind))


def get_data(path: bytes) -> bytes:
    return _request(_GET_DATA, buffer(path) + b"\0")


def get_children(path: bytes) -> bytes:
    return _request(_GET_CHILDREN, buffer(path) + b"\0")


def add_watch(path: bytes) -> bytes:
    """Of the node and all below it, until the session ends."""
    return _request(_ADD_WATCH, buffer(path) + _INT.pack(_PERSISTENT_RECURSIVE))


def delete(paths: Iterable[bytes]) -> bytes:
    """All of them or none."""
    each = (_PART_OF_MULTI.pack(_DELETE, False, -1) + buffer(path) + _INT.pack(-1) for path in paths)
    return _request(_MULTI, b"".join(each) + _PART_OF_MULTI.pack(-1, True, -1))


class Answers:
    """Cuts what is received into answers, in their order; events are apart."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.created: list[bytes] = []  # paths, of a watch
        self._rest = b""

    def receive(self, data: bytes) -> None:
        """Raises `NotMeasured` for a refusal."""
        data = self._rest + data if self._rest else data
        position, end = 0, len(data)
        while end - position >= _ANSWER.size:
            length, xid, _, error = _ANSWER.unpack_from(data, position)
            start, behind = position + _ANSWER.size, position + 4 + length
            if behind > end:
                break
            position = behind
            if error:
                raise Refused(error)
            if xid == _EVENT_XID:
                self._event(data[start:behind])
            else:
                self.bodies.append(data[start:behind])
        self._rest = data[position:]

    def _event(self, body: bytes) -> None:
        if _INT.unpack_from(body)[0] == _NODE_CREATED:
            self.created.append(text_at(body, 8))


class Refused(NotMeasured):
    """`error` is ZooKeeper's number of it, as its KeeperException.Code lists them."""

    def __init__(self, error: int) -> None:
        super().__init__(f"ZooKeeper refused a request: {error}")
        self.error = error


class Creates:
    """A `Conversation`: each entry is a sequential node below the same parent, so that all requests are the same."""

    def __init__(self, parent: bytes, entry: bytes) -> None:
        self._request = create(parent + b"/", entry, SEQUENTIAL)
        self._rest = b""

    def requests(self, count: int) -> bytes:
        return self._request * count

    def receive(self, data: bytes) -> tuple[int, bytes]:
        data = self._rest + data if self._rest else data
        position, count, last = 0, 0, len(data) - _ANSWER.size
        while position <= last:
            length, _, _, error = _ANSWER.unpack_from(data, position)
            if position + 4 + length > len(data):
                break
            if error:
                raise Refused(error)
            position += 4 + length
            count += 1
        self._rest = data[position:]
        return count, b""


def text_at(body: bytes, position: int) -> bytes:
    """What stands there behind its length."""
    length = _INT.unpack_from(body, position)[0]
    return body[position + 4 : position + 4 + max(0, length)]


def texts(body: bytes) -> Sequence[bytes]:
    """The answer to `get_children`: names, in no order."""
    found, position = [], 4
    for _ in range(_INT.unpack_from(body)[0]):
        found.append(text_at(body, position))
        position += 4 + len(found[-1])
    return found
