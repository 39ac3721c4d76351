"""The data source's options: what users mistype is told at planning, all at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import replog
from replog.config import ClientOptions
from replog.errors import ConfigError, MetastoreError
from replog.protocol.quorum import Quorum
from replog.spark.options import SparkOptions
from tests.imports import loaded_after, rooms_of

NEEDED = {"metastore": "zookeeper://zk1/prod", "log": "orders"}


def test_required_options_are_enough() -> None:
    options = SparkOptions.parse(NEEDED)
    assert (options.metastore, options.log, options.values) == ("zookeeper://zk1/prod", "orders", "binary")
    assert options.quorum_of_ledgers() == Quorum()


@pytest.mark.parametrize("name", ["txnId", "txn_id", "TXNID", "txnid"])
def test_an_option_has_many_spellings(name: str) -> None:
    assert SparkOptions.parse({**NEEDED, name: "nightly"}).txn_id == "nightly"


def test_options_of_spark_itself_are_ignored() -> None:
    SparkOptions.parse(
        {**NEEDED, "checkpointlocation": "/x", "queryName": "q", "asyncProgressTrackingEnabled": "false"}
    )


def test_all_missing_options_are_reported() -> None:
    with pytest.raises(ConfigError, match=r"(?s)metastore: it must be given.*log: it must be given"):
        SparkOptions.parse({})


def test_all_faults_are_reported_at_once() -> None:
    wrong = {
        "metastore": "lmdb:relative",
        "log": "",
        "tnxId": "misspelt",
        "values": "xml",
        "quorum": "3,2",
        "txnVersion": "-1",
        "mergeBytes": "soon",
    }
    with pytest.raises(ConfigError) as caught:
        SparkOptions.parse(wrong)
    for part in (
        "no such option: tnxId",
        "metastore: lmdb:relative is a relative path",
        "log: '' cannot be the name",
        "values: 'xml' is none of binary, arrow, json",
        "quorum: '3,2' is written ENSEMBLE,WRITE,ACK",
        "txn_version: -1",
        "merge_bytes: 'soon'",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"metastore": "memory:here"}, "memory of one process"),
        ({"metastore": "no url"}, "invalid URL"),
        ({"txnId": " "}, "txn_id: it is empty"),
        ({"txnId": "x" * 201}, "longer than 200"),
        ({"txnVersion": "3"}, "txn_version needs a txn_id"),
        ({"quorum": "2,3,1"}, "ensemble >= write >= ack"),
        ({"quorum": "٣,3,2"}, "is written ENSEMBLE,WRITE,ACK"),
    ],
)
def test_impossible_options_are_refused(wrong: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        SparkOptions.parse({**NEEDED, **wrong})


def test_secrets_of_a_url_are_not_shown() -> None:
    options = SparkOptions.parse({**NEEDED, "metastore": "zookeeper://zk?sasl_password=hush"})
    assert "hush" not in repr(options)
    with pytest.raises(ConfigError) as caught:
        SparkOptions.parse({**NEEDED, "metastore": "lmdb:relative?password=hush"})
    assert "hush" not in str(caught.value)


def test_the_password_is_in_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLOG_PASSWORD", "of the environment")
    assert SparkOptions.parse(NEEDED).password() == b"of the environment"
    (tmp_path / "password").write_bytes(b"of a file\r\n")
    assert SparkOptions.parse({**NEEDED, "passwordFile": str(tmp_path / "password")}).password() == b"of a file"
    with pytest.raises(ConfigError, match="absent: cannot be read"):
        SparkOptions.parse({**NEEDED, "passwordFile": str(tmp_path / "absent")}).password()
    (tmp_path / "large").write_bytes(bytes(70_000))
    with pytest.raises(ConfigError, match="longer than"):
        SparkOptions.parse({**NEEDED, "passwordFile": str(tmp_path / "large")}).password()


def test_options_of_the_client_are_in_a_file_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "replog.toml").write_text("[client]\ntakeover_timeout_s = 2\nadd_timeout_s = 3\n")
    monkeypatch.setenv("REPLOG_CLIENT_ADD_TIMEOUT_S", "4")
    options = SparkOptions.parse({**NEEDED, "configFile": str(tmp_path / "replog.toml")})
    assert options.client_options() == ClientOptions(takeover_timeout_s=2.0, add_timeout_s=4.0)


def test_a_misspelt_directory_is_not_made(tmp_path: Path) -> None:
    options = SparkOptions.parse({**NEEDED, "metastore": f"lmdb:{tmp_path / 'misspelt'}"})

    async def look(client: replog.Client) -> list[str]:
        return await client.logs()

    with pytest.raises(MetastoreError, match="misspelt: cannot be opened"):
        options.run(look)
    assert not (tmp_path / "misspelt").exists()


def test_spark_finds_the_format_in_a_module_without_imports() -> None:
    script = (
        "import sys, pyspark_replog; assert not {'pyspark', 'replog', 'trio'} & set(sys.modules); "
        "from replog.spark import ReplogDataSource; assert pyspark_replog.DefaultSource is ReplogDataSource; "
        "assert not hasattr(pyspark_replog, 'Other')"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize(
    ("imports", "modules_max", "used"),
    [
        ("import replog.spark", 15, {"errors", "runtime"}),
        ("from replog.spark import ReplogDataSource", 15, {"errors", "runtime", "spark"}),
    ],
)
def test_session_loads_no_client_until_it_needs_one(imports: str, modules_max: int, used: set[str]) -> None:
    loaded = loaded_after(imports)
    assert rooms_of(loaded) <= used
    assert len(loaded) <= modules_max


def test_without_pyspark_nothing_is_registered_or_imported() -> None:
    """An import that fails there would hide the formats of all other packages from the session."""
    script = (
        "import sys; sys.modules['pyspark'] = None; import pyspark_replog; "
        "assert not hasattr(pyspark_replog, 'DefaultSource')"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
