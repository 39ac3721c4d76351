"""Why a topic, or a part of it, could not be read."""

from __future__ import annotations

from replog.errors import LedgerError, ReplogError


class TopicNotFoundError(ReplogError):
    """Neither a managed ledger's record nor any ledger names this topic. Retry: with the right name or metadata."""


class TopicDamagedError(ReplogError):
    """The record of a topic or of a subscription is not one that Pulsar writes, or has another version. Retry: no."""


class MessageDamagedError(ReplogError):
    """An entry, or a message in it, has bytes that no client of Pulsar writes, or its checksum differs. Retry: no, since
    BookKeeper takes all its copies for good."""


class MessageTooLargeError(ReplogError):
    """A message is larger than the reader may hold in memory. Retry: with a larger `message_bytes_max`."""


class ChunksMissingError(ReplogError):
    """A message was sent in several entries, and some of them are not in the topic. Retry: no."""


class LedgerOffloadedError(LedgerError):
    """Pulsar moved this ledger to an object store, and deleted it in BookKeeper. Retry: no; the message names the store."""


class LedgerOpenError(LedgerError):
    """This ledger is open, and what it has last may not be known to be confirmed. Retry: when its broker goes on, or after
    `recover_ledger`, which fences that broker."""
