"""TLS, and users and their passwords: against servers that ask for them."""

import os
from pathlib import Path

import attrs
import pytest
import trio
import trustme
from etcd_servers import StartStore, Store

from replog.errors import ConfigError
from replog.registry import Registry
from replog_etcd.errors import EtcdRefusedError, EtcdUnreachableError
from replog_etcd.metastore import EtcdMetastore


@attrs.frozen
class Files:
    """In PEM."""

    authority: str
    other_authority: str
    server: tuple[str, str]
    client: tuple[str, str]
    stranger: tuple[str, str]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    directory = tmp_path_factory.mktemp("certificates")

    def issue(authority: trustme.CA, host: str, name: str) -> tuple[str, str]:
        issued = authority.issue_cert(host)
        certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
        issued.cert_chain_pems[0].write_to_path(str(certificate))
        issued.private_key_pem.write_to_path(str(key))
        return str(certificate), str(key)

    def trust(authority: trustme.CA, name: str) -> str:
        authority.cert_pem.write_to_path(str(directory / name))
        return str(directory / name)

    ours, theirs = trustme.CA(), trustme.CA()
    return Files(
        trust(ours, "ours.pem"),
        trust(theirs, "theirs.pem"),
        issue(ours, "127.0.0.1", "server"),
        issue(ours, "client.example", "client"),
        issue(theirs, "client.example", "stranger"),
    )


async def test_tls_with_certificates_on_both_sides(start_store: StartStore, files: Files) -> None:
    certificate, key = files.server
    options = (
        "--cert-file",
        certificate,
        "--key-file",
        key,
        "--client-cert-auth",
        "--trusted-ca-file",
        files.authority,
    )
    store = start_store(1, *options, scheme="https")
    ours = {
        "tls_ca_file": files.authority,
        "tls_certificate_file": files.client[0],
        "tls_key_file": files.client[1],
    }
    await check_refusals(store, files, ours)
    async with store.client(**ours) as metastore:
        async with metastore.announce("bookies/one", b"here"), metastore.elect("elections/log", b"here"):
            assert await metastore.announced("bookies") == {"one": b"here"}
            await wait_for_each_other(metastore)
        (idle,) = metastore._gateway._connections._idle.values()
        connection = idle[-1]
        for _ in range(3):
            assert await metastore.children("nothing") == []
        assert idle[-1] is connection  # no new handshake for each call
        version = await metastore.create("large", os.urandom(900_000))
        await metastore.put("large", bytes(900_000), version)
        assert (await metastore.get("large")).value == bytes(900_000)


async def wait_for_each_other(metastore: EtcdMetastore) -> None:
    """By watches: each waits for the other's key."""

    async def answer() -> None:
        await metastore.wait_changed("question", None)
        await metastore.create("answer", b"")

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            nursery.start_soon(metastore.wait_children_changed, "answer", [])
            nursery.start_soon(metastore.wait_changed, "answer", None)
            await metastore.create("question", b"")
            await metastore.create("answer/below", b"")


async def check_refusals(store: Store, files: Files, ours: dict[str, str]) -> None:
    refused = [
        ({"tls_ca_file": files.other_authority}, "certificate verify failed"),
        ({"tls_hostname": "elsewhere.example"}, "Hostname mismatch"),
        ({"tls_certificate_file": files.stranger[0], "tls_key_file": files.stranger[1]}, "certificate"),
        ({"tls_certificate_file": "", "tls_key_file": ""}, "certificate"),
    ]
    for options, told in refused:
        async with store.client(**{**ours, **options}) as metastore:
            with pytest.raises(EtcdUnreachableError, match=told):
                await metastore.get("a")
    async with store.client(**{**ours, "tls_hostname": "elsewhere.example"}, tls_check_hostname=False) as metastore:
        assert await metastore.children("a") == []
    async with store.client() as metastore:  # without TLS
        with pytest.raises((EtcdUnreachableError, EtcdRefusedError)):
            await metastore.get("a")


async def test_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "broken.pem").write_text("nothing")
    for path in (tmp_path / "missing.pem", tmp_path / "broken.pem"):
        metastore = Registry().open_metastore(f"etcd://127.0.0.1/a?tls_ca_file={path}")
        with pytest.raises(ConfigError, match=path.name):
            await metastore.get("a")
    metastore = Registry().open_metastore(f"etcd://127.0.0.1/a?user=me&password_file={tmp_path / 'missing'}")
    with pytest.raises(ConfigError, match="password of 'me'"):
        await metastore.get("a")


async def enable_authentication(metastore: EtcdMetastore) -> None:
    """The users root and replog; replog may use the prefix /own/ only."""

    async def call(path: str, **message: object) -> None:
        await metastore._gateway.call(f"/v3/auth/{path}", message, what=path, is_change=True)

    permission = {"permType": "READWRITE", "key": "L293bi8=", "range_end": "L293bjA="}  # from /own/ to /own0
    await call("user/add", name="root", password="root's")
    await call("role/add", name="root")
    await call("user/grant", user="root", role="root")
    await call("user/add", name="replog", password="replog's")
    await call("role/add", name="replog")
    await call("role/grant", name="replog", perm=permission)
    await call("user/grant", user="replog", role="replog")
    await call("enable")


async def test_users_and_passwords(start_store: StartStore, tmp_path: Path) -> None:
    store = start_store(1, "--auth-token-ttl", "1", "--bcrypt-cost", "4")
    password = tmp_path / "password"
    password.write_text("replog's\n")
    named = {"user": "replog", "password_file": str(password)}
    async with store.client(**named) as metastore:
        with pytest.raises(EtcdRefusedError, match="leave out the options user"):
            await metastore.get("a")
    async with store.client() as metastore:
        await enable_authentication(metastore)
        with pytest.raises(EtcdRefusedError, match="give the options user and password_file"):
            await metastore.get("a")
    async with store.client(**named) as metastore:
        async with metastore.announce("bookies/one", b"here"), metastore.elect("elections/log", b"here"):
            assert await metastore.announced("bookies") == {"one": b"here"}
            await wait_for_each_other(metastore)
        await metastore.create("a", b"")
        (server,) = store.servers
        server.kill()
        await trio.to_thread.run_sync(server.start)  # it has forgotten all tokens
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(metastore.get, "a")
        await trio.sleep(2.5)  # the token expires
        version = (await metastore.get("a")).version
        await metastore.put("a", b"2", version)
        await metastore._gateway.call("/v3/maintenance/status", {}, what="status")
        elsewhere = metastore._layout
        metastore._layout = type(elsewhere)("elsewhere")
        with pytest.raises(EtcdRefusedError, match="permission denied"):
            await metastore.get("a")
        metastore._layout = elsewhere
    password.write_text("wrong\n")
    async with store.client(**named) as metastore:
        with pytest.raises(EtcdRefusedError, match=r"signing in.*authentication failed"):
            await metastore.get("a")
