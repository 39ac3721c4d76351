"""`pip install replog` brings what a log needs and nothing else; what is missing says what to type."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.packaging.conftest import Installed
from tests.packaging.sites import needed_by, requirements_of, size_of

WAL = Path(__file__).with_name("wal.py")

# With what these bring in turn. More of them, or larger ones, are to be a decision.
NEEDED = {"attrs", "cattrs", "crc32c", "idna", "lmdb", "outcome", "pluggy", "sniffio", "sortedcontainers", "trio"}
MAY_NEED = {"typing-extensions"}  # of cattrs, on some versions of Python
SIZE_BYTES_MAX = 14 << 20  # 10 MB in November 2026, of which 4 MB are trio

# Modules that only an extra makes importable.
OF_EXTRAS = (
    "replog.cli",
    "replog.demo",
    "replog.metastores.zookeeper.",
    "replog.metrics.collecting",
    "replog.metrics.collecting",
    "replog.metrics.server",
    "replog.metrics.logs",
    "replog.metrics.machines",
    "replog.spark",
)
OPTIONAL = {"kazoo", "prometheus_client", "puresasl", "pyarrow", "pyspark", "rich", "structlog", "typer"}

IMPORT_ALL = """
import importlib, json, pkgutil
import replog
failed = {}
for each in pkgutil.walk_packages(replog.__path__, "replog.", onerror=lambda name: None):
    if each.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(each.name)
    except Exception as error:
        failed[each.name] = repr(error)
print(json.dumps(failed))
"""


def test_a_log_needs_few_and_small_packages(installed: Installed) -> None:
    needed = needed_by(requirements_of())
    assert set(needed) - MAY_NEED == NEEDED
    assert size_of(installed.site) <= SIZE_BYTES_MAX


def test_wheel_without_extras_runs_a_log_on_all_faces(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    done = installed.run("python", str(WAL), str(tmp_path / "data"))
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        *("by trio", "by asyncio", "by threads"),
        *("over TCP to files: 1:0", "over TCP to lmdb: 1:0"),
    ]
    imported = installed.run("python", "-c", IMPORT_ALL)
    failed = json.loads(imported.stdout)
    assert [name for name in failed if not name.startswith(OF_EXTRAS)] == [], failed
    assert failed.keys() >= {"replog.metrics.server", "replog.metastores.zookeeper.driver", "replog.spark"}


def test_command_names_its_missing_extra(installed: Installed) -> None:
    done = installed.run("replog", "--version")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "replog: the command needs rich, structlog, typer, not installed here. Type: pip install 'replog[cli]'"
    ]


# What needs an extra, and which.
OF_AN_EXTRA = {
    "replog.blocking.connect('zookeeper://h:1/r').__enter__()": "zookeeper",
    "import replog.metrics; replog.metrics.collect": "metrics",
    "from replog.metrics import serve_metrics": "metrics",
    "import replog.spark": "spark",
}
TRY_EACH = """
import json, sys, traceback
import replog.blocking
found = {}
for script in sys.argv[1:]:
    try:
        exec(script)
    except Exception as error:
        found[script] = traceback.format_exception_only(error)[-1]
print(json.dumps(found))
"""


def test_feature_names_its_missing_extra(installed: Installed) -> None:
    done = installed.run("python", "-c", TRY_EACH, *OF_AN_EXTRA)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found.keys() == OF_AN_EXTRA.keys()
    for script, extra in OF_AN_EXTRA.items():
        assert found[script].startswith("replog.errors.")
        assert f"pip install 'replog[{extra}]'" in found[script]


def test_command_works_with_its_extra_alone(installed: Installed, extra_cli: Path, tmp_path: Path) -> None:
    shown = installed.run("replog", "--version", also=extra_cli)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("replog 0.")
    helped = installed.run("replog", "--help", also=extra_cli)
    assert (helped.returncode, helped.stderr) == (0, "")
    bookie = ["replog", "bookie", "--metastore", f"lmdb:{tmp_path / 'metadata'}", "--data", str(tmp_path / "data")]
    assert installed.run(*bookie, "--show-config", also=extra_cli).returncode == 0
    refused = installed.run(*bookie, "--metrics", "127.0.0.1:0", also=extra_cli)
    assert refused.returncode == 2
    assert "metrics.listen: metrics need prometheus-client, not installed here" in refused.stderr
    assert "pip install 'replog[metrics]'" in refused.stderr


def test_imports_of_a_log_bring_no_optional_package() -> None:
    """Even if the packages are installed: a program that does not use them does not wait for them."""
    script = "import sys, replog, replog.aio, replog.blocking, replog.testing\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], timeout=60, capture_output=True, text=True, check=True)
    assert OPTIONAL.isdisjoint(done.stdout.split())
