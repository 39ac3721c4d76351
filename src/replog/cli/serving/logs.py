"""The log of a process, on standard error: an object a line for programs, or lines for people.

Everything that goes through `logging` is written: the lines of the process, of replog (`replog.transports.tcp` and others) and of
other packages, and Python's warnings. Secrets are never logged; control characters in what a peer sent are replaced.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from types import TracebackType
from typing import Any, Self, TextIO

import attrs
import structlog
from structlog.stdlib import BoundLogger, ProcessorFormatter

from replog.cli.serving.lines import LineHandler
from replog.cli.serving.settings import LoggingOptions
from replog.errors import StorageFullError
from replog.hookspecs import DamageFound, Event, StorageFailed, StorageInDoubt, hookimpl

_FIRST = ("time", "level", "event", "bookie")


class Logs:
    """The log of a process, as a context manager. Each line has the `bookie_id`, once that is known."""

    def __init__(self, options: LoggingOptions, stream: TextIO | None = None) -> None:
        self.bookie_id = ""
        stream = stream or sys.stderr
        self.is_text = options.format == "text" or (options.format == "auto" and stream.isatty())
        self._level = logging.getLevelNamesMapping()[options.level.upper()]
        each: list[Any] = [
            structlog.stdlib.add_log_level,
            structlog.stdlib.ExtraAdder(),
            structlog.processors.TimeStamper(fmt="iso", utc=not self.is_text, key="time"),
            self._complete,
        ]
        last: list[Any] = [ProcessorFormatter.remove_processors_meta]
        if self.is_text:
            is_colored = stream.isatty()
            last += [_printable]
            last += [structlog.dev.ConsoleRenderer(colors=is_colored, timestamp_key="time", sort_keys=False)]
        else:
            last += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
        self._handler = LineHandler(stream.fileno())
        self._handler.setFormatter(ProcessorFormatter(foreign_pre_chain=each, processors=last))
        self.log: BoundLogger = structlog.wrap_logger(
            logging.getLogger("replog.bookie"),
            processors=[structlog.stdlib.filter_by_level, *each, ProcessorFormatter.wrap_for_formatter],
            wrapper_class=BoundLogger,
        )

    def __enter__(self) -> Self:
        root = logging.getLogger()
        root.addHandler(self._handler)
        root.setLevel(self._level)
        logging.captureWarnings(True)
        # An exception that nobody expected ends the process: it belongs in the log, where an operator looks.
        sys.excepthook = self._crashed
        return self

    def __exit__(self, *_: object) -> None:
        logging.captureWarnings(False)
        logging.getLogger().removeHandler(self._handler)
        self._handler.close()

    def _crashed(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Log an unexpected exception, which ends the process."""
        with self:
            self.log.critical("crashed", exc_info=(kind, error, trace))

    def _complete(self, _logger: Any, _method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        record = fields.get("_record")
        if record is not None and "logger" not in fields:
            fields["logger"] = record.name
        if self.bookie_id:
            fields.setdefault("bookie", self.bookie_id)
        # First what people look for in each line: dictionaries keep this order through to JSON.
        return {**{name: fields[name] for name in _FIRST if name in fields}, **fields}


def _printable(_logger: Any, _method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The text without control characters: a terminal obeys them, and some of the text comes from strangers."""
    for name, value in fields.items():
        if isinstance(value, str) and not value.isprintable():
            fields[name] = "".join(each if each.isprintable() else repr(each)[1:-1] for each in value)
    return fields


class Observer:
    """A plugin that logs what happens to bookies. `failure` is the last problem of a storage."""

    def __init__(self, log: BoundLogger) -> None:
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
