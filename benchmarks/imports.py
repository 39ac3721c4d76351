"""What imports cost: `PYTHONPATH=. python -m benchmarks.imports [--rounds 9]`.

Each line is the processor time of a new interpreter, less that of another one of the same round: medians. That is how long an
import takes on an idle machine, and waiting for other programs is not in it. Byte code is in a directory of this run, whatever
the environment says of it, and was written before the first round.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec

_TRIO, _PYSPARK = "import trio", "import pyspark.sql.datasource"
# What is run, and what it is compared with. No goal where a program opens a client: it pays once.
_CASES = {
    _TRIO: "pass",
    "import trio, replog": _TRIO,
    "import trio; from replog import connect": _TRIO,
    "import trio; from replog import embed": _TRIO,
    "import trio; from replog.aio import connect": _TRIO,
    "import trio; from replog.blocking import connect": _TRIO,
    f"{_PYSPARK}, replog.spark": _PYSPARK,
    f"{_PYSPARK}; from replog.spark import ReplogDataSource": _PYSPARK,
    "import sys; sys.argv = ['replog', '--help']; from replog.cli import main; main()": "",
}
_GOALS_MS = {"import trio, replog": 60, f"{_PYSPARK}, replog.spark": 150, "main()": 250}
_APPENDS = """
import json, time, trio, replog

async def main():
    async with replog.embed({path!r}) as client, client.write_log("log") as log:
        times = []
        for _ in range(2):
            begun = time.perf_counter()
            await log.append(b"entry")
            times.append(time.perf_counter() - begun)
        print(json.dumps(times))

trio.run(main)
"""


def _took_ms(statement: str, environment: Mapping[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", statement], env=environment, check=True, stdout=subprocess.DEVNULL, timeout=60
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


def _appends_ms(directory: str, environment: Mapping[str, str]) -> tuple[float, float]:
    """The first append of a process, and the second."""
    with tempfile.TemporaryDirectory(dir=directory) as path:
        command = [sys.executable, "-c", _APPENDS.format(path=path + "/wal")]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    first, second = json.loads(done.stdout)
    return first * 1e3, second * 1e3


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    cases = {each: base for each, base in _CASES.items() if "pyspark" not in each or find_spec("pyspark")}
    statements = {*cases, *cases.values()} - {""}
    with tempfile.TemporaryDirectory() as directory:
        environment = {name: each for name, each in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = directory + "/byte-code"
        for each in statements:
            _took_ms(each, environment)
        found = [{each: _took_ms(each, environment) for each in statements} for _ in range(rounds)]
        appends = [_appends_ms(directory, environment) for _ in range(rounds)]
    for case, base in cases.items():
        median = statistics.median(each[case] - (each[base] if base else 0) for each in found)
        goal = next((f", goal {ms}" for name, ms in _GOALS_MS.items() if case.endswith(name)), "")
        print(f"{median:7.1f} ms  {case}{f', beyond {base}' if base else ''}{goal}")
    later = statistics.median(first - second for first, second in appends)
    print(f"{later:7.1f} ms  first append of a process, beyond its second, goal 5")


if __name__ == "__main__":
    main()
