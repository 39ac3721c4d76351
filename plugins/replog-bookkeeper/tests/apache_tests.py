"""Apache's own tests of its client, as they were compiled by Apache, against bookies of replog's.

    python plugins/replog-bookkeeper/tests/apache_tests.py                    # all classes that can run here, for an hour
    python plugins/replog-bookkeeper/tests/apache_tests.py client.TestFencing --v2

They come from Maven. Their cluster is ours (`java/apache`): each test gets a ZooKeeper in its process, and bookies in processes
of their own. Tests that reach into a bookie of Java's can't run, and are counted apart. Prints a line for each class, and what
failed; ends with 1 if anything did.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

if __name__ == "__main__":  # pytest has done this otherwise
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3])]

from benchmarks.peers import programs

_SOURCE = Path(__file__).parent / "java" / "apache" / "BookKeeperClusterTestCase.java"
_JARS = "bookkeeper-tests"
_CLASS_S = 1800.0
_PACKAGE = "org.apache.bookkeeper."
_FAILURE = re.compile(r"^\d+\) (\w+)(?:\[.*\])?\([\w.]+\)\n(.*?)$", re.MULTILINE)
_CANNOT_RUN = ("NoSuchMethodError", "NoSuchFieldError", "NoClassDefFoundError")

# Of which at least one test needs nothing but a client and bookies that come and go.
CLASSES = (
    "client.BookieWriteLedgerTest",
    "client.BookieWriteLedgersWithDifferentDigestsTest",
    "client.BookKeeperCloseTest",
    "client.BookKeeperTest",
    "client.ConcurrentV2RecoveryTest",
    "client.LedgerCloseTest",
    "client.LedgerRecoveryTest",
    "client.ListLedgersTest",
    "client.TestAddEntryQuorumTimeout",
    "client.TestBatchedRead",
    "client.TestDelayEnsembleChange",
    "client.TestDisableEnsembleChange",
    "client.TestFencing",
    "client.TestParallelRead",
    "client.TestPiggybackLAC",
    "client.TestReadLastConfirmedAndEntry",
    "client.TestReadLastConfirmedLongPoll",
    "client.TestReadLastEntry",
    "client.TestReadTimeout",
    "client.TestSequenceRead",
    "client.TestSpeculativeRead",
    "client.TestTryReadLastConfirmed",
    "client.TestWatchEnsembleChange",
    "test.AsyncLedgerOpsTest",
    "test.BookieFailureTest",
    "test.BookieReadWriteTest",
    "test.ConditionalSetTest",
    "test.LedgerDeleteTest",
)


def class_path(directory: Path) -> str:
    """Our cluster, compiled there, before Apache's tests."""
    jars = f"{programs.jars(_JARS)}/*:{programs.jars('bookkeeper')}/*"
    subprocess.run(["javac", "-nowarn", "-cp", jars, "-d", str(directory), str(_SOURCE)], check=True, timeout=120)
    return f"{directory}:{jars}"


def run(name: str, path: str, directory: Path, *, is_v2: bool) -> tuple[int, dict[str, str]]:
    """Runs a class; returns how many tests it has, and what was said of those that failed."""
    flags = [
        "-Xmx400m",
        f"-Djava.io.tmpdir={directory}",
        f"-Dreplog.python={sys.executable}",
        f"-Dreplog.v2={'true' if is_v2 else 'false'}",
    ]
    command = ["java", *flags, "--add-opens", "java.base/java.lang=ALL-UNNAMED", "-cp", path]
    command += ["org.junit.runner.JUnitCore", _PACKAGE + name]
    output = directory / f"{name}.txt"
    with output.open("wb") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False, timeout=_CLASS_S)
    text = output.read_text(errors="replace")
    failed = dict(_FAILURE.findall(text))
    counted = re.search(r"^OK \((\d+) tests?\)|^Tests run: (\d+)", text, re.MULTILINE)
    if counted is None:
        return 1, {"the class": f"ended with {done.returncode}: {text[-200:]}"}
    return int(counted[1] or counted[2]), failed


def main() -> int:
    """Runs what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("classes", nargs="*", default=CLASSES)
    parser.add_argument("--v2", action="store_true", help="the client speaks version 2 of the protocol")
    words = parser.parse_args()
    for name in ("bookkeeper", _JARS):
        if not programs.jars(name).is_dir() and (problem := programs.fetch_jars(name)):
            print(problem)
            return 1
    total = Counter[str]()
    directory = Path(tempfile.mkdtemp(prefix="apache-tests-"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    path = class_path(directory)
    for name in words.classes:
        count, failed = run(name, path, directory, is_v2=words.v2)
        cannot = {test for test, said in failed.items() if any(each in said for each in _CANNOT_RUN)}
        total += Counter(
            {"passed": count - len(failed), "cannot run": len(cannot), "failed": len(failed) - len(cannot)}
        )
        said = [f"{test}: {text[:200]}" for test, text in failed.items() if test not in cannot]
        print(f"{name}: {count - len(failed)} passed, {len(cannot)} cannot run", *said, sep="\n  ", flush=True)
    shutil.rmtree(directory, ignore_errors=True)
    print(", ".join(f"{count} {what}" for what, count in total.items()))
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
