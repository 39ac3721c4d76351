"""What can be set about ZooKeeper, and where it is."""

from __future__ import annotations

import re

import attrs

from replog.errors import ConfigError

DEFAULT_PORT = 2181
LAYOUTS = ("hierarchical", "flat")
ACLS = ("open", "creator", "readable")
IN_FLIGHT_BYTES_MIN = 2 << 20  # the largest request must fit


@attrs.frozen(kw_only=True)
class ZooKeeperOptions:
    """Options of the scheme `zookeeper`, as in `zookeeper://zk1,zk2,zk3/prod?session_timeout_s=6`.

    Waiting. `session_timeout_s`: the server takes a client that it has not heard of for so long for dead, and its
    announcements and candidacies with it; servers have bounds of their own for it. `connect_timeout_s`: for one attempt to
    reach one server. `request_timeout_s`: for one call, with all it takes, also the wait for a connection. A client has no
    more than `in_flight_bytes_max` on the way; further calls wait.

    Layout. `layout`: hierarchical (at most 10 000 ledgers in a directory), or flat (all in one; deprecated). A chroot keeps
    the one it was begun with.

    Security. TLS is on when `tls` is yes or one of its files is given: `tls_ca_file` is trusted instead of the system's
    authorities; `tls_certificate_file` and `tls_key_file` are what this side shows; `tls_check_hostname`: the certificate
    must be for the host that was named. `sasl_user`: authenticates by SASL DIGEST-MD5; the password is the content of
    `sasl_password_file`. `digest_user`, `digest_password_file`: the same for ZooKeeper's own scheme "digest". `acl`: who may
    do what with nodes made by this client: open (everybody everything), creator (only who has these credentials), readable
    (these everything, everybody may read).
    """

    session_timeout_s: float = 10.0
    connect_timeout_s: float = 5.0
    request_timeout_s: float = 10.0
    in_flight_bytes_max: int = 16 << 20
    layout: str = "hierarchical"
    acl: str = "open"
    tls: bool | None = None
    tls_ca_file: str = ""
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    tls_check_hostname: bool = True
    sasl_user: str = ""
    sasl_password_file: str = ""
    digest_user: str = ""
    digest_password_file: str = ""

    def __attrs_post_init__(self) -> None:
        for name in ("session_timeout_s", "connect_timeout_s", "request_timeout_s"):
            value = getattr(self, name)
            if not 0.001 <= value <= 86400:  # false for NaN, too
                raise ConfigError(f"{name}={value}: from 0.001 to 86400")
        if self.in_flight_bytes_max < IN_FLIGHT_BYTES_MIN:
            raise ConfigError(f"in_flight_bytes_max={self.in_flight_bytes_max}: at least {IN_FLIGHT_BYTES_MIN}")
        if self.layout not in LAYOUTS:
            raise ConfigError(f"layout={self.layout}: one of {', '.join(LAYOUTS)}")
        if self.acl not in ACLS:
            raise ConfigError(f"acl={self.acl}: one of {', '.join(ACLS)}")
        self._check_security()

    def _check_security(self) -> None:
        files = self.tls_ca_file or self.tls_certificate_file or self.tls_key_file
        if self.tls is False and files:
            raise ConfigError(f"tls=no, but there is {files}: leave one of them out")
        if self.tls_key_file and not self.tls_certificate_file:
            raise ConfigError(f"tls_key_file={self.tls_key_file} needs a tls_certificate_file")
        for scheme in ("sasl", "digest"):
            user, file = getattr(self, f"{scheme}_user"), getattr(self, f"{scheme}_password_file")
            if bool(user) != bool(file):
                raise ConfigError(f"{scheme}_user and {scheme}_password_file: both or none")
        if ":" in self.digest_user:
            raise ConfigError(f"digest_user={self.digest_user}: it may have no colon")
        if self.acl != "open" and not (self.sasl_user or self.digest_user or self.tls_certificate_file):
            raise ConfigError(f"acl={self.acl} needs your identity: sasl_user, digest_user or tls_certificate_file")

    @property
    def is_tls(self) -> bool:
        """Whether TLS is spoken."""
        return self.tls is True or bool(self.tls_ca_file or self.tls_certificate_file)


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
        raise ConfigError("zookeeper: no user or password in a URL; use sasl_user and sasl_password_file")
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
