"""What is known of processes while they are made to fail."""

from __future__ import annotations

from itertools import chain

import pytest

from replog.protocol.model import Position
from replog.testing.history import Event
from tests.failures.cluster import reading_pauses_s


def events_of(confirmed: list[float], saw: list[float]) -> list[Event]:
    """A reader that began at 1.0, and opens another reader before each entry."""
    return [
        Event(1.0, "reader.1", "reading"),
        *(Event(at_s, "writer.1", "confirmed", position=Position(1, n)) for n, at_s in enumerate(confirmed)),
        *chain.from_iterable(
            (
                Event(at_s, f"reader.{n}", "reading", position=Position(1, n)),
                Event(at_s, f"reader.{n}", "saw", position=Position(1, n)),
            )
            for n, at_s in enumerate(saw, 1)
        ),
    ]


def pauses_s(confirmed: list[float], saw: list[float]) -> list[float]:
    return reading_pauses_s(events_of([0.0, *confirmed], saw))


def test_reader_pauses_only_while_there_is_something_to_read() -> None:
    assert pauses_s([0.5, 10.0], [1.5, 10.25]) == pytest.approx([0.25, 0.5])


def test_lagging_reader_does_not_pause() -> None:
    assert pauses_s([2.0, 2.1, 2.2, 2.3], [3.0, 4.0, 5.0, 6.0]) == pytest.approx([1.0] * 4)


def test_stopped_reader_pauses_once() -> None:
    assert pauses_s([2.0, 2.1, 2.2], [2.0, 9.0, 9.0])[-1] == pytest.approx(6.9)
