"""How a call to etcd can fail, beside what `replog.errors` has: all are `MetastoreError`s, and nothing was written."""

from __future__ import annotations

from replog.errors import MetastoreError, MetastoreUnavailableError


class EtcdUnreachableError(MetastoreUnavailableError):
    """No server could be asked, or none could say: the cluster has no leader, is overloaded, or is not there.

    Retry: yes. Outcome: not written; where that is not sure, `MetastoreUncertainError` is raised instead."""


class EtcdRefusedError(MetastoreError):
    """etcd understood, and refuses: no space, no permission, a wrong password, an unknown request. Has `code`, gRPC's.

    Retry: after mending what the message says. Outcome: not written."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class EtcdAnswerTooLargeError(MetastoreError):
    """The answer to a read is larger than `response_bytes_max`. Retry: with a larger limit. Outcome: not written."""
