"""What a URL and its options may say."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from replog.abc import Metastore
from replog.errors import ConfigError, PluginNotFoundError
from replog.registry import Registry
from replog.testing import check_metastore_outage
from replog_etcd.metastore import EtcdMetastore
from replog_etcd.options import Endpoint, Target


def test_a_url_names_servers_and_a_prefix() -> None:
    target = Target.parse("one:2380,two,[::1]:77,[fe80::1]/prod/replog/")
    assert target.endpoints == (
        Endpoint("one", 2380),
        Endpoint("two", 2379),
        Endpoint("::1", 77),
        Endpoint("fe80::1", 2379),
    )
    assert target.prefix == "prod/replog"
    assert str(target) == "etcd://one:2380,two:2379,[::1]:77,[fe80::1]:2379/prod/replog"
    assert Target.parse("one") == Target((Endpoint("one", 2379),), "")


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        ("", "'' is not a server"),
        ("/prefix", "'' is not a server"),
        ("one,,two", "'' is not a server"),
        ("h\N{LATIN SMALL LETTER O WITH DIAERESIS}st", "is not a server"),
        ("one:0", "'one:0' is not a server"),
        ("one:70000", "'one:70000' is not a server"),
        ("one:port", "'one:port' is not a server"),
        ("::1", "is not a server"),
        ("me:word@one", "user and password_file"),
        ("one,one:2379", "named twice"),
        ("one/a//b", "the prefix"),
        ("one/../b", "the prefix"),
        ("one/" + "long" * 60, "longer than 200 bytes"),
    ],
)
def test_url_without_a_server_is_refused(rest: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as raised:
        Target.parse(rest)
    assert f"etcd://{rest}" in str(raised.value)


def test_the_registry_opens_it_by_its_scheme() -> None:
    metastore = Registry().open_metastore("etcd://one,two/prefix?lease_s=3&tls=yes&response_bytes_max=8MiB")
    assert isinstance(metastore, EtcdMetastore)
    assert metastore.lease_s == 3


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("tls=no&tls_ca_file=a.pem", "tls is no"),
        ("tls_key_file=a.pem", "tls_certificate_file, which is missing"),
        ("user=me", "belong together"),
        ("request_timeout_s=0", "'request_timeout_s' must be > 0"),
        ("lease_s=0.5", "'lease_s' must be >= 1"),
        ("response_bytes_max=1MiB", "at least 4 MiB"),
        ("connections_max=0", "'connections_max' must be >= 1"),
        ("timeout=1", "timeout"),
    ],
)
def test_contradictory_options_are_refused(options: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Registry().open_metastore(f"etcd://one/prefix?{options}")


def test_without_the_plugin_it_is_named() -> None:
    with pytest.raises(PluginNotFoundError, match="pip install 'replog-etcd'"):
        Registry(disabled=["etcd-metastore"]).open_metastore("etcd://one")


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Metastore]:
    metastore = Registry().open_metastore(url)
    try:
        yield metastore
    finally:
        await metastore.aclose()


async def test_absent_server_may_be_awaited() -> None:
    with socket.socket() as taken:  # nobody listens there
        taken.bind(("127.0.0.1", 0))
        url = f"etcd://127.0.0.1:{taken.getsockname()[1]}/a?request_timeout_s=1"
        await check_metastore_outage(lambda: opened(url))
