"""The log of a process, on standard error: an object a line for programs, or lines for people.

Everything that goes through `logging` is written: the lines of the process, of replog (`replog.transports.tcp` and others) and of
other packages, and Python's warnings. Secrets are never logged; control characters in what a peer sent are replaced.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self, TextIO

import attrs

from replog.cli.serving.lines import LineHandler
from replog.cli.serving.settings import LoggingOptions
from replog.errors import StorageFullError
from replog.hookspecs import DamageFound, Event, StorageFailed, StorageInDoubt, hookimpl

_FIRST = ("time", "level", "event", "bookie")
_FIELDS = "replog_fields"  # the attribute of a record of ours that has its fields
_OF_ANY_RECORD = frozenset(logging.makeLogRecord({}).__dict__) | {"asctime", "message", "taskName"}


class Log:
    """The messages of the process: events with fields, which are written with `logging`."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("replog.bookie")

    def info(self, event: str, **fields: object) -> None:
        """Log what an operator may want to know later."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Log what an operator should look at."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Log a failure."""
        self._write(logging.ERROR, event, fields)

    def crashed(self, error: BaseException) -> None:
        """Log an unexpected exception, which ends the process."""
        self._logger.critical("crashed", exc_info=error, extra={_FIELDS: {}})

    def _write(self, level: int, event: str, fields: dict[str, object]) -> None:
        # Under one name: `logging` refuses fields that are called like its own, such as `name`.
        self._logger.log(level, event, extra={_FIELDS: fields})


class Logs:
    """The log of a process, as a context manager. Each line has the `bookie_id`, once that is known."""

    def __init__(self, options: LoggingOptions, stream: TextIO | None = None) -> None:
        self.bookie_id = ""
        self.log = Log()
        stream = stream or sys.stderr
        self.is_text = options.format == "text" or (options.format == "auto" and stream.isatty())
        self._level = logging.getLevelNamesMapping()[options.level.upper()]
        self._handler = LineHandler(stream.fileno())
        self._handler.setFormatter(_Text(self, stream.isatty()) if self.is_text else _JSON(self))

    def __enter__(self) -> Self:
        root = logging.getLogger()
        root.addHandler(self._handler)
        root.setLevel(self._level)
        logging.captureWarnings(True)
        # An unexpected exception ends the process: it belongs in the log, where an operator looks.
        sys.excepthook = self._crashed
        return self

    def __exit__(self, *_: object) -> None:
        logging.captureWarnings(False)
        logging.getLogger().removeHandler(self._handler)
        self._handler.close()

    def _crashed(self, _kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
        with self:
            self.log.crashed(error)


# -- lines --------------------------------------------------------------------------------------------------------


class _JSON(logging.Formatter):
    """Lines for programs."""

    def __init__(self, logs: Logs) -> None:
        super().__init__()
        self._logs = logs

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")
        fields = _fields_of(record, time, self._logs.bookie_id)
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


class _Text(logging.Formatter):
    """Lines for people."""

    def __init__(self, logs: Logs, is_colored: bool) -> None:
        super().__init__()
        # Imported here: it is half of what a bookie takes to import, and one that logs for programs starts without it.
        from structlog.dev import ConsoleRenderer

        self._logs = logs
        self._render: Callable[..., str] = ConsoleRenderer(colors=is_colored, timestamp_key="time", sort_keys=False)

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields_of(record, datetime.fromtimestamp(record.created).isoformat(), self._logs.bookie_id)
        if record.exc_info:
            fields["exc_info"] = record.exc_info
        return self._render(None, "", _printable(fields))


def _fields_of(record: logging.LogRecord, time: str, bookie_id: str) -> dict[str, Any]:
    """The fields of a line, the most useful ones first."""
    said = {"time": time, "level": record.levelname.lower(), "event": record.getMessage()}
    more: dict[str, Any] | None = getattr(record, _FIELDS, None)
    if more is None:
        more = {name: value for name, value in record.__dict__.items() if name not in _OF_ANY_RECORD}
        more.setdefault("logger", record.name)
    if record.stack_info:
        said["stack_info"] = record.stack_info
    fields = {**more, **said}
    if bookie_id:
        fields.setdefault("bookie", bookie_id)
    return {**{name: fields[name] for name in _FIRST if name in fields}, **fields}


def _printable(fields: dict[str, Any]) -> dict[str, Any]:
    """The text without control characters: a terminal obeys them, and some of the text comes from strangers."""
    for name, value in fields.items():
        if isinstance(value, str) and not value.isprintable():
            fields[name] = "".join(each if each.isprintable() else repr(each)[1:-1] for each in value)
    return fields


class Observer:
    """A plugin that logs what happens to bookies. `failure` is the last problem of a storage."""

    def __init__(self, log: Log) -> None:
        self.failure: StorageFailed | None = None
        self._log = log

    @hookimpl
    def replog_observe(self, event: Event) -> None:
        """Log the event."""
        if isinstance(event, StorageFailed):
            if isinstance(event.error, StorageFullError):
                self._log.warning("no new entries are taken: the disk is full", problem=str(event.error))
                return
            self.failure = event
            self._log.error("the storage failed", problem=str(event.error))
        elif isinstance(event, DamageFound):
            self._log.error("damage found", **attrs.asdict(event, filter=attrs.filters.exclude("bookie_id")))
        elif not isinstance(event, StorageInDoubt):  # the bookie itself warns of that
            self._log.info(type(event).__name__, **attrs.asdict(event))
