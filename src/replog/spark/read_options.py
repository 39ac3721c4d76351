"""The options of reading: those of the format, and which part of the log is wanted."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Self

import attrs

from replog.config import FaultsError, at_least, option
from replog.errors import ConfigError, PositionError
from replog.protocol.model import Position
from replog.spark.options import AUTO, VALUES, SparkOptions

LATEST = "latest"
FAIL, SKIP = "fail", "skip"
_PARTITION_BYTES_MIN = 1 << 10
_COUNT_MAX = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@attrs.frozen
class Bound:
    """Where reading begins or ends: at a position, at a time (ns since the epoch), or at the end of the log at that moment."""

    position: Position | None = None
    time_ns: int | None = None
    is_latest: bool = False

    @classmethod
    def parse(cls, text: str) -> Bound:
        """Reads "17:42", "2026-11-20T12:00:00Z" or "latest". Raises `ConfigError`."""
        if text.strip().lower() == LATEST:
            return cls(is_latest=True)
        try:
            return cls(position=Position.parse(text))
        except PositionError:
            pass
        try:
            time = datetime.fromisoformat(text.strip())
        except ValueError:
            raise ConfigError(f"{text!r} is neither a position (17:42) nor a time (2026-11-20T12:00:00Z)") from None
        # A time without a zone would mean another moment on each machine of the cluster.
        if time.tzinfo is None:
            raise ConfigError(f"{text!r} has no time zone: write it as 2026-11-20T12:00:00Z or ...+01:00")
        return cls(time_ns=time_ns_of(time))


def time_ns_of(time: datetime) -> int:
    """An aware time in ns since the epoch, exactly."""
    since = time - _EPOCH
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000


def _check_bound(value: Any) -> str | None:
    try:
        Bound.parse(value)
    except ConfigError as error:
        return str(error)
    return None


def _check_values(value: Any) -> str | None:
    return None if value in (AUTO, *VALUES) else f"{value!r} is none of {', '.join((AUTO, *VALUES))}"


def _check_on_trimmed(value: Any) -> str | None:
    return None if value in (FAIL, SKIP) else f"{value!r} is neither {FAIL} nor {SKIP}"


def _optional_count(value: Any) -> str | None:
    return None if value is None else at_least(1, _COUNT_MAX)(value)


@attrs.frozen(kw_only=True)
class ReadOptions(SparkOptions):
    """The options of `spark.read` and `readStream`."""

    values: str = option(
        AUTO, "How entries become rows: as the log's metadata says (auto), or binary, arrow or json.", _check_values
    )
    from_: str | None = option(
        None,
        "Where reading begins: a position or a time; `latest` in streams. Left out, where the log begins.",
        lambda value: None if value is None else _check_bound(value),
    )
    to: str | None = option(
        None,
        "What is read lies before this position or time. Left out, all that is confirmed. Not in streams.",
        lambda value: None if value is None else _check_bound(value),
    )
    partition_bytes: int = option(
        128 << 20, "Longer ledgers are read by several tasks.", at_least(_PARTITION_BYTES_MIN, _COUNT_MAX)
    )
    max_rows_per_trigger: int | None = option(None, "How many rows a micro-batch has at most.", _optional_count)
    max_bytes_per_trigger: int | None = option(
        None, "How many bytes a micro-batch has at most: values, without what Spark adds.", _optional_count
    )
    on_trimmed: str = option(
        FAIL,
        "If what is to be read was trimmed away: fail, or skip it, go on at the first record there is, and say what was lost.",
        _check_on_trimmed,
    )
    push_filters: bool = option(
        False, "Filters narrow what is read. Needs spark.sql.python.filterPushdown.enabled=true in the session."
    )

    def contradictions(self) -> list[str]:
        """What cannot be true together."""
        found = super().contradictions()
        if self.max_rows_per_trigger is not None and self.max_bytes_per_trigger is not None:
            found.append("max_rows_per_trigger and max_bytes_per_trigger are two limits, and Spark keeps one: give one")
        begin, end = self.begin, self.end
        if end.is_latest:
            found.append("to=latest: leave it out, to read all that is confirmed")
        for low, high in ((begin.position, end.position), (begin.time_ns, end.time_ns)):
            if low is not None and high is not None and low > high:  # type: ignore[operator] # both are of one kind
                found.append(f"from {self.from_} lies after to {self.to}")
        return found

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """From what Spark hands over. Raises `ConfigError` with all faults."""
        try:
            return super().parse(options)
        except FaultsError as error:  # `from` can't be a name in Python
            raise FaultsError(
                "the options of format replog", [each.replace("from_", "from") for each in error.faults]
            ) from error

    @property
    def skips_trimmed(self) -> bool:
        """True if what was trimmed away is left out."""
        return self.on_trimmed == SKIP

    @property
    def begin(self) -> Bound:
        """Where reading begins."""
        return Bound() if self.from_ is None else Bound.parse(self.from_)

    @property
    def end(self) -> Bound:
        """Reading ends before it."""
        return Bound() if self.to is None else Bound.parse(self.to)

    def check_batch(self) -> None:
        """Raises `ConfigError` for options that only a stream has."""
        if self.begin.is_latest:
            raise ConfigError("from=latest is for readStream: spark.read would find nothing")
        self._refuse("is for readStream: leave it out", "max_rows_per_trigger", "max_bytes_per_trigger")

    def check_stream(self) -> None:
        """Raises `ConfigError` for options that a stream does not have."""
        self._refuse("is for spark.read: a stream ends with its query (trigger(availableNow=True))", "to")
        self._refuse("is for spark.read: Spark pushes no filters into a stream", "push_filters")

    def _refuse(self, why: str, *names: str) -> None:
        for name in names:
            if getattr(self, name):
                raise ConfigError(f"option {name} {why}")
