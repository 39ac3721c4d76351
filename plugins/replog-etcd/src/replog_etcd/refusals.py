"""Refusals of etcd, and their meaning for the outcome (M1).

A refusal is *definite* if etcd says it before it does anything; then another try is not a second change. A refusal for
lack of a leader or of time may come after the change was proposed to the others, and the change can still happen.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

_UNKNOWN, _EXHAUSTED, _UNAUTHENTICATED = 2, 8, 16
NOT_FOUND = 5  # of a lease
# Wrong arguments, not found, exists, no permission, no space, not in this state, out of range, not there, not signed in.
_DEFINITE = {3, NOT_FOUND, 6, 7, _EXHAUSTED, 9, 11, 12, _UNAUTHENTICATED}
_SHOWN_BYTES = 300

_REMEDIES = {
    "database space exceeded": "etcd is full and takes no changes: compact and defragment it or raise --quota-backend-bytes, "
    "then: etcdctl alarm disarm",
    "user name is empty": "etcd asks who one is: give the options user and password_file",
    "authentication is not enabled": "etcd asks nobody who one is: leave out the options user and password_file",
    "permission denied": "grant the user's role readwrite on the prefix",
    "request is too large": "raise --max-request-bytes to its default of 1.5 MiB at least",
    "Not Found": "is that etcd 3.4 or newer, with --enable-grpc-gateway?",
}


class Refusal(Exception):
    """etcd's own words. Never leaves this package.

    `is_definite`: nothing was done. `may_pass`: another server, or the same one later, may do better. `is_about_token`: signing
    in again may help."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(next((f"{words} ({remedy})" for part, remedy in _REMEDIES.items() if part in words), words))
        self.code = code
        self.is_definite = code in _DEFINITE or code < 0
        self.may_pass = not self.is_definite or (code == _EXHAUSTED and "too many requests" in words)
        self.is_about_token = code == _UNAUTHENTICATED or "revision of auth store is old" in words


def read_refusal(status: int, body: bytes) -> Refusal:
    """Of an answer that has not the status 200. One that is not etcd's has a code below 0 if it is definite."""
    try:
        answer = json.loads(body)
        return refusal_in(answer)
    except (ValueError, TypeError, KeyError):
        # Not etcd's: it comes from a proxy, or from another program.
        words = f"HTTP {status} {body[:_SHOWN_BYTES].decode(errors='replace').strip()}"
        is_doubtful = status >= HTTPStatus.INTERNAL_SERVER_ERROR or status < HTTPStatus.BAD_REQUEST
        return Refusal(_UNKNOWN if is_doubtful else -status, words)


def refusal_in(error: Any) -> Refusal:
    """Of etcd's JSON for an error: that of a call, or in a stream. Raises KeyError, TypeError, ValueError."""
    code = error["code"] if "code" in error else error["grpc_code"]
    words = error["message"] if "message" in error else error["error"]
    return Refusal(int(str(code)), str(words))
