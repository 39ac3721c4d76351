"""`make profile CASE=push`: where a case of the benchmarks spends its time, as a flame graph.

py-spy looks at all processes and threads of the case a few hundred times a second, from outside, and draws what it saw. Where
it is not there, or the system does not let it look, cProfile's table of the case's main thread is written instead.
"""

from __future__ import annotations

import argparse
import os
import pstats
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import __main__ as benchmarks
from benchmarks import no_yardstick
from benchmarks.cases import CASES
from benchmarks.peers import plan
from benchmarks.spark.cases import CASES as SPARK_CASES

DIRECTORY = Path("build/profiles")
_PEERS = "peers"  # before a case of the peers' runner: peers:append, or peers:redis:append
_NEVER_BUSY = "1e9"  # noise is no reason to discard what is profiled
_TABLE_LINES = 60
_INSIDE = "--inside"  # the program that is profiled
_SPARE_FILES = 3  # journal files that bookies write first: what these cost is in the picture too
_HINTS = {
    "missing": "py-spy is not there: pip install 'replog[bench]', as make profile does",
    "forbidden": "the system does not let py-spy look at other processes. In a container: docker run --cap-add SYS_PTRACE; "
    "elsewhere: sudo sysctl kernel.yama.ptrace_scope=0, or as root",
}


class Forbidden(Exception):
    """py-spy may not look."""


def command_of(case: str, seconds: float) -> list[str]:
    """The program that measures this case once, and nothing else, as arguments of Python. Raises ValueError for no case."""
    timing = ["--seconds", str(seconds)]
    if case in CASES and case not in SPARK_CASES:
        yardstick = ["--yardstick", no_yardstick.__file__]
        return ["-m", "benchmarks.profiling", _INSIDE, "--case", case, "--runs", "1", *timing, *yardstick]
    first, *rest = case.split(":")
    if first == _PEERS and len(rest) in (1, 2) and rest[-1] in plan.CASES:
        system = rest[0] if len(rest) == 2 else "replog"
        quiet = ["--raw-us", _NEVER_BUSY, "--foreign-cpus", _NEVER_BUSY]
        return ["-m", "benchmarks.peers", "--system", system, "--case", rest[-1], "--rounds", "1", *timing, *quiet]
    own = ", ".join(name for name in CASES if name not in SPARK_CASES)
    others = ", ".join(f"{_PEERS}:{name}" for name in plan.CASES)
    raise ValueError(f"no such case: {case!r}; there are {own}, {others} (and peers:SYSTEM:CASE)")


def record(command: Sequence[str], file: Path, samples_per_s: int) -> None:
    """Runs a command of Python and draws where it, and processes that it starts, spend their time. Raises `Forbidden`, or
    CalledProcessError if the command failed."""
    spy = shutil.which("py-spy", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if spy is None:
        raise Forbidden(_HINTS["missing"])
    options = ["--subprocesses", "--threads", "--rate", str(samples_per_s), "--output", str(file)]
    done = subprocess.run(
        [spy, "record", *options, "--", sys.executable, *command],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    is_drawn = file.exists() and file.stat().st_size > 0
    if not is_drawn and any(words in done.stdout for words in ("Permission Denied", "Operation not permitted")):
        raise Forbidden(_HINTS["forbidden"])
    if done.returncode or not is_drawn:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout)


def tabulate(command: Sequence[str], file: Path) -> None:
    """Runs a command of Python, and writes which functions its main thread was in. Raises CalledProcessError."""
    raw = file.with_suffix(".prof")
    done = subprocess.run(
        [sys.executable, "-m", "cProfile", "-o", str(raw), *command],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout)
    with file.open("w", encoding="utf-8") as out:
        pstats.Stats(str(raw), stream=out).sort_stats("tottime").print_stats(_TABLE_LINES)


def profile(case: str, seconds: float, directory: Path, samples_per_s: int, more: Sequence[str] = ()) -> Path:
    """Profiles a case, and returns the file in which it is shown."""
    command = [*command_of(case, seconds), *more]
    directory.mkdir(parents=True, exist_ok=True)
    file = (directory / case.replace(":", "-")).with_suffix(".svg")
    file.unlink(missing_ok=True)  # else an old one would pass for what this run drew
    try:
        record(command, file, samples_per_s)
    except Forbidden as problem:
        print(f"profile: no flame graph: {problem}")
        print("profile: so here is cProfile's table, of the main thread of the main process only")
        file = file.with_suffix(".txt")
        tabulate(command, file)
    return file


def main(arguments: Sequence[str] | None = None) -> int:
    """Profiles, prints the path, and returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if _INSIDE in arguments[:1]:
        benchmarks.main(arguments[1:], spare_files=_SPARE_FILES)
        return 0
    parser = argparse.ArgumentParser(prog="make profile", description="Draw a flame graph of a case of the benchmarks.")
    parser.add_argument("case", help="as make bench has it, or of the peers' runner: peers:append, peers:SYSTEM:append")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each measurement of the case (default: 5)")
    parser.add_argument("--rate", type=int, default=250, help="looks per second (default: 250)")
    parser.add_argument(
        "--into", type=Path, default=DIRECTORY, help=f"the directory for the file (default: {DIRECTORY})"
    )
    options, more = parser.parse_known_args(arguments)
    try:
        print(f"profile: {profile(options.case, options.seconds, options.into, options.rate, more)}")
    except ValueError as error:
        print(f"profile: {error}")
        return 2
    except subprocess.CalledProcessError as error:
        print(f"{error.output.rstrip()}\nprofile: {options.case} ended with exit code {error.returncode}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
