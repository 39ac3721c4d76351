"""The options of reading: those of the format, and which part of the log is wanted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Self

import attrs

from replog.config import FaultsError, at_least, option, positive
from replog.errors import ConfigError, PositionError
from replog.protocol.model import Position
from replog.spark.options import AUTO, VALUES, SparkOptions, check_log
from replog.spark.selection import Selection

LATEST = "latest"
FAIL, SKIP = "fail", "skip"
_PARTITION_BYTES_MIN = 1 << 10
_COUNT_MAX = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@attrs.frozen
class Bound:
    """Where reading begins or ends: at a position, at a time (ns since the epoch), or at the end of the log at that moment.

    `positions` has that of each log, for queries of many."""

    position: Position | None = None
    time_ns: int | None = None
    is_latest: bool = False
    positions: Mapping[str, Position] | None = None

    def of(self, log: str) -> Bound:
        """The same for one log. One that `positions` does not name has no bound."""
        return self if self.positions is None else Bound(position=self.positions.get(log))

    @classmethod
    def parse(cls, text: str) -> Bound:
        """Reads "17:42", "2026-11-20T12:00:00Z", "latest", or a JSON object of positions by log. Raises `ConfigError`."""
        if text.strip().lower() == LATEST:
            return cls(is_latest=True)
        if text.lstrip().startswith("{"):
            return cls(positions=_parse_positions(text))
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


def _parse_positions(text: str) -> dict[str, Position]:
    try:
        found = json.loads(text)
        return {name: Position.parse(value) for name, value in found.items()}
    except (ValueError, TypeError, AttributeError, PositionError):
        raise ConfigError(f'{text!r} is not a JSON object of positions: write it as {{"orders": "17:42"}}') from None


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


def _check_selection(value: Any) -> str | None:
    try:
        Selection.parse(value)
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

    log: str = option("", "Name of the log.", lambda value: check_log(value) if value else None)
    logs: str | None = option(
        None,
        "Instead of log, many of them: names and patterns (*, ?, [...]) with commas between them. A stream finds new ones.",
        lambda value: None if value is None else _check_selection(value),
    )
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
    min_rows_per_trigger: int | None = option(
        None, "A micro-batch waits for so many rows, at most max_trigger_delay_s.", _optional_count
    )
    max_trigger_delay_s: float = option(
        900.0, "How long rows wait at most for min_rows_per_trigger, in seconds.", positive
    )

    def contradictions(self) -> list[str]:
        """The options that contradict each other."""
        found = super().contradictions()
        if self.max_rows_per_trigger is not None and self.max_bytes_per_trigger is not None:
            found.append("max_rows_per_trigger and max_bytes_per_trigger are two limits, and Spark keeps one: give one")
        least, most = self.min_rows_per_trigger, self.max_rows_per_trigger
        if least is not None and most is not None and least > most:
            found.append(f"min_rows_per_trigger={least} is more than max_rows_per_trigger={most}")
        if bool(self.log) == bool(self.logs):
            found.append("log: it must be given, or logs for many: one of both")
        if self.end.is_latest:
            found.append("to=latest: leave it out, to read all that is confirmed")
        return found + self._faults_of_bounds()

    def _faults_of_bounds(self) -> list[str]:
        begin, end = self.begin, self.end
        found = []
        for name, bound in (("from", begin), ("to", end)):
            if self.logs and bound.position is not None:
                found.append(f'{name} {bound.position} is of one log: with logs, write it as {{"orders": "17:42"}}')
            unread = [each for each in bound.positions or () if not self.selection.selects(each)]
            found += [f"{name} has a position of log {each!r}, which the query does not read" for each in unread]
        for each in {*(begin.positions or {""}), *(end.positions or ())}:
            low, high = begin.of(each), end.of(each)
            pairs = ((low.position, high.position), (low.time_ns, high.time_ns))
            if any(low is not None and high is not None and low > high for low, high in pairs):  # type: ignore[operator]
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
    def selection(self) -> Selection:
        """The logs that are read."""
        return Selection.parse(self.logs) if self.logs else Selection((self.log,))

    @property
    def shown(self) -> str:
        """The logs and positions to read, for errors."""
        return self.log or str(self.logs)

    @property
    def skips_trimmed(self) -> bool:
        """True if trimmed entries are left out."""
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
        self._refuse(
            "is for readStream: leave it out", "max_rows_per_trigger", "max_bytes_per_trigger", "min_rows_per_trigger"
        )

    def check_stream(self) -> None:
        """Raises `ConfigError` for options that a stream does not have."""
        self._refuse("is for spark.read: a stream ends with its query (trigger(availableNow=True))", "to")

    def _refuse(self, why: str, *names: str) -> None:
        for name in names:
            if getattr(self, name):
                raise ConfigError(f"option {name} {why}")
