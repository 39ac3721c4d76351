"""What a process says on standard error: an object a line for programs, or lines for people.

All that goes through `logging` comes out: the process's own words, replog's (`replog.transports.tcp` and others), those of other
packages, and Python's warnings. Nothing here is told a secret; what a peer said is shown without its control characters.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import attrs
import structlog
from structlog.stdlib import BoundLogger, ProcessorFormatter

from replog.cli.serving.settings import LoggingOptions
from replog.errors import StorageFullError
from replog.hookspecs import DamageFound, Event, StorageFailed, hookimpl

_FIRST = ("time", "level", "event", "bookie")


class Logs:
    """The log of a process. Once `bookie_id` is known it stands in every line."""

    def __init__(self, options: LoggingOptions, stream: TextIO | None = None) -> None:
        self.bookie_id = ""
        stream = stream or sys.stderr
        self.is_text = is_text = options.format == "text" or (options.format == "auto" and stream.isatty())
        level = logging.getLevelNamesMapping()[options.level.upper()]
        each: list[Any] = [
            structlog.stdlib.add_log_level,
            structlog.stdlib.ExtraAdder(),
            structlog.processors.TimeStamper(fmt="iso", utc=not is_text, key="time"),
            self._complete,
        ]
        last: list[Any] = [ProcessorFormatter.remove_processors_meta]
        if is_text:
            last += [
                _printable,
                structlog.dev.ConsoleRenderer(colors=stream.isatty(), timestamp_key="time", sort_keys=False),
            ]
        else:
            last += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
        handler = logging.StreamHandler(stream)
        handler.setFormatter(ProcessorFormatter(foreign_pre_chain=each, processors=last))
        root = logging.getLogger()
        root.handlers[:] = [handler]
        root.setLevel(level)
        logging.captureWarnings(True)
        structlog.configure(
            processors=[structlog.stdlib.filter_by_level, *each, ProcessorFormatter.wrap_for_formatter],
            logger_factory=structlog.stdlib.LoggerFactory(),
            wrapper_class=BoundLogger,
            cache_logger_on_first_use=False,
        )
        self.log: BoundLogger = structlog.stdlib.get_logger("replog.bookie")

    def _complete(self, _logger: Any, _method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        record = fields.get("_record")
        if record is not None and "logger" not in fields:
            fields["logger"] = record.name
        if self.bookie_id:
            fields.setdefault("bookie", self.bookie_id)
        return {**{name: fields[name] for name in _FIRST if name in fields}, **fields}


def _printable(_logger: Any, _method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A terminal does what it is told, and some of this comes from strangers."""
    for name, value in fields.items():
        if isinstance(value, str) and not value.isprintable():
            fields[name] = "".join(each if each.isprintable() else repr(each)[1:-1] for each in value)
    return fields


class Observer:
    """A plugin that logs what happens to bookies. `failure` is the last word of a storage."""

    def __init__(self, log: BoundLogger) -> None:
        self.failure: StorageFailed | None = None
        self._log = log

    @hookimpl
    def replog_observe(self, event: Event) -> None:
        """Logs it."""
        if isinstance(event, StorageFailed):
            if isinstance(event.error, StorageFullError):
                self._log.warning("no new entries are taken: the disk is full", problem=str(event.error))
                return
            self.failure = event
            self._log.error("the storage failed", problem=str(event.error))
        elif isinstance(event, DamageFound):
            self._log.error("damage found", **attrs.asdict(event, filter=attrs.filters.exclude("bookie_id")))
        else:
            self._log.info(type(event).__name__, **attrs.asdict(event))
