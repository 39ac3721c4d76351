"""The conformance suite of places for back-ups."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from replog.abc import BackupPlace
from replog.errors import BackupDamagedError, BackupError
from replog.testing.promises import promise, promised_error

OpenPlace = Callable[[], BackupPlace]

_FILE = "0000000000000000007.ledger"
_PIECE = bytes(range(256)) * 4096
_PIECES = 9  # 9 MiB together: more than one part of an upload


def check_backup_place(open_place: OpenPlace) -> None:
    """Check a place for back-ups; raise `AssertionError` with the first promise of `replog.abc` that it breaks.

    Each call of `open_place` opens the same place, as another run would; no back-up is there at first. Needs no pytest."""
    promise(str(open_place().shown()), "a place says in words which one it is")
    place = open_place()
    with place.locked():
        promise(place.exists() is True, "a run makes the place")
        promise(place.read_manifest() is None, "a new place has no manifest")
        names = [_write(place, _FILE), _write(place, f"1{_FILE[1:]}")]
        promise(len(set(names)) == 2, "files have names of their own")
        place.write_manifest(b"first")
    _check_read(open_place(), names)
    _check_next(open_place(), names)
    _check_two(open_place)


def _write(place: BackupPlace, file_name: str) -> str:
    written = place.begin(file_name)
    with closing(written):
        for _ in range(_PIECES):
            written.write(_PIECE)
        name = written.finish()
    promise(
        name.startswith(file_name.partition(".")[0]), "a file has the name that was asked for, or one that begins so"
    )
    return name


def _check_read(place: BackupPlace, names: list[str]) -> None:
    promise(place.exists() is True, "a place with a back-up can be looked into")
    promise(place.read_manifest() == b"first", "everybody reads the manifest")
    for name in names:
        promise(place.size_bytes(name) == _PIECES * len(_PIECE), "a file has its size")
        promise(name in str(place.shown(name)), "a place says in words which file it is")
        with closing(place.open(name, 1 << 20)) as file:
            for _ in range(_PIECES):
                promise(file.read(len(_PIECE)) == _PIECE, "a file comes back as it was written, in pieces of any size")
            promise(file.read(1) == b"", "nothing follows the end of a file")
    promise(place.size_bytes("absent.ledger") is None, "a file that does not exist has no size")
    with promised_error(BackupDamagedError, "a file that must be there, and is not, raises BackupDamagedError"):
        place.open("absent.ledger", 1 << 20)


def _check_next(place: BackupPlace, names: list[str]) -> None:
    with place.locked():
        promise(place.read_manifest() == b"first", "the next run reads the manifest")
        promise(names[0] in place.finished_before(_FILE), "a complete file is found by the name that it was asked with")
        promise(place.finished_before("9999999999999999999.ledger") == [], "no other file is found so")
        unfinished = place.begin("2000000000000000007.ledger")
        unfinished.write(_PIECE)
        unfinished.close()
        unfinished.close()
        promise(place.finished_before("2000000000000000007.ledger") == [], "a file that was not finished is not found")
        place.write_manifest(b"second")
        promise(place.read_manifest() == b"second", "a manifest is replaced")
        place.remove_all_but(names)
    promise(all(place.size_bytes(each) for each in names), "files that are needed stay")


def _check_two(open_place: OpenPlace) -> None:
    one, other = open_place(), open_place()
    with promised_error(BackupError, "of two runs at once one is refused"), one.locked():
        one.read_manifest()
        with other.locked():
            other.read_manifest()
            other.write_manifest(b"third")
        one.write_manifest(b"fourth")
    found = open_place().read_manifest()
    promise(found in (b"second", b"third"), "the run that was refused has changed nothing")
    with one.locked():
        one.read_manifest()
        one.write_manifest(b"last")
    promise(open_place().read_manifest() == b"last", "a run that follows is not refused")
