"""TLS and SASL, against servers that ask for them."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
import trio

from replog.abc import Metastore
from replog.errors import MetastoreError, MetastoreUncertainError
from tests.metastores.zookeeper.opening import kazoo_threads_end, opened
from tests.servers.certificates import make_certificates
from tests.servers.fixtures import need
from tests.servers.zookeeper import Settings, missing, url, zookeeper_server

pytestmark = pytest.mark.needs_zookeeper


async def refused(store: Metastore, why: str) -> None:
    """Calls fail, and say why as soon as the first handshake has ended: on a busy machine not the first call."""
    with trio.fail_after(60):
        while True:
            with pytest.raises(MetastoreError) as caught:
                await store.get("a")
            if re.search(why, str(caught.value)):
                return


async def test_tls_proves_both_sides(tmp_path: Path) -> None:
    need(missing())
    files = make_certificates(tmp_path / "certificates")
    trusted = {"tls_ca_file": files.authority, "timeout_s": 5}
    client = {"tls_certificate_file": files.client_certificate, "tls_key_file": files.client_key}
    stranger = {"tls_certificate_file": files.stranger_certificate, "tls_key_file": files.stranger_key}
    async with zookeeper_server(tmp_path, Settings(tls=files.server)) as server:
        async with opened(server.url("/a", **trusted, **client)) as store:
            value = b"x" * 900_000
            version = await store.create("a", value)
            assert (await store.get("a")).value == value
            await store.put("a", b"", version)
            async with store.announce("b", b""):
                assert await store.children("b") == []
        short = {**trusted, "timeout_s": 1}
        for options in (short, {**short, **stranger}):
            async with opened(server.url("/a", **options)) as store:
                await refused(store, r"not connected: .*127")
        async with opened(server.url("/a", tls=True, timeout_s=1)) as store:  # the system's authorities
            await refused(store, "CERTIFICATE_VERIFY_FAILED")


async def test_certificate_must_match_the_named_host(tmp_path: Path) -> None:
    need(missing())
    files = make_certificates(tmp_path / "certificates", clients_need_certificate=False)
    async with zookeeper_server(tmp_path, Settings(tls=files.server)) as server:
        trusted = {"tls_ca_file": files.authority, "timeout_s": 5}
        async with opened(url(f"localhost:{server.secure_port}", "/a", **trusted)) as store:
            await store.create("a", b"")
        address = f"127.1:{server.secure_port}"  # the same host, under a name that the certificate does not have
        async with opened(url(address, "/a", **{**trusted, "timeout_s": 1})) as store:
            await refused(store, "Hostname mismatch")
        async with opened(url(address, "/a", tls_check_hostname=False, **trusted)) as store:
            assert (await store.get("a")).value == b""


async def test_sasl_admits_clients_with_the_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    need(missing())
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text("secret\n")
    bad.write_text("hunter2\n")
    async with zookeeper_server(tmp_path, Settings(users={"ann": "secret"})) as server:
        options = {"user": "ann", "acl": "creator"}
        async with opened(server.url("/a", password_file=good, **options)) as store:
            await store.create("a/b", b"mine")
            async with store.announce("here/me", b""):
                assert await store.announced("here") == {"me": b""}
        async with opened(server.url("/a")) as store:
            with pytest.raises(MetastoreError, match="does not allow it"):
                await store.get("a/b")
        with caplog.at_level(logging.DEBUG):
            async with opened(server.url("/a", password_file=bad, **options)) as store:
                started_s = trio.current_time()
                for _ in range(3):
                    with pytest.raises(MetastoreError, match=r"refused the credentials.*password_file") as raised:
                        await store.create("a/c", b"")
                    assert not isinstance(raised.value, MetastoreUncertainError)
                    assert "hunter2" not in str(raised.value)
                assert trio.current_time() - started_s < 30
                await kazoo_threads_end()
        assert "hunter2" not in caplog.text
        async with opened(server.url("/a", password_file=good, **options)) as store:
            assert await store.children("a") == ["b"]


async def test_server_requiring_authentication_is_reported(tmp_path: Path) -> None:
    need(missing())
    async with (
        zookeeper_server(tmp_path, Settings(users={"ann": "secret"}, only_users=True)) as server,
        opened(server.url("/a", timeout_s=2)) as store,
    ):
        with pytest.raises(MetastoreError, match="user"):
            await store.get("a")
