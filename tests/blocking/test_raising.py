"""Whatever a verb of `replog.blocking` raises is an error of replog."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import replog.blocking
from replog.blocking.faces import FACES
from replog.runtime.faces import Face
from tests.blocking.walking import OPTIONS, Machine, is_ours, verbs_of
from tests.kit import own_faces


def all_faces(client: Any) -> list[Face]:
    """One of each class that a program can get."""
    ledger = client.create_ledger().open()
    ledger.append(b"one")
    log = client.write_log("log").open()
    log.append(b"one")
    (remote,) = client.admin.bookies()
    (own,) = client.bookies
    readers = [client.open_ledger(ledger.ledger_id).open(), client.read_log("log").open()]
    readers.append(client.cursor("log", "mine").open())
    machine = client.run_machine("waves", Machine, listen=()).open()
    found = [ledger, log, *readers, machine, remote, own, client.admin, client.jobs, client.cursors, client]
    assert {type(each) for each in found} == {
        face for face in own_faces(FACES).values() if not is_made_by_reading(face)
    }
    return found


def is_made_by_reading(face: type[Face]) -> bool:
    """Whether a reader's verb gives it."""
    return face.__name__ == "LedgerRangeReader"


def outcome_of(call: Callable[[], Any]) -> BaseException | None:
    """What a program meets that uses what the verb gives, too."""
    try:
        found = call()
        if isinstance(found, AbstractContextManager):
            with found:
                pass
        elif isinstance(found, Iterator):
            next(found, None)
    except Exception as error:
        return error
    return None


def not_ours(faces: list[Face]) -> list[str]:
    told = []
    for face in faces:
        for name, call in verbs_of(face):
            error = outcome_of(call)
            if error is not None and not is_ours(error, TimeoutError):
                told.append(f"{type(face).__name__}.{name}: {error!r}")
    return told


def test_open_object_raises_only_our_errors(tmp_path: Path) -> None:
    with replog.blocking.embed(tmp_path, options=OPTIONS) as client:
        assert not_ours(all_faces(client)) == []


def test_closed_object_raises_only_our_errors(tmp_path: Path) -> None:
    with replog.blocking.embed(tmp_path, options=OPTIONS) as client:
        faces = all_faces(client)
        for face in faces[:-1]:
            if hasattr(face, "close"):
                face.close()
        assert not_ours(faces[:-1]) == []
    assert not_ours(faces) == []
