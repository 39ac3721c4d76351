"""Porcupine, a judge of histories that others wrote: `porcupine/main.go`, built once for each process.

It judges all keys of a history together, so it sees whether a listing was of one moment; `register_history` judges each key
alone, and needs nothing but Python.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from tests.failures.register_history import Call

_SOURCE = Path(__file__).with_name("porcupine")
_BUILDING_S = 300.0
_JUDGING_S = 20


class NoJudgeError(Exception):
    """Go, or a module that the judge needs, is not to be had here."""


@cache
def judge() -> Path:
    """The program. Raises `NoJudgeError`."""
    go = shutil.which("go")
    if go is None:
        raise NoJudgeError("needs Go: install it")
    place = Path(mkdtemp(prefix="replog-porcupine-"))
    if problem := _run(go, "mod", "download"):
        raise NoJudgeError(f"the module is not to be had: {problem}")
    problem = _run(go, "build", "-o", str(place / "judge"), ".")
    assert not problem, problem
    return place / "judge"


def _run(*command: str) -> str:
    environment = os.environ | {"GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "local"}
    try:
        done = subprocess.run(
            command, cwd=_SOURCE, env=environment, capture_output=True, text=True, timeout=_BUILDING_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        return str(error)
    return done.stderr.strip() if done.returncode else ""


def write_history(calls: Iterable[Call], path: Path) -> None:
    """Writes what the judge reads: one call a line."""
    with path.open("w") as file:
        for each in calls:
            json.dump(_line(each), file)
            file.write("\n")


def _line(call: Call) -> dict[str, object]:
    is_version = isinstance(call.answer, int)
    return {
        "what": call.what,
        "key": call.key,
        "value": call.value.decode(),
        "expected": call.expected or 0,
        "begun": int(call.begun_s * 1e9),
        "ended": int(call.ended_s * 1e9),
        "answer": "unknown" if call.answer is None else "done" if is_version else call.answer,
        "version": call.answer if is_version else 0,
        "words": list(call.words),
    }


def verdict(history: Path) -> str:
    """ "ok", "violation", or "no verdict" if judging takes too long. Raises `NoJudgeError`."""
    done = subprocess.run(
        [judge(), str(_JUDGING_S)],
        input=history.read_text(),
        capture_output=True,
        text=True,
        timeout=2 * _JUDGING_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
