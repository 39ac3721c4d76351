"""How often a host may fail to introduce itself before it is not heard any more for a while."""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict

_NETWORKS_MAX = 4096  # of which something is known: the one that failed longest ago is forgotten first


class Handshakes:
    """Limits of handshakes, in total and per host. Pure: the caller passes the time.

    All handshakes together are bounded, and one host gets at most half of them: so a host that never finishes its own leaves
    room for others. Each host has a bucket of failures, which loses one a second. IPv6 hosts count by their network of 64 bits,
    because a host with one of its addresses usually has all of them.
    """

    def __init__(self, handshakes_max: int, failures_max: int) -> None:
        self._handshakes_max = handshakes_max
        self._share_max = max(1, handshakes_max // 2)
        self._failures_max = failures_max
        self._under_way: Counter[str] = Counter()
        self._failures: OrderedDict[str, tuple[float, float]] = OrderedDict()  # how many, at a time in seconds

    @property
    def under_way(self) -> int:
        """How many handshakes have begun and not ended."""
        return self._under_way.total()

    def refusal(self, host: str, now_s: float) -> str:
        """Why this host may not begin now, or ""."""
        network = _network(host)
        if self._level(network, now_s) > self._failures_max - 1:
            return "too many handshakes from this host have failed: wait some seconds, and look at the bookie's log"
        if self.under_way >= self._handshakes_max or self._under_way[network] >= self._share_max:
            return f"{self._under_way.total()} others are introducing themselves to this bookie: try again"
        return ""

    def begun(self, host: str) -> None:
        """This host has begun a handshake."""
        self._under_way[_network(host)] += 1

    def ended(self, host: str) -> None:
        """A handshake of this host has ended."""
        network = _network(host)
        self._under_way[network] -= 1
        if not self._under_way[network]:
            del self._under_way[network]

    def failed(self, host: str, now_s: float) -> None:
        """A handshake of this host has failed."""
        network = _network(host)
        self._failures[network] = (self._level(network, now_s) + 1, now_s)
        self._failures.move_to_end(network)
        if len(self._failures) > _NETWORKS_MAX:
            self._failures.popitem(last=False)

    def _level(self, network: str, now_s: float) -> float:
        level, at_s = self._failures.get(network, (0.0, now_s))
        return max(0.0, level - (now_s - at_s))


def _network(host: str) -> str:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    return host
