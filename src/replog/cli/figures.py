"""Figures for people: counts, rates and durations in a few characters; sizes are in `output`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from replog.config.parsing import parse_quorum
from replog.errors import ConfigError
from replog.protocol.quorum import Quorum

_HEIGHTS = "▁▂▃▄▅▆▇█"


def as_count(value: float | None) -> str | None:
    """A number in at most five characters, to three digits: 7, 12.3k, 450k, 1.23M."""
    if value is None:
        return None
    # Half a unit below the limit: what would be rounded up to 1000 is shown in the next unit.
    if value < 999.5:
        return f"{value:.0f}" if value >= 9.95 or value == int(value) else f"{value:.1f}"
    for unit in ("k", "M", "G", "T"):
        value /= 1000
        if value < 999.5 or unit == "T":
            break
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}{unit}"


def counted(count: int, what: str, plural: str = "") -> str:
    """How many of something, in words: no segments, 1 segment, 2 segments."""
    return f"1 {what}" if count == 1 else f"{count or 'no'} {plural or what + 's'}"


def as_duration(seconds: float | None) -> str | None:
    """A duration in at most six characters, to two or three digits: 83us, 1.2ms, 45ms, 3.1s, 2m05s, 3h10m, 12d."""
    if seconds is None:
        return None
    if seconds < 0.0009995:
        return f"{seconds * 1e6:.0f}us"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.{1 if seconds < 0.00995 else 0}f}ms"
    if seconds < 59.5:
        return f"{seconds:.{1 if seconds < 9.95 else 0}f}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d"


_UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_duration_s(text: str) -> float:
    """Read a duration as people write it: 90s, 15m, 1.5h, 2d, or a number of seconds. Raises `ConfigError`."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?) ?([a-z]*)", text.strip().lower(), re.ASCII)
    unit_s = None if match is None else _UNITS_S.get(match[2] or "s")
    if match is None or unit_s is None:
        raise ConfigError(f"{text!r} is not a duration: write it as 90s, 15m, 12h or 2d")
    return float(match[1]) * unit_s


def parse_since(text: str) -> datetime | timedelta:
    """Read how long ago (90s, 2h, 7d), or a time in ISO 8601 with a time zone. Raises `ConfigError`."""
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        pass
    else:
        if time.utcoffset() is None:
            raise ConfigError(
                f"{text!r} has no time zone: write it as {time.isoformat()}Z, or with +02:00 in place of Z"
            )
        return time
    try:
        return timedelta(seconds=parse_duration_s(text))
    except (ConfigError, OverflowError):
        raise ConfigError(
            f"{text!r} is not a time: write how long ago it was, as 90s, 15m, 12h or 2d, or 2026-11-23T08:00:00Z"
        ) from None


def parse_quorum_option(text: str | None) -> Quorum | None:
    """Read the option --quorum; None if it was not given. Raises `ConfigError`."""
    quorum = None if text is None else parse_quorum(text)
    if text is not None and quorum is None:
        raise ConfigError(f"--quorum {text}: it is written ENSEMBLE,WRITE,ACK, as in 5,3,2")
    return quorum


def sparkline(values: Sequence[float], width: int) -> str:
    """A small chart of values, the newest at its right end; a character shows the mean of several if there are many."""
    if not values or width < 1:
        return ""
    per_character = -(-len(values) // width)
    # From the newest backwards: a group that is not full is the oldest, and the right end does not jump.
    groups = [values[max(0, end - per_character) : end] for end in range(len(values), 0, -per_character)]
    means = [sum(group) / len(group) for group in reversed(groups)]
    highest = max(means)
    if highest <= 0:
        return _HEIGHTS[0] * len(means)
    return "".join(_HEIGHTS[min(len(_HEIGHTS) - 1, int(mean / highest * len(_HEIGHTS)))] for mean in means)
