"""A whole cluster behind TLS and authentication: `replog.connect` to bookies that are served with `listen`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio

import replog
from replog.api import BookieConfig
from replog.config import BookieOptions, ClientOptions
from replog.errors import ConfigError, NotEnoughBookiesError, UnauthorizedError
from replog.metastores.memory import MemoryMetastore
from replog.registry import Registry
from tests.authentication.files import CLIENT_SECRET, OTHER_SECRET, secrets_file
from tests.transports.tcp.credentials import Authority


class Secured:
    """Three bookies, and what a client needs to reach them."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory, "authority")
        self.directory = directory
        self.certificate = self.authority.sign("127.0.0.1")
        self.secrets = secrets_file(directory / "all.toml", app=CLIENT_SECRET)
        self.metastore = MemoryMetastore()

    def bookie_options(self, *, mutual: bool) -> BookieOptions:
        listen = f"tcp:127.0.0.1:0?tls_certificate_file={self.certificate}"
        return BookieOptions(
            storage="memory",
            listen=(listen + (f"&tls_ca_file={self.authority.file}" if mutual else ""),),
            authentication="tls:?clients=app" if mutual else f"secret:{self.secrets}",
        )

    @asynccontextmanager
    async def client(self, transport: str, authentication: str) -> AsyncIterator[replog.Client]:
        """A client that knows no shortcut to bookies of its own process."""
        registry = Registry(disabled=["memory-transport"], load_installed=False)
        options = ClientOptions(transports=(transport,), authentication=authentication, takeover_timeout_s=5.0)
        async with replog.connect(self.metastore, options=options, registry=registry) as client:
            yield client


@asynccontextmanager
async def cluster(directory: Path, *, mutual: bool = False) -> AsyncIterator[Secured]:
    secured = Secured(directory)
    async with AsyncExitStack() as bookies:
        for number in range(3):
            config = BookieConfig(
                directory=str(directory / f"bookie-{number}"),
                metastore=secured.metastore,
                options=secured.bookie_options(mutual=mutual),
            )
            await bookies.enter_async_context(replog.serve_bookie(config))
        yield secured


async def works(client: replog.Client) -> None:
    with trio.fail_after(20):
        async with client.write_log("orders", password=b"open sesame") as log:
            for number in range(20):
                await log.append(b"%d" % number)
        async with client.read_log("orders", password=b"open sesame") as reader:
            assert [record.data async for record in reader] == [b"%d" % number for number in range(20)]
        with pytest.raises(UnauthorizedError):
            async with client.write_log("orders", password=b"guessed"):
                pass


async def test_a_log_by_tls_and_a_shared_secret(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path) as secured,
        secured.client(f"tcp:?tls_ca_file={secured.authority.file}", f"secret:{secured.secrets}") as client,
    ):
        await works(client)


async def test_a_log_by_mutual_tls(tmp_path: Path) -> None:
    async with cluster(tmp_path, mutual=True) as secured:
        certificate = secured.authority.sign("app.example", common_name="app")
        files = f"tls_ca_file={secured.authority.file}&tls_certificate_file={certificate}"
        async with secured.client(f"tcp:?{files}", "tls") as client:
            await works(client)


@pytest.mark.parametrize("fault", ["clear", "secret", "nobody", "authority"])
async def test_refused_client_learns_the_reason(tmp_path: Path, fault: str) -> None:
    async with cluster(tmp_path) as secured:
        wrong = secrets_file(tmp_path / "wrong.toml", app=OTHER_SECRET)
        others = Authority(tmp_path, "others")
        trusting, proving = f"tcp:?tls_ca_file={secured.authority.file}", f"secret:{secured.secrets}"
        transport, authentication, told = {
            "clear": ("tcp", proving, "this bookie speaks TLS only"),
            "secret": (trusting, f"secret:{wrong}", "has another secret here"),
            "nobody": (trusting, "none", "asks for authentication by 'secret'"),
            "authority": (f"tcp:?tls_ca_file={others.file}", proving, "not signed by an authority"),
        }[fault]
        async with secured.client(transport, authentication) as client:
            for _ in range(2):  # then they are left alone for a while
                with pytest.raises(NotEnoughBookiesError, match=told):
                    async with client.write_log("orders"):
                        pass


async def test_unusable_client_files_are_an_error_at_once(tmp_path: Path) -> None:
    options = ClientOptions(transports=(f"tcp:?tls_ca_file={tmp_path / 'missing.pem'}",))
    with pytest.raises(ConfigError, match=r"missing\.pem: No such file"):
        async with replog.connect(MemoryMetastore(), options=options):
            pass
