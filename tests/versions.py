"""The fast lane on every other CPython that this machine has, and the programs of `tests/faces` there and with the lowest
versions of what replog depends on.

    python -m tests.versions                        # or make test-versions
    python -m tests.versions --sample               # on the newest one only, one case of every third test, as the gate does
    python -m tests.versions -k wire                # with arguments for pytest
    PYTHONS="/opt/python/bin/python3.14t" python -m tests.versions

Interpreters are found by their names (`python3.13`), and among those of pyenv; `PYTHONS` names others instead. Each gets an
environment of its own (`.venv-3.13`) with what the fast lane needs. `TESTED` is what the package's classifiers say.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.lanes.fast import PLACES

ROOT = Path(__file__).parent.parent
TESTED = ("3.11", "3.12", "3.13")
# Tried where they are; those that the project's dependencies have no wheels for are reported and left out.
NEWER = ("3.13t", "3.14", "3.14t")

_ASK = "import sys, sysconfig as s; print('%d.%d' % sys.version_info[:2] + 't' * bool(s.get_config_var('Py_GIL_DISABLED')))"
_STAMP = "installed-fast"
_INSTALL_TIMEOUT_S = 600
_TESTS_TIMEOUT_S = 900
_NO_TESTS = 5  # the status of pytest where the arguments choose none
_SAMPLED = ("-k", "not uvloop")  # of the programs: under uvloop they are those of asyncio once more


def main(arguments: Sequence[str]) -> int:
    """Run the fast lane on each; the exit status is 1 if it fails on one of them."""
    is_sample, arguments = "--sample" in arguments, [each for each in arguments if each != "--sample"]
    ours = series_of(sys.executable)
    found = {series: python for series, python in interpreters() if series != ours}
    print(f"versions: {ours} runs all tests; others that are here: {', '.join(found) or 'none was found'}")
    # A version in between differs from one of its neighbours in what is used, if in anything.
    chosen = list(found)[-1:] if is_sample else list(found)
    programs = [*arguments, *(_SAMPLED if is_sample else ())]
    arguments = [*arguments, *(["--sample"] if is_sample else ())]
    failed = [series for series in chosen if not is_well(series, found[series], arguments, programs)]
    if not is_well_with_lowest(programs):
        failed.append("the lowest versions of the dependencies")
    if failed:
        print(f"versions: the fast lane fails on {', '.join(failed)}")
    return int(bool(failed))


def interpreters() -> Iterator[tuple[str, str]]:
    """Interpreters that run, by series, such as "3.13" or "3.13t"."""
    if named := os.environ.get("PYTHONS", "").split():
        for python in named:
            series = series_of(python)
            if series is None:
                raise SystemExit(f"versions: PYTHONS names {python}, which is not a Python that runs")
            yield series, python
        return
    for wanted in (*TESTED, *NEWER):
        for candidate in (shutil.which(f"python{wanted}"), *of_pyenv(wanted)):
            # A shim of pyenv is found as a command even if it starts nothing.
            if candidate is not None and series_of(candidate) == wanted:
                yield wanted, candidate
                break


def of_pyenv(wanted: str) -> Iterator[str]:
    """Interpreters of this series that pyenv has installed, the newest first."""
    if shutil.which("pyenv") is None:
        return
    names = _output("pyenv", "versions", "--bare").split()
    number, is_free = wanted.removesuffix("t"), wanted.endswith("t")
    fitting = [name for name in names if name.startswith(f"{number}.") and name.endswith("t") == is_free]
    for name in reversed(fitting):
        yield f"{_output('pyenv', 'prefix', name).strip()}/bin/python"


def series_of(python: str) -> str | None:
    """The series of an interpreter; None if it does not run."""
    return _output(python, "-c", _ASK).strip() or None


def is_well(series: str, python: str, arguments: Sequence[str], programs: Sequence[str]) -> bool:
    """True if the fast lane and the programs, each with these arguments, pass there, or if what they need cannot be installed on
    a series that is not promised."""
    environment = ROOT / f".venv-{series}"
    if not install(environment, python):
        print(f"versions: {series}: cannot install what the fast lane needs" + (": left out" * (series in NEWER)))
        return series in NEWER
    print(f"versions: {series}: {_output(str(environment / 'bin' / 'python'), '-VV').strip()}", flush=True)
    command = [str(environment / "bin" / "python"), "-m", "pytest", "-q", "-n", os.environ.get("WORKERS", "auto")]
    command += ["--dist", "loadfile", "--no-loadscope-reorder", "-p", "no:cacheprovider", "--fast", *PLACES, *arguments]
    is_fast_well = subprocess.run(command, cwd=ROOT, timeout=_TESTS_TIMEOUT_S).returncode == 0
    return are_programs_well(environment, programs) and is_fast_well


def is_well_with_lowest(arguments: Sequence[str]) -> bool:
    """True if programs work with the lowest version of each package that `pyproject.toml` allows, on this Python."""
    environment = ROOT / ".venv-lowest"
    with tempfile.TemporaryDirectory() as directory:
        constraints = Path(directory) / "lowest.txt"
        constraints.write_text(lowest_constraints(), encoding="utf-8")
        if not install(environment, sys.executable, constraints):
            print("versions: cannot install the lowest versions of the dependencies")
            return False
    print("versions: the lowest versions of the dependencies", flush=True)
    return are_programs_well(environment, arguments)


def lowest_constraints() -> str:
    """The pinned versions, but for replog's own dependencies their lower bounds."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    lowest = dict(each.split(">=") for each in declared)
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    free = {*lowest, "pytest"}  # of which the pinned version wants a newer pluggy
    others = [line for line in pinned if line.partition("==")[0].strip() not in free]
    return "\n".join([*others, *(f"{name}=={version}" for name, version in lowest.items())])


def are_programs_well(environment: Path, arguments: Sequence[str]) -> bool:
    """True if the programs of `tests/faces` end there as they should."""
    command = [str(environment / "bin" / "python"), "-m", "pytest", "-q", "-n", os.environ.get("WORKERS", "auto")]
    command += ["-p", "no:cacheprovider", "tests/faces", *arguments]
    status = subprocess.run(command, cwd=ROOT, timeout=_TESTS_TIMEOUT_S).returncode
    return status in (0, _NO_TESTS)


def install(environment: Path, python: str, pinned: Path = ROOT / "constraints.txt") -> bool:
    """Make the environment, unless it is newer than what it was installed from. False if a package cannot be installed."""
    stamp = environment / _STAMP
    sources = [ROOT / "pyproject.toml", ROOT / "constraints.txt"]
    if stamp.exists() and stamp.stat().st_mtime > max(each.stat().st_mtime for each in sources):
        return True
    subprocess.run([python, "-m", "venv", "--clear", str(environment)], check=True, timeout=_INSTALL_TIMEOUT_S)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input"]
    variables = os.environ | {
        "PIP_CONSTRAINT": str(pinned),
        "PIP_BUILD_CONSTRAINT": str(ROOT / "constraints.txt"),
    }
    variables |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    command = [*pip, "-e", f"{ROOT}[test-fast]"]
    if subprocess.run(command, cwd=ROOT, env=variables, timeout=_INSTALL_TIMEOUT_S).returncode:
        return False
    stamp.touch()
    return True


def _output(*command: str) -> str:
    """What a command prints, and nothing if it fails or does not exist."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
