"""Where the peers' programs come from: those that Go can build are built, in the version named here; others are this system's if
it has them, else Debian's packages. All are put below .venv, so that no service is left which takes its ports. What is written in
Java comes from Maven (`pom.xml` in a directory of its name).

    python -m benchmarks.peers.programs                 # fetches what is missing, and says what could not be had
    python -m benchmarks.peers.programs bookkeeper      # only that
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(sys.prefix) / "peers"  # laid out as / is
_FETCH_S = 600.0

# Debian's package of each program.
PACKAGES: Mapping[str, str] = {
    "etcd": "etcd-server",
    "nats-server": "nats-server",
    "rabbitmq-server": "rabbitmq-server",
    "redis-server": "redis-server",
}
MODULES: Mapping[str, tuple[str, str]] = {  # of Go, newer than Debian's packages
    "etcd": ("go.etcd.io/etcd/server/v3", "v3.7.3"),
    "nats-server": ("github.com/nats-io/nats-server/v2", "v2.15.2"),
}
JARS = ("bookkeeper", "kafka")
OF_TESTS = ("pulsar", "pulsar-broker", "bookkeeper-tests")  # fetched only by name
_PLACES = ("usr/bin", "usr/sbin", "usr/lib/rabbitmq/bin", "bin", "sbin")


def find(program: str) -> Path | None:
    """Where it is: built by Go, beside this Python, on the path, or among what was unpacked."""
    if program in MODULES and _built(program).is_file():
        return _built(program)
    places = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    found = shutil.which(program, path=os.pathsep.join(places))
    found = found or shutil.which(program, path=os.pathsep.join(str(ROOT / each) for each in _PLACES))
    return Path(found) if found else None


def missing(program: str) -> str | None:
    """A sentence that says how to get it; None if it is there."""
    if find(program):
        return None
    return f"no {program}: install Debian's {PACKAGES[program]}, or type: python -m benchmarks.peers.programs"


def _built(program: str) -> Path:
    return ROOT / "go" / program


def build(program: str) -> str | None:
    """Has Go build it, in a module of its own: some refuse to be installed by name. Returns what went wrong."""
    package, version = MODULES[program]
    _built(program).parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="go-") as module:
        commands = (
            ["mod", "init", "peer"],
            ["get", f"{package}@{version}"],
            ["build", "-o", str(_built(program)), package],
        )
        try:
            for command in commands:
                _run(["go", *command], Path(module))
        except (subprocess.SubprocessError, OSError) as error:
            return f"{program} {version}: {(getattr(error, 'stderr', None) or str(error)).strip().splitlines()[-1]}"
    return None


def environment() -> dict[str, str]:
    """With which unpacked programs find their libraries; those of the system come first where there are both."""
    libraries = sorted({str(path.parent) for path in ROOT.glob("usr/lib/*-linux-gnu*/*.so*")})
    known = os.environ.get("LD_LIBRARY_PATH")
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join([*([known] if known else []), *libraries])}


def fetch(program: str) -> str | None:
    """Unpacks its package, and those it needs that aren't installed. Returns what went wrong."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return f"{program} has to be installed by hand: this is no Debian"
    ROOT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="packages-") as packages:
        Path(packages, "partial").mkdir()
        options = ("Debug::NoLocking=1", f"Dir::Cache::archives={packages}", "APT::Sandbox::User=root")
        command = ["apt-get", "-qq", "-y", "--no-install-recommends", "--download-only"]
        command += [word for option in options for word in ("-o", option)]
        try:
            _run([*command, "install", PACKAGES[program]])
            for package in sorted(Path(packages).glob("*.deb")):
                _run(["dpkg-deb", "-x", str(package), str(ROOT)])
        except (subprocess.SubprocessError, OSError) as error:
            words = getattr(error, "stderr", None) or str(error)
            return f"{program}: {words.strip().splitlines()[-1]} (apt-get update may help)"
    return None if find(program) else f"{program}: Debian's {PACKAGES[program]} has no such program"


def jars(name: str) -> Path:
    """Where what is written in Java has its jars: with none there if it was not fetched."""
    return ROOT / name / "lib"


def fetch_jars(name: str) -> str | None:
    """Has Maven copy what `pom.xml` names, and what that needs. Returns what went wrong."""
    if not shutil.which("mvn"):
        return f"{name} comes from Maven (Debian: maven), which is not here"
    pom = Path(__file__).parent / name / "pom.xml"
    with tempfile.TemporaryDirectory(prefix="jars-") as copied:
        command = ["mvn", "-B", "-q", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"]
        try:
            _run([*command, f"-DoutputDirectory={copied}"])
        except (subprocess.SubprocessError, OSError) as error:
            words = (getattr(error, "stdout", None) or str(error)).strip().splitlines()
            return f"{name}: {next((line for line in words if 'ERROR' in line), words[-1])}"
        shutil.rmtree(jars(name), ignore_errors=True)
        shutil.copytree(copied, jars(name))
    return None


def _run(command: list[str], directory: Path | None = None) -> None:
    subprocess.run(
        command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_FETCH_S, cwd=directory
    )


def main() -> None:
    """Fetches what is missing, of all or of those that are named; what can't be had is said, and is no error: its system is
    skipped."""
    wanted = sys.argv[1:] or (*PACKAGES, *JARS)
    for program in MODULES:
        if program in wanted and shutil.which("go") and not _built(program).is_file():
            print(build(program) or f"{program}: {find(program)}", flush=True)
    for program in PACKAGES:
        if program in wanted and not find(program):
            print(fetch(program) or f"{program}: {find(program)}", flush=True)
    for name in (*JARS, *OF_TESTS):
        if name in wanted and not jars(name).is_dir():
            print(fetch_jars(name) or f"{name}: {jars(name)}", flush=True)


if __name__ == "__main__":
    main()
