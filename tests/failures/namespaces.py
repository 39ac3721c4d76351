"""Network namespaces: one for each process, joined by a bridge in a namespace of its own. Needs root, and a kernel that lets it.

Nothing here touches the network of the machine: all of it is in namespaces, whose names begin with this process's id.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

_NETWORK = "10.199.0"
_COMMAND_S = 20.0
_NOBODY = "02:00:00:00:00:00"  # a hardware address that no host has
_NETWORKS = 0x40000000  # CLONE_NEWNET


class ForbiddenError(Exception):
    """The kernel, or whoever runs this, does not let us."""


def run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    except OSError as error:
        raise ForbiddenError(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        raise ForbiddenError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


class Host:
    """A namespace with an address of its own: a host, as far as its processes can see."""

    def __init__(self, network: Network, number: int) -> None:
        self.name = f"{network.name}-{number}"
        self.address = f"{_NETWORK}.{number}"
        self._network = network
        self._port = f"port{number}"

    @property
    def prefix(self) -> Sequence[str]:
        """What comes before a command that is to run here."""
        return ("ip", "netns", "exec", self.name)

    def enter(self) -> None:
        """This thread, and all threads and processes that it starts, are here from now on. It can't be undone: threads that are
        kept for later use would stay here."""
        with Path(f"/run/netns/{self.name}").open() as place:
            if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), _NETWORKS):
                raise ForbiddenError(f"setns: {os.strerror(ctypes.get_errno())}")

    def connect(self) -> None:
        inside = ["ip", "-n", self.name]
        run(
            "ip",
            "-n",
            self._network.name,
            "link",
            "add",
            self._port,
            "type",
            "veth",
            "peer",
            "eth0",
            "netns",
            self.name,
        )
        run("ip", "-n", self._network.name, "link", "set", self._port, "master", "bridge", "up")
        run(*inside, "address", "add", f"{self.address}/24", "dev", "eth0")
        run(*inside, "link", "set", "eth0", "up")
        run(*inside, "link", "set", "lo", "up")

    def cut_off(self) -> None:
        """Nothing comes here or leaves, and nobody is told."""
        run("ip", "-n", self._network.name, "link", "set", self._port, "down")

    def join(self) -> None:
        """The end of `cut_off`."""
        run("ip", "-n", self._network.name, "link", "set", self._port, "up")

    def never_answers(self, other: Host) -> None:
        """What this host sends to the other one vanishes, and nobody is told; what it is sent by it arrives."""
        neighbour = [other.address, "lladdr", _NOBODY, "dev", "eth0", "nud", "permanent"]
        run("ip", "-n", self.name, "neighbour", "replace", *neighbour)

    def answers(self, other: Host) -> None:
        """The end of `never_answers`."""
        run("ip", "-n", self.name, "neighbour", "del", other.address, "dev", "eth0")

    def lose(self) -> str:
        """Packets from here are lost from now on; returns how: by chance, or where the kernel can't, by a narrow path whose
        queue overflows."""
        device = ["tc", "-n", self.name, "qdisc", "replace", "dev", "eth0", "root"]
        try:
            run(*device, "netem", "loss", "5%", "delay", "2ms", "2ms")
            return "netem: 5% lost, delay 2 ms +- 2 ms"
        except ForbiddenError:
            run(*device, "tbf", "rate", "1mbit", "burst", "4kb", "limit", "6kb")
            return "no netem here: a path of 1 Mbit/s whose queue of 6 kB overflows"

    def lose_nothing(self) -> None:
        """The end of `lose`."""
        run("tc", "-n", self.name, "qdisc", "del", "dev", "eth0", "root")

    def lost_packets(self) -> int:
        """How many packets were lost since `lose`."""
        words = run("tc", "-n", self.name, "-s", "qdisc", "show", "dev", "eth0", "root").replace(",", "").split()
        return int(words[words.index("(dropped") + 1])


class Network:
    """The bridge, and who is joined to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.hosts: list[Host] = []


@contextmanager
def network(hosts: int) -> Iterator[Network]:
    """So many hosts that reach each other. Raises `ForbiddenError` if that may not be. All of it is gone afterwards."""
    made = Network(f"replog-{os.getpid()}")
    with ExitStack() as stack:

        def add_namespace(name: str) -> None:
            run("ip", "netns", "add", name)
            stack.callback(run, "ip", "netns", "del", name)

        add_namespace(made.name)
        run("ip", "-n", made.name, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", made.name, "link", "set", "bridge", "up")
        for number in range(1, hosts + 1):
            host = Host(made, number)
            add_namespace(host.name)
            host.connect()
            made.hosts.append(host)
        yield made
