"""Flags, over the environment, over the file, over the defaults; and every fault at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from replog.cli.serving.settings import LoggingOptions, MetricsOptions, ProcessOptions
from replog.config import BackendURL
from tests.cli.test_inspect import run

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "running-bookies.md"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in os.environ:
        if name.startswith("REPLOG_"):
            monkeypatch.delenv(name)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, dict[str, dict[str, Any]]]:
    status, output, errors = run(capsys, "bookie", *arguments, "--show-config", "--json")
    assert status == 0, errors
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(output)
    return found


def faults(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[str]:
    status, output, errors = run(capsys, "bookie", *arguments)
    assert (status, output) == (2, "")
    assert errors.startswith("replog: configuration: ")
    first, *others = errors.splitlines()
    return [each.removeprefix("  - ") for each in others] or [first.removeprefix("replog: configuration: ")]


def test_flags_override_environment_and_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "replog.toml"
    path.write_text(
        """
        [bookie]
        metastore = "lmdb:/file"
        data = "/file"
        listen = ["127.0.0.1:1", "[::1]:2"]
        queue_bytes_max = "128 MiB"
        read_only_below_bytes = 1000000
        [storage]
        spare_files = 3
        [tcp]
        connections_max = 10
        silence_max_s = 7
        [client]
        add_timeout_s = 1
        """
    )
    monkeypatch.setenv("REPLOG_METASTORE", "lmdb:/shared")
    monkeypatch.setenv("REPLOG_BOOKIE_DATA", "/environment")
    monkeypatch.setenv("REPLOG_TCP_CONNECTIONS_MAX", "20")
    monkeypatch.setenv("REPLOG_LOGGING_LEVEL", "debug")
    found = shown(capsys, "--config", path, "--data", "/flag", "--set", "tcp.silence_max_s=9", "--log-level", "error")
    assert found["bookie"]["metastore"] == {"value": "lmdb:/shared", "from": "REPLOG_METASTORE"}
    assert found["bookie"]["data"] == {"value": "/flag", "from": "--data"}
    assert found["bookie"]["listen"] == {"value": ["127.0.0.1:1", "[::1]:2"], "from": str(path)}
    assert found["bookie"]["queue_bytes_max"] == {"value": 128 << 20, "from": str(path)}
    assert found["bookie"]["repair_away_after_s"] == {"value": 600.0, "from": "default"}
    assert found["storage"] == {"spare_files": {"value": "3", "from": str(path)}}
    assert found["tcp"]["connections_max"] == {"value": 20, "from": "REPLOG_TCP_CONNECTIONS_MAX"}
    assert found["tcp"]["silence_max_s"] == {"value": 9.0, "from": "--set tcp.silence_max_s"}
    assert found["logging"]["level"] == {"value": "error", "from": "--log-level"}
    monkeypatch.setenv("REPLOG_BOOKIE_METASTORE", "lmdb:/environment")
    monkeypatch.setenv("REPLOG_CONFIG", str(path))
    found = shown(capsys, "--listen", "h:5")
    assert found["bookie"]["metastore"] == {"value": "lmdb:/environment", "from": "REPLOG_BOOKIE_METASTORE"}
    assert found["bookie"]["data"] == {"value": "/environment", "from": "REPLOG_BOOKIE_DATA"}
    assert found["bookie"]["listen"] == {"value": ["h:5"], "from": "--listen"}


def test_all_faults_are_reported_together(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "replog.toml"
    path.write_text("[bookie]\nqueue_bytes_max = 'soon'\nfoo = 1\n[nonsense]\n[metrics]\nlisten = 'x'\n")
    monkeypatch.setenv("REPLOG_TCP_CONNECTIONS_MAX", "0")
    arguments = ["--metastore", "nowhere:x", "--storage", "files:/elsewhere", "--listen", "a:b:c"]
    found = faults(
        capsys, "--config", path, *arguments, "--set", "storage", "--log-level", "loud", "--set", "storage.x=1"
    )
    for fault in (
        f"{path}: 'nonsense' is not a table; the tables are ",
        "--set storage: must be TABLE.OPTION=VALUE",
        f"bookie.foo (from {path}): no such option; there are storage, ",
        f"bookie.queue_bytes_max (from {path}): 'soon' is neither a whole number",
        "bookie.data: must be given: --data, or REPLOG_BOOKIE_DATA, or data in [bookie]",
        "tcp.connections_max=0: at least 1",
        f"metrics.listen (from {path}): metrics: 'x' is not an address",
        "logging.level (from --log-level): 'loud' must be one of debug, info, warning, error",
        "bookie.storage: files:/elsewhere names a place: ",
        "bookie.listen: address 'a:b:c': ",
        "bookie.metastore: no plugin offers the metastore scheme 'nowhere'",
    ):
        assert [each for each in found if each.startswith(fault)], (fault, found)
    assert len(found) == 11


def test_options_of_the_storage_are_checked_by_its_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    found = faults(
        capsys, "--metastore", "memory:", "--data", "x", "--set", "storage.spare_files=few", "--set", "storage.y=1"
    )
    assert [
        each
        for each in found
        if "spare_files (from --set storage.spare_files): 'few' is neither a whole number" in each
    ]
    assert [each for each in found if "no such option: y" in each]


def test_missing_file_is_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = faults(capsys, "--config", tmp_path / "none.toml", "--metastore", "memory:", "--data", "x")
    assert found == [f"{tmp_path / 'none.toml'}: cannot be read: No such file or directory"]


def test_tls_without_a_certificate(capsys: pytest.CaptureFixture[str]) -> None:
    found = faults(capsys, "--metastore", "memory:", "--data", "x", "--tls-ca", "ca.pem")
    assert found == ["tcp: a bookie needs a tls_certificate_file to speak TLS"]


def test_no_secrets_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(
        capsys,
        "--metastore",
        "lmdb:user:hush@host",
        "--data",
        "x",
        "--set",
        "bookie.authentication=none",
        "--listen",
        ":0",
    )
    assert "hush" not in json.dumps(found)
    assert found["bookie"]["metastore"]["value"] == "lmdb:user:***@host"


def test_flags_of_serving_before_another_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, _, errors = run(capsys, "bookie", "--data", tmp_path, "format", tmp_path / "new")
    assert status == 2
    assert errors.startswith("replog: --data before format: is for serving")
    assert not (tmp_path / "new").exists()


def test_a_url_with_secrets_is_read_back_whole() -> None:
    url = BackendURL("etcd", "a:1,[::1]:2/x y?", {"password": "h&=u?s h%", "n": "1"})
    assert BackendURL.parse(url.with_secrets()) == url
    assert "s h" not in str(url)


def told(default: object) -> str:
    if isinstance(default, int) and not isinstance(default, bool) and default >= 1 << 20 and default % (1 << 20) == 0:
        return f"{default >> 20} MiB"
    if isinstance(default, tuple):
        return ", ".join(default)
    if default is attrs.NOTHING:
        return "must be given"
    return "none" if default is None else str(default).lower()


OWN = [each for each in attrs.fields(ProcessOptions) if each.name in ProcessOptions.__annotations__]
TABLES = [
    ("bookie", OWN),
    ("metrics", attrs.fields(MetricsOptions)),
    ("logging", attrs.fields(LoggingOptions)),
]
ROWS = [pytest.param(table, field, id=f"{table}.{field.name}") for table, fields in TABLES for field in fields]


@pytest.mark.parametrize(("table", "field"), ROWS)
def test_documentation_has_each_option_and_its_default(table: str, field: Any) -> None:
    section = PAGE.read_text(encoding="utf-8").split(f"\n### `[{table}]`")[1].split("\n### ")[0].split("\n## ")[0]
    rows = [
        row
        for row in section.splitlines()
        if row.startswith(f"| `{field.name}` | {told(field.default)} |".replace("|  |", "| |"))
    ]
    assert len(rows) == 1, f"| `{field.name}` | {told(field.default)} | ... |"
    if "doc" in field.metadata:
        assert field.metadata["doc"] in rows[0]
