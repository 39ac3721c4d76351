"""What a URL of ZooKeeper may say."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path

import attrs
import pytest

from replog.config import BackendURL
from replog.errors import ConfigError
from replog.metastores.zookeeper.driver import Driver
from replog.metastores.zookeeper.options import Place, ZooKeeperOptions, parse_place
from replog.registry import Registry
from replog.testing import check_metastore_outage
from tests.metastores.zookeeper.opening import opened
from tests.servers.processes import free_port


@pytest.mark.parametrize(
    ("rest", "place"),
    [
        ("zk1", Place((("zk1", 2181),))),
        ("zk1:2182,zk2/prod", Place((("zk1", 2182), ("zk2", 2181)), "/prod")),
        ("zk1/", Place((("zk1", 2181),))),
        ("[::1]:2183,[fe80::1]/a/b/", Place((("::1", 2183), ("fe80::1", 2181)), "/a/b")),
    ],
)
def test_places(rest: str, place: Place) -> None:
    assert parse_place(rest) == place
    url = BackendURL.parse(f"zookeeper://{rest}")
    assert parse_place(url.rest) == place
    assert parse_place(BackendURL.parse(str(url)).rest) == place


@pytest.mark.parametrize(
    "rest",
    [
        *("", "/a", "zk1,", "zk1:0", "zk1:70000", "zk1:x", "::1", "user:hunter2@zk1", "zk1/..", "zk1/a/."),
        *("zk1/zookeeper/a", "zk1/\N{GREEK SMALL LETTER ALPHA}", f"zk1/{'a' * 500}", "zk 1"),
    ],
)
def test_no_places(rest: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_place(rest)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        *("lease_s=0", "timeout_s=nan", "layout=deep", "acl=closed"),
        *("tls=no&tls_ca_file=x", "tls_key_file=x", "user=x", "password_file=x", "mechanism=x"),
        *("acl=creator", "mechanism=digest&user=a:b&password_file=x", "sasl_password=hunter2"),
    ],
)
def test_no_options(options: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Registry().open_metastore(f"zookeeper://zk1/a?{options}")
    assert "hunter2" not in str(raised.value)


def test_the_flat_layout_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="layout=flat is deprecated"):
        Registry().open_metastore("zookeeper://zk1/a?layout=flat")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Registry().open_metastore("zookeeper://zk1/a")


@pytest.mark.parametrize(
    "options",
    [
        ZooKeeperOptions(user="a", password_file="none"),
        ZooKeeperOptions(user="a", password_file="empty", mechanism="digest"),
        ZooKeeperOptions(tls_ca_file="none"),
        ZooKeeperOptions(tls_certificate_file="empty"),
    ],
)
def test_bad_files_are_named(options: ZooKeeperOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").write_bytes(b"\n")
    with pytest.raises(ConfigError, match=r"none|empty"):
        Driver(parse_place("zk1"), options, lambda *_: None, lambda _: False)


def test_every_option_is_documented_with_its_default() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "zookeeper.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^\| `(\w+)` \| ([^|]*?) ?\|", page, re.MULTILINE))
    texts = {True: "true", False: "false", None: "none"}
    expected = {field.name: texts.get(field.default, str(field.default)) for field in attrs.fields(ZooKeeperOptions)}
    assert shown == expected


def test_kazoo_is_imported_only_when_one_is_opened() -> None:
    script = "import sys; from replog.registry import Registry; r = Registry(); assert 'kazoo' not in sys.modules; "
    script += "r.open_metastore('zookeeper://zk1/a'); assert 'kazoo' in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


async def test_absent_server_may_be_awaited() -> None:
    await check_metastore_outage(lambda: opened(f"zookeeper://127.0.0.1:{free_port()}/a?timeout_s=0.1"))
