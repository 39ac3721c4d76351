"""How long failing bookies are left alone."""

from __future__ import annotations

import random
from collections.abc import Callable

import trio
from hypothesis import given
from hypothesis import strategies as st

from replog.client.membership import Quarantine
from replog.runtime.entropy import Entropy, use_entropy


def in_trio(test: Callable[[], None]) -> None:
    """Where the jitter comes from belongs to a trio run. One for all examples: to begin one costs more than a test of it."""

    async def run() -> None:
        test()

    trio.run(run)


def held_until(quarantine: Quarantine, begin_s: float) -> float:
    """When it is let go, to a millisecond."""
    passed = 0
    while quarantine.holds("a", begin_s + passed / 1000):
        passed += 1
    return begin_s + passed / 1000


def test_quarantine_grows_to_a_bound_with_jitter() -> None:
    def run() -> None:
        ends = set()
        for _ in range(20):
            quarantine, now_s, ideal_s = Quarantine(1.0, 8.0), 100.0, 1.0
            assert not quarantine.holds("a", now_s)
            for _ in range(6):
                quarantine.failed("a", now_s)
                end_s = held_until(quarantine, now_s)
                assert 0.8 * ideal_s <= end_s - now_s <= ideal_s + 0.001
                assert not quarantine.holds("b", now_s)
                now_s, ideal_s = end_s, min(2 * ideal_s, 8.0)
            ends.add(now_s)
        assert len(ends) > 10

    in_trio(run)


def test_a_failure_during_quarantine_counts_as_the_same() -> None:
    def run() -> None:
        quarantine = Quarantine(1.0, 8.0)
        quarantine.failed("a", 0.0)
        end_s = held_until(quarantine, 0.0)
        for _ in range(100):
            quarantine.failed("a", 0.5)
        assert held_until(quarantine, 0.0) == end_s

    in_trio(run)


def test_quarantine_starts_short_after_a_success_or_a_long_calm() -> None:
    def run() -> None:
        for ends_well in (False, True):
            quarantine, now_s = Quarantine(1.0, 64.0), 0.0
            for _ in range(5):
                quarantine.failed("a", now_s)
                now_s = held_until(quarantine, now_s)
            if ends_well:
                quarantine.succeeded("a")
            else:
                now_s += 5 * 16
            quarantine.failed("a", now_s)
            assert held_until(quarantine, now_s) - now_s <= 1.001

    in_trio(run)


def test_no_bookie_is_held_longer_than_the_longest_time() -> None:
    @given(
        st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 50), st.booleans()), max_size=30),
        st.floats(0.01, 10),
        st.floats(1, 100),
        st.integers(0, 1 << 32),
    )
    def run(events: list[tuple[str, float, bool]], shortest_s: float, factor: float, seed: int) -> None:
        use_entropy(Entropy(random.Random(seed)))  # an example that fails once fails again
        quarantine, now_s = Quarantine(shortest_s, shortest_s * factor), 0.0
        failed_at_s: dict[str, float] = {}
        for bookie_id, pause_s, works in events:
            now_s += pause_s
            if works:
                quarantine.succeeded(bookie_id)
                failed_at_s.pop(bookie_id, None)
            else:
                if not quarantine.holds(bookie_id, now_s):
                    failed_at_s[bookie_id] = now_s
                quarantine.failed(bookie_id, now_s)
                assert quarantine.holds(bookie_id, now_s)
            for name in "ab":
                since_s = failed_at_s.get(name)
                if since_s is None or now_s > since_s + shortest_s * factor:
                    assert not quarantine.holds(name, now_s)
                elif now_s < since_s + 0.79 * shortest_s:
                    assert quarantine.holds(name, now_s)

    in_trio(run)
