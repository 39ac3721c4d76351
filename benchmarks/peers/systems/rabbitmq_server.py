"""RabbitMQ's servers: three Erlang nodes on the loopback, with a port mapper of their own.

A package that is only unpacked finds nothing by itself: the scripts have the places of an installation in them. So the Erlang
machine is started by its own program, with what `rabbitmq-server` would say to it. It starts no port mapper that outlives it
(`-start_epmd false`), and `erl_child_setup`, which it forks, ends when the pipe between them does.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers import programs
from tests.servers.processes import HOST, Server, free_port

_SETTINGS = """\
listeners.tcp.local = {host}:{port}
log.console = true
log.console.level = warning
log.file = false
cluster_formation.peer_discovery_backend = classic_config
"""
# Without asking the system, for which Erlang would start helpers that outlive it by seconds.
_NAMES = '{lookup, [file]}.\n{host, {127,0,0,1}, ["localhost"]}.\n'
# Schedulers that have nothing to do sleep at once: on a machine with more threads than processors it is the better choice.
_NO_BUSY_WAIT = ("+sbwt", "none", "+sbwtdcpu", "none", "+sbwtdio", "none")
_ALLOCATION = "+MBas ageffcbf +MHas ageffcbf +MBlmbcs 512 +MHlmbcs 512 +MMmcs 30"  # as rabbitmq-server has it


def erlang() -> Path | None:
    """The directory of Erlang that is used, which holds its `erts-VERSION`; None if there is none."""
    places = [programs.ROOT / "usr/lib/erlang", Path("/usr/lib/erlang"), Path("/usr/local/lib/erlang")]
    return next((place for place in places if list(place.glob("erts-*/bin/erlexec"))), None)


def home() -> Path | None:
    """The directory of RabbitMQ, which holds its `plugins`; None if there is none."""
    places = [programs.ROOT / "usr/lib/rabbitmq/lib", Path("/usr/lib/rabbitmq/lib")]
    return next((found for place in places for found in sorted(place.glob("rabbitmq_server-*"))), None)


class Cluster:
    """Three nodes and their port mapper."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ports = [free_port() for _ in range(3)]
        self._names = [f"node{number}-{os.getpid()}@localhost" for number in range(3)]
        self._cookie = secrets.token_hex(10)
        self._mapper_port = free_port()
        root, place = erlang(), home()
        assert root is not None
        assert place is not None
        self._root, self._home = root, place
        (binaries,) = root.glob("erts-*/bin")
        self._binaries = binaries
        mapper = [str(binaries / "epmd"), "-address", HOST, "-port", str(self._mapper_port)]
        self.mapper = Server("epmd", mapper, directory, programs.environment())
        self.servers = [self._server(number) for number in range(3)]

    def _server(self, number: int) -> Server:
        place = self.directory / f"rabbitmq-{number}"
        place.mkdir()
        cookie = place / ".erlang.cookie"
        cookie.write_text(self._cookie)
        cookie.chmod(0o400)
        (place / "inetrc").write_text(_NAMES)
        (place / "enabled_plugins").write_text("[].\n")
        settings = [_SETTINGS.format(host=HOST, port=self.ports[number])]
        settings += [
            f"cluster_formation.classic_config.nodes.{each} = {name}\n" for each, name in enumerate(self._names, 1)
        ]
        (place / "rabbitmq.conf").write_text("".join(settings))
        return Server(f"rabbitmq-{number}", self._command(), place, self._environment(number, place))

    def _command(self) -> Sequence[str]:
        return [
            str(self._binaries / "erlexec"),
            *("-pa", "", "-noinput", "-s", "rabbit", "boot", "-boot", "start_sasl"),
            *("-start_epmd", "false", "+W", "w", *_NO_BUSY_WAIT, *_ALLOCATION.split()),
            *("-syslog", "logger", "[]", "-syslog", "syslog_error_logger", "false"),
            *("-kernel", "inet_dist_use_interface", "{127,0,0,1}"),
            *("-kernel", "prevent_overlapping_partitions", "false"),
        ]

    def _environment(self, number: int, place: Path) -> dict[str, str]:
        erlang_machine = {
            "ROOTDIR": str(self._root),
            "BINDIR": str(self._binaries),
            "EMU": "beam",
            "PROGNAME": "erl",
            "HOME": str(place),
            "ERL_INETRC": str(place / "inetrc"),
            "ERL_LIBS": str(self._home / "plugins"),
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": HOST,
        }
        broker = {
            "RABBITMQ_HOME": str(self._home),
            "RABBITMQ_NODENAME": self._names[number],
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_BASE": str(place),
            "RABBITMQ_MNESIA_BASE": str(place / "mnesia"),
            "RABBITMQ_LOG_BASE": str(place / "log"),
            "RABBITMQ_CONFIG_FILE": str(place / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(place / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(place / "enabled_plugins"),
            "RABBITMQ_PLUGINS_DIR": str(self._home / "plugins"),
            "RABBITMQ_PID_FILE": str(place / "pid"),
        }
        return {**programs.environment(), **erlang_machine, **broker}

    def launch(self) -> None:
        """Starts all that do not run."""
        for server in (self.mapper, *self.servers):
            if not server.is_running:
                server.launch()

    def kill(self) -> None:
        """All nodes. Idempotent."""
        for server in self.servers:
            server.kill()

    def stop(self) -> None:
        """All nodes, and the port mapper. Idempotent."""
        self.kill()
        self.mapper.kill()
