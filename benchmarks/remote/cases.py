"""What is measured with three bookie processes on loopback, and what is compared with what."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import trustme

from benchmarks import loads, raw
from benchmarks.figures import percentiles
from benchmarks.remote.loads import append_to_ledgers, push_in_flight
from benchmarks.remote.place import Kind
from benchmarks.setting import KIB, Comparison, Round, Setting

_LEDGERS = 100
_SLOW_SYNC_S = 0.005


def _tls(setting: Setting) -> Kind:
    path = setting.remote.directory / "bookies.pem"
    if not path.exists():
        authority = trustme.CA()
        certificate = authority.issue_cert("127.0.0.1")
        pieces = (certificate.private_key_pem, *certificate.cert_chain_pems, authority.cert_pem)
        path.write_bytes(b"".join(each.bytes() for each in pieces))
    return Kind(certificate=path)


def push(setting: Setting, entry_bytes: int, in_flight: int, against: str) -> Round:
    """Entries by push_nowait."""
    place = setting.remote(Kind())
    return {
        "against": setting.against.measure(against, setting.seconds),
        "remote": loads.push(place, setting.seconds, entry_bytes, in_flight),
    }


def extend(setting: Setting) -> Round:
    """100 B entries by extend of 1000, 10 000 in flight."""
    place = setting.remote(Kind())
    return {
        "against": setting.against.measure("extend-10000-100", setting.seconds),
        "remote": loads.extend(place, setting.seconds, 100, entries_per_call=1000, calls=10),
    }


def latency(setting: Setting) -> Round:
    """One append of 1 KiB in flight, next to the disk alone."""
    raw_for = partial(raw.raw_fdatasync, setting.directory)
    found = {"against": setting.against.measure("append-1", setting.seconds)}
    for name, kind in (("plain", Kind()), ("nearby", Kind(nearby=True)), ("tls", _tls(setting))):
        slices = loads.append_beside(setting.remote(kind), setting.seconds, [os.urandom(KIB)], raw_for)
        found[f"{name} raw"] = percentiles([each for durations, _ in slices for each in durations])
        found[name] = percentiles([each for _, durations in slices for each in durations])
    return found


def ledgers(setting: Setting) -> Round:
    """100 B, one append in flight for each ledger: one ledger, and a hundred."""
    place = setting.remote(Kind())
    return {f"{count}": append_to_ledgers(place, setting.seconds, 100, count) for count in (1, _LEDGERS)}


def scan(setting: Setting) -> Round:
    """A closed log of 100 B entries, in batches of as many as those that it is compared with."""
    against = setting.against.measure("scan-100", setting.seconds)
    return {"against": against, **loads.scan(setting.remote(Kind()), setting.seconds, [100] * 2000)}


def slow_disk(setting: Setting) -> Round:
    """Disks that take 5 ms for each sync."""
    place = setting.remote(Kind(sync_s=_SLOW_SYNC_S))
    return {
        "alone": append_to_ledgers(place, setting.seconds, KIB, 1),
        "many": push_in_flight(place, setting.seconds, KIB, 10_000),
        "disk": {"p50_us": _SLOW_SYNC_S * 1e6, "batches_in_flight_max": 1.0},
    }


def tls(setting: Setting) -> Round:
    """1 KiB entries by push_nowait, 1000 in flight: without TLS and with it."""
    return {
        name: loads.push(setting.remote(kind), setting.seconds, KIB, in_flight=1000)
        for name, kind in (("plain", Kind()), ("tls", _tls(setting)))
    }


CASES: dict[str, Callable[[Setting], Round]] = {
    "remote-push-1k": partial(push, entry_bytes=KIB, in_flight=1000, against="append-1000-1k"),
    "remote-push-100": partial(push, entry_bytes=100, in_flight=1000, against="append-1000-100"),
    "remote-extend": extend,
    "remote-push-64k": partial(push, entry_bytes=64 * KIB, in_flight=200, against="append-200-64k"),
    "remote-latency": latency,
    "remote-ledgers": ledgers,
    "remote-scan": scan,
    "remote-slow-disk": slow_disk,
    "remote-tls": tls,
}


def _rate(case: str, title: str, measured: str, against: str, goal: float | None) -> Comparison:
    return Comparison(case, title, measured, against, "entries_per_s", "entries_per_s", "entries/s", goal)


def _cpu(case: str, measured: str, against: str, goal: float | None) -> Comparison:
    title = "  its CPU for an entry, all processes"
    return Comparison(case, title, measured, against, "total_cpu_us", "total_cpu_us", "us of CPU", goal, at_least=False)


def _time(case: str, title: str, measured: str, against: str, goal: float | None) -> Comparison:
    return Comparison(case, title, measured, against, "p50_us", "p50_us", "us", goal, at_least=False)


COMPARISONS = (
    _rate("remote-push-1k", "TCP, 1 KiB, push_nowait, 1000 in flight", "remote", "against", 0.60),
    _cpu("remote-push-1k", "remote", "against", 4.0 / 2.3),
    _rate("remote-push-100", "TCP, 100 B, push_nowait, 1000 in flight", "remote", "against", 0.60),
    _cpu("remote-push-100", "remote", "against", 2.0 / 1.4),
    _rate("remote-extend", "TCP, 100 B, extend of 1000", "remote", "against", 0.40),
    _cpu("remote-extend", "remote", "against", None),
    _rate("remote-push-64k", "TCP, 64 KiB, push_nowait, 200 in flight", "remote", "against", 0.50),
    _cpu("remote-push-64k", "remote", "against", None),
    _time("remote-latency", "TCP, append of 1 KiB, p50, in raw fdatasyncs", "plain", "plain raw", 4.0),
    _time("remote-latency", "  its p50 against the other's", "plain", "against", None),
    _time("remote-latency", "  the same by Unix sockets, as by default", "nearby", "nearby raw", None),
    _time("remote-latency", "  the same with TLS, in raw fdatasyncs", "tls", "tls raw", None),
    _rate("remote-ledgers", "TCP, 100 ledgers, an append in flight each", f"{_LEDGERS}", "1", 12.0),
    _cpu("remote-ledgers", f"{_LEDGERS}", "1", None),
    _rate("remote-scan", "TCP, scan, 100 B, batches to bytes", "bytes", "against", 0.50),
    _rate("remote-scan", "TCP, scan, 100 B, batches to Arrow", "arrow", "against", None),
    _time("remote-slow-disk", "TCP, 5 ms disks, append of 1 KiB, p50 in syncs", "alone", "disk", 1.2),
    Comparison(
        "remote-slow-disk",
        "  batches in flight, where many entries are",
        "many",
        "disk",
        "batches_in_flight_max",
        "batches_in_flight_max",
        "batches",
        3.0,
    ),
    _rate("remote-tls", "TCP, 1 KiB, push_nowait: TLS against none", "tls", "plain", None),
    _cpu("remote-tls", "tls", "plain", None),
)
