"""The contents of a URL: the servers, the prefix, and the options."""

from __future__ import annotations

import math
import re
from typing import Any

import attrs
from attrs.validators import ge, gt, lt

from replog.abc import check_key
from replog.errors import ConfigError, LocalProtocolError

DEFAULT_PORT = 2379
PREFIX_BYTES_MAX = 200  # with a key and etcd's own bytes this stays far below what a request may have

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")


_ABOVE_ZERO: Any = [gt(0), lt(math.inf)]
_AT_LEAST_ONE: Any = [ge(1), lt(math.inf)]


@attrs.frozen(kw_only=True)
class EtcdOptions:
    """Options of the scheme `etcd`.

    TLS. `tls_ca_file`: the servers' certificates must be signed by this authority (PEM). `tls_certificate_file` and
    `tls_key_file`: what this side shows (the key may stand in the certificate's file). `tls`: yes speaks TLS without an
    authority of one's own, and trusts what the system trusts; no speaks none, and then the files may not be given.
    `tls_check_hostname`: the certificate must be for the host that is connected to; `tls_hostname`: for this one instead.

    Credentials, if etcd requires them: `user`, and `password_file`, whose first line is the password.

    `request_timeout_s`: for each request and its answer, all attempts together. `lease_s`: what this process has announced
    vanishes so long after its death; etcd counts whole seconds, and takes no fewer than about two.
    `connections_max`: requests at a time, for which connections are kept; `watches_max`: waits that have a connection each,
    further ones look every half second. `watch_renewal_s`: a wait looks again so often, in case that its connection died
    unheard. `response_bytes_max`: of one answer; lists are asked for in parts, so this limits memory and not what can be read.
    """

    tls: bool | None = None
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    tls_ca_file: str = ""
    tls_check_hostname: bool = True
    tls_hostname: str = ""
    user: str = ""
    password_file: str = ""
    request_timeout_s: float = attrs.field(default=5.0, validator=_ABOVE_ZERO)
    lease_s: float = attrs.field(default=10.0, validator=_AT_LEAST_ONE)
    connections_max: int = attrs.field(default=16, validator=_AT_LEAST_ONE)
    watches_max: int = attrs.field(default=64, validator=_AT_LEAST_ONE)
    watch_renewal_s: float = attrs.field(default=15.0, validator=_ABOVE_ZERO)
    response_bytes_max: int = attrs.field(default=32 << 20, validator=_AT_LEAST_ONE)

    def __attrs_post_init__(self) -> None:
        files = [self.tls_certificate_file, self.tls_key_file, self.tls_ca_file]
        if self.tls is False and any(files):
            raise ValueError("tls is no, so tls_certificate_file, tls_key_file and tls_ca_file may not be given")
        if self.tls_key_file and not self.tls_certificate_file:
            raise ValueError("tls_key_file is the key of tls_certificate_file, which is missing")
        if bool(self.user) != bool(self.password_file):
            raise ValueError("user and password_file belong together: give both, or none")
        if self.response_bytes_max < 4 << 20:
            raise ValueError(
                f"response_bytes_max must be at least 4 MiB, so that one value fits, not {self.response_bytes_max}"
            )

    @property
    def speaks_tls(self) -> bool:
        """Whether connections are encrypted."""
        return bool(self.tls or self.tls_ca_file or self.tls_certificate_file)


@attrs.frozen
class Endpoint:
    """Where one server of the cluster listens for clients."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@attrs.frozen
class Target:
    """The servers of one cluster, in the order in which they are tried, and what all keys begin with: "" or words."""

    endpoints: tuple[Endpoint, ...]
    prefix: str = ""

    @classmethod
    def parse(cls, rest: str) -> Target:
        """Reads `host1:port,host2,host3/prefix`, the part behind `etcd://`. Raises `ConfigError`."""
        hosts, _, prefix = rest.removeprefix("//").partition("/")
        prefix = prefix.rstrip("/")
        if prefix:
            try:
                check_key(prefix)
            except LocalProtocolError as error:
                raise ConfigError(f"etcd://{rest}: the prefix: {error}") from error
            if len(prefix.encode()) > PREFIX_BYTES_MAX:
                raise ConfigError(f"etcd://{rest}: the prefix is longer than {PREFIX_BYTES_MAX} bytes")
        endpoints = tuple(_parse_endpoint(each.strip(), rest) for each in hosts.split(","))
        if len(set(endpoints)) != len(endpoints):
            raise ConfigError(f"etcd://{rest}: a server is named twice")
        return cls(endpoints, prefix)

    def __str__(self) -> str:
        hosts = ",".join(str(each) for each in self.endpoints)
        return f"etcd://{hosts}/{self.prefix}" if self.prefix else f"etcd://{hosts}"


def _parse_endpoint(text: str, rest: str) -> Endpoint:
    match = _HOST.fullmatch(text)
    port = int(match[3] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 65536:
        what = f"{text!r} is not a server: one looks like host, host:2379 or [address]:2379"
        hint = "; user and password are options, user and password_file" if "@" in text else ""
        raise ConfigError(f"etcd://{rest}: {what}{hint}")
    return Endpoint(match[1] or match[2], port)
