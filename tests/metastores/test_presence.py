"""Seats: who is there, who is silent, who is gone. The locks need a second process to be seen."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from replog.metastores.presence import Presence, Seat
from tests.forks import run

LOOK = """
import sys
from replog.metastores.presence import Presence, Seat

presence = Presence(sys.argv[1], 60)
seat = Seat(int(sys.argv[2]), int(sys.argv[3]))
print(presence.is_there(seat), presence.is_gone(seat), presence.sit_down().number)
"""


def seen_by_another(path: Path, seat: Seat) -> str:
    """Whether another process sees this one there, and gone, and which seat it takes itself."""
    command = [sys.executable, "-c", LOOK, str(path), str(seat.number), str(seat.incarnation)]
    return str(run(command).stdout).strip()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "presence"


def test_a_seat_is_this_processes_until_it_leaves(path: Path) -> None:
    presence = Presence(str(path), 60)
    assert presence.beat_interval_s is None
    seat = presence.sit_down()
    assert presence.sit_down() == seat
    assert presence.beat_interval_s == 15
    assert seen_by_another(path, seat) == "True False 1"
    presence.close()
    presence.close()
    assert seen_by_another(path, seat) == "False True 0"


def test_a_process_is_always_there_for_itself(path: Path) -> None:
    presence = Presence(str(path), 0.001)
    seat = presence.sit_down()
    time.sleep(0.01)
    assert presence.is_there(seat)
    assert not presence.is_gone(seat)
    assert presence.is_gone(Seat(seat.number, seat.incarnation + 1)), "who sat here before is gone"
    assert presence.is_gone(Seat(seat.number + 5, 1)), "nobody ever sat there"
    presence.close()


def test_holder_without_beats_is_silent_and_not_gone(path: Path) -> None:
    presence = Presence(str(path), 0.001)
    seat = presence.sit_down()
    time.sleep(0.01)
    assert seen_by_another(path, seat) == "False False 1"
    presence.close()


def test_accidentally_lost_lock_is_taken_again(path: Path) -> None:
    """POSIX: closing any descriptor of the file, by whomever in this process, gives up all its locks."""
    presence = Presence(str(path), 60)
    seat = presence.sit_down()
    path.read_bytes()
    presence.beat()
    assert seen_by_another(path, seat) == "True False 1"
    presence.close()
