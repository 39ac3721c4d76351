"""Who may introduce themselves when: pure, so without a network or a clock."""

from __future__ import annotations

import pytest

from replog.transports.tcp.handshakes import Handshakes

ONE, OTHER = "192.0.2.1", "192.0.2.2"


def test_failures_run_out_one_each_second() -> None:
    hosts = Handshakes(64, failures_max=3)
    for now_s in (10.0, 10.1, 10.2):
        assert not hosts.refusal(ONE, now_s)
        hosts.failed(ONE, now_s)
    assert "too many handshakes from this host have failed" in hosts.refusal(ONE, 10.3)
    assert not hosts.refusal(OTHER, 10.3)
    assert hosts.refusal(ONE, 10.9)
    assert not hosts.refusal(ONE, 11.1)  # for one more
    hosts.failed(ONE, 11.1)
    assert hosts.refusal(ONE, 11.2)
    assert not hosts.refusal(ONE, 100.0)


@pytest.mark.parametrize(("handshakes_max", "share"), [(1, 1), (2, 1), (8, 4), (9, 4)])
def test_a_host_gets_half(handshakes_max: int, share: int) -> None:
    hosts = Handshakes(handshakes_max, 20)
    for _ in range(share):
        assert not hosts.refusal(ONE, 0.0)
        hosts.begun(ONE)
    assert "are introducing themselves" in hosts.refusal(ONE, 0.0)
    assert bool(hosts.refusal(OTHER, 0.0)) is (handshakes_max == 1)
    hosts.ended(ONE)
    assert not hosts.refusal(ONE, 0.0)


def test_all_together_are_bounded() -> None:
    hosts = Handshakes(4, 20)
    for host in (ONE, ONE, OTHER, OTHER):
        hosts.begun(host)
    assert hosts.refusal("192.0.2.3", 0.0)
    hosts.ended(OTHER)
    assert not hosts.refusal("192.0.2.3", 0.0)


def test_one_address_of_an_ipv6_network_stands_for_all() -> None:
    hosts = Handshakes(64, failures_max=1)
    hosts.failed("2001:db8::1", 0.0)
    assert hosts.refusal("2001:db8::ffff:2", 0.0)
    assert not hosts.refusal("2001:db8:0:1::1", 0.0)
    hosts.failed("::ffff:192.0.2.1", 0.0)  # IPv4, seen through IPv6: each host for itself
    assert not hosts.refusal("::ffff:192.0.2.2", 0.0)
    hosts.failed("fe80::1%eth0", 0.0)
    assert hosts.refusal("fe80::2%eth0", 0.0)


def test_memory_of_hosts_is_bounded() -> None:
    hosts = Handshakes(64, failures_max=1)
    for number in range(10_000):
        hosts.failed(f"10.0.{number >> 8}.{number & 255}", 0.0)
        hosts.begun(f"10.1.{number >> 8}.{number & 255}")
        hosts.ended(f"10.1.{number >> 8}.{number & 255}")
    assert len(hosts._failures) == 4096
    assert not hosts._under_way
    assert not hosts.refusal("10.0.0.0", 0.0)
    assert hosts.refusal("10.0.39.15", 0.0)
