"""The base classes of all errors, and the errors of wrong use: of configuration, verbs and event loops."""

from __future__ import annotations


class ReplogError(Exception):
    """The base class of all errors of replog. Never raised itself."""


class TransientError(ReplogError):
    """The base class of errors that may pass by waiting: bookies or the metastore are away, or other clients win. Never raised
    itself.

    Retry: wait, and *open again* the writer or reader that raised it; never append the same entries again, because some of
    them may be in the log. `FencedError` is not one: a deposed writer asks for its turn first. Outcome: as each class says."""


class ConfigError(ReplogError):
    """An argument is invalid or impossible: a quorum, an option, a URL. Retry: no, correct it. Outcome: not written."""


class CompressionUnavailableError(ConfigError):
    """Compressed entries were to be written or read where the package for that is not installed. Retry: after
    installing `replog[zstd]`. Outcome: not written; entries that cannot be read here are not lost."""


class PluginNotFoundError(ConfigError):
    """No loaded plugin serves the URL's scheme. Retry: after installing it. Outcome: not written."""


class PluginConflictError(ConfigError):
    """Two plugins claim one scheme, or a plugin is misspelt or broken. Retry: no, remove one. Outcome: not written."""


class PayloadTooLargeError(ConfigError, ValueError):
    """An entry is longer than a batch can hold. Retry: no, split it. Outcome: not written, nothing was sent."""


class PositionError(ConfigError, ValueError):
    """A position does not parse, or is not one of this log's. Retry: no. Outcome: nothing was read or trimmed."""


class WrongEventLoopError(ReplogError):
    """A verb was called under another event loop than its own: one of trio's under asyncio, one of `replog.aio` under
    trio, or in another loop than the one that its client was opened in. Retry: no, correct it. Outcome: not written,
    nothing was touched."""


class OwnThreadError(ReplogError):
    """A verb of `replog.blocking` was called in a thread of replog's own, by a finalizer or an observer, where
    it would wait for itself. Retry: in a thread of the program's. Outcome: not written."""


class NotPicklableError(ReplogError, TypeError):
    """A client, or one of its objects, was to be pickled: often a function that another process is to run has captured it. Retry:
    no, open a client in that process; in Spark, give the action `job.writer(...)`. Outcome: not written."""


class ClosedError(ReplogError):
    """A client, writer or reader of `replog.aio` or `replog.blocking` was used after it was left. Retry: no, open
    another one. Outcome: not written, or unknown for calls under way when it was left."""


class WouldBlockError(ReplogError):
    """A `..._nowait` of `replog.aio` or `replog.blocking` would have to wait: the byte budget is used up, or no batch is there
    yet. Retry: yes, or use the verb that waits. Outcome: not written, nothing was pushed."""


class EndOfLogError(ReplogError):
    """`receive` of a reader that does not follow, at the end of its log. Retry: no, open a reader after the last position.
    Outcome: nothing was read."""


class ForkedError(ReplogError):
    """A client of `replog.blocking` or `replog.aio`, or one of its objects, was used in a fork of its process, where neither its
    thread nor its event loop exists.

    Retry: no, open a client of its own in each process, after the fork: in gunicorn's `post_fork`, uWSGI's `postfork` or Celery's
    `worker_process_init`. Outcome: not written, nothing was touched."""
