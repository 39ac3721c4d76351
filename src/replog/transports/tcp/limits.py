"""How often a host may fail to introduce itself before it is not heard any more for a while."""

from __future__ import annotations

from collections import OrderedDict

_HOSTS_MAX = 4096  # of which something is known: the one that failed longest ago is forgotten first


class FailedHandshakes:
    """A bucket of so many failures for each host, from which one runs out each second. Pure: who asks says when."""

    def __init__(self, failures_max: int) -> None:
        self._failures_max = failures_max
        self._hosts: OrderedDict[str, tuple[float, float]] = OrderedDict()  # failures at a time in seconds

    def is_barred(self, host: str, now_s: float) -> bool:
        """Whether this host has used up its failures."""
        return self._level(host, now_s) > self._failures_max - 1

    def failed(self, host: str, now_s: float) -> None:
        """It failed once more."""
        self._hosts[host] = (self._level(host, now_s) + 1, now_s)
        self._hosts.move_to_end(host)
        if len(self._hosts) > _HOSTS_MAX:
            self._hosts.popitem(last=False)

    def _level(self, host: str, now_s: float) -> float:
        level, at_s = self._hosts.get(host, (0.0, now_s))
        return max(0.0, level - (now_s - at_s))
