"""The options of ZooKeeper, and its address."""

from __future__ import annotations

import re

import attrs

from replog.errors import ConfigError
from replog.metastores.options import MetastoreOptions
from replog.runtime.tls import TlsOptions

DEFAULT_PORT = 2181
LAYOUTS = ("hierarchical", "flat")
MECHANISMS = ("sasl", "digest")
ACLS = ("open", "creator", "readable")


@attrs.frozen(kw_only=True)
class ZooKeeperOptions(MetastoreOptions, TlsOptions):
    """Options of the scheme `zookeeper`, as in `zookeeper://zk1,zk2,zk3/prod?lease_s=6`, and those of `MetastoreOptions` and
    `TlsOptions`. `lease_s` is ZooKeeper's session timeout, for which servers have bounds of their own; `timeout_s` includes
    the wait for a connection.

    Layout. `layout`: hierarchical (at most 10 000 ledgers in a directory), or flat (all in one; deprecated). A chroot keeps
    the one it was begun with.

    Security. TLS is spoken when `tls` is yes or one of its files is given. `user` and `password_file`, whose content is the
    password, are this side's credentials. `mechanism`: sasl proves them by SASL DIGEST-MD5, digest by ZooKeeper's own scheme
    of that name. `acl`: the rights on nodes made by this client: open (all rights for everybody), creator (only with
    these credentials), readable (all rights with these, reading for everybody).
    """

    layout: str = "hierarchical"
    acl: str = "open"
    user: str = ""
    password_file: str = ""
    mechanism: str = "sasl"

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.layout not in LAYOUTS:
            raise ConfigError(f"layout={self.layout}: one of {', '.join(LAYOUTS)}")
        if self.acl not in ACLS:
            raise ConfigError(f"acl={self.acl}: one of {', '.join(ACLS)}")
        self._check_security()

    def _check_security(self) -> None:
        self.check_tls()
        if bool(self.user) != bool(self.password_file):
            raise ConfigError("user and password_file: both or none")
        if self.mechanism not in MECHANISMS:
            raise ConfigError(f"mechanism={self.mechanism}: one of {', '.join(MECHANISMS)}")
        if self.mechanism == "digest" and ":" in self.user:
            raise ConfigError(f"user={self.user}: it may have no colon")
        if self.acl != "open" and not (self.user or self.tls_certificate_file):
            raise ConfigError(f"acl={self.acl} needs your identity: user or tls_certificate_file")


@attrs.frozen
class Place:
    """Servers as (host, port), and the path below which everything stands: "" for the root, or "/a/b"."""

    servers: tuple[tuple[str, int], ...]
    chroot: str = ""

    def __str__(self) -> str:
        names = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.servers)
        return f"zookeeper://{','.join(names)}{self.chroot}"


_SERVER = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\s:@\[\]/?#,]+))(?::(?P<port>\d{1,5}))?", re.ASCII)
_CHROOT_BYTES_MAX = 400


def parse_place(rest: str) -> Place:
    """Reads "HOST:PORT,HOST:PORT/CHROOT". Raises `ConfigError`."""
    hosts, _, path = rest.partition("/")
    # URLs are printed in errors, logs and lists of processes.
    if "@" in hosts:
        raise ConfigError("zookeeper: no user or password in a URL; use user and password_file")
    servers = []
    for text in hosts.split(","):
        match = _SERVER.fullmatch(text.strip())
        port = int(match["port"] or DEFAULT_PORT) if match else 0
        if match is None or not 0 < port < 65536:
            raise ConfigError(
                f"zookeeper:{rest}: {text!r} is not a server: expected HOST or HOST:PORT, an IPv6 address in brackets"
            )
        servers.append((match["v6"] or match["host"], port))
    words = [word for word in path.split("/") if word]
    for word in words:
        # `/zookeeper` is where ZooKeeper has its own configuration and quotas.
        if not re.fullmatch(r"[!-.0-~]+", word) or not word.strip(".") or words[0] == "zookeeper":
            raise ConfigError(
                f"zookeeper:{rest}: /{path} is not a valid chroot: words of ASCII, not of dots, not /zookeeper"
            )
    chroot = "".join(f"/{word}" for word in words)
    if len(chroot) > _CHROOT_BYTES_MAX:
        raise ConfigError(f"zookeeper: the chroot has {len(chroot)} bytes; {_CHROOT_BYTES_MAX} are allowed")
    return Place(tuple(servers), chroot)
