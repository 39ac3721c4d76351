"""Counts, durations and small pictures, in a few characters each."""

import pytest

from replog.cli.figures import as_count, as_duration, parse_duration_s, sparkline
from replog.errors import ConfigError


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (0.0, "0"),
        (0.04, "0.0"),
        (7.25, "7.2"),
        (9.97, "10"),
        (999.4, "999"),
        (999.6, "1.00k"),
        (12_345, "12.3k"),
        (99_960, "100k"),
        (999_700, "1.00M"),
        (3.21e9, "3.21G"),
        (5e15, "5000T"),
    ],
)
def test_counts(value: float | None, shown: str | None) -> None:
    assert as_count(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, None),
        (0.0, "0us"),
        (0.0000834, "83us"),
        (0.00099951, "1.0ms"),
        (0.00123, "1.2ms"),
        (0.00996, "10ms"),
        (0.045, "45ms"),
        (0.9996, "1.0s"),
        (9.96, "10s"),
        (59.6, "1m00s"),
        (125, "2m05s"),
        (3599.7, "1h00m"),
        (11_400, "3h10m"),
        (86_399.9, "1d"),
        (1_036_800, "12d"),
    ],
)
def test_durations(seconds: float | None, shown: str | None) -> None:
    assert as_duration(seconds) == shown


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90", 90), ("1.5 h", 5400), ("15M", 900), ("2min", 120), ("2d", 172_800), (" 3s ", 3)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "d", "-1s", "1w", "1e3", "nan", "inf", "1d2h", "\N{ARABIC-INDIC DIGIT ONE}s", "9" * 10]
)
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a duration"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("values", "width", "shown"),
    [
        ([], 5, ""),
        ([1.0], 0, ""),
        ([0.0, 0.0], 5, "▁▁"),
        ([0.0, 4.0, 8.0], 5, "▁▅█"),
        ([0, 0, 8, 8, 4, 4], 3, "▁█▅"),
        ([99, 0, 0, 8, 8], 3, "█▁▁"),
    ],
)
def test_sparklines(values: list[float], width: int, shown: str) -> None:
    assert sparkline(values, width) == shown
