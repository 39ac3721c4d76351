"""A checker of histories of a replicated dict of lists: strict serializability, by the lists themselves.

It knows nothing of replog. Each transaction appends one value, which is unique, to the lists of some keys, and is told these
lists; or it reads lists of several keys. So every list that anybody saw says in which order transactions took effect on its key.
As in Elle (Kingsbury and Alvaro, 2020), these orders, and which transaction ended before which one began, are the edges of a
graph: a cycle in it is an anomaly, and without one there is an order of all transactions that explains everything that was seen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import attrs

Lists = Mapping[str, Sequence[int]]


@attrs.frozen
class Transaction:
    """What one caller asked for, and what it was told.

    `value` is None for a read. `seen` has the lists of its keys behind it; None if the caller was never told the outcome. The
    times are of one clock, in s; `ended_s` is infinite without an answer."""

    keys: tuple[str, ...]
    value: int | None
    began_s: float
    ended_s: float = math.inf
    seen: tuple[tuple[int, ...], ...] | None = None


def violations(transactions: Sequence[Transaction], final: Lists) -> list[str]:
    """What is wrong with a history that ended with these lists; nothing if it is strictly serializable, and each append that
    was answered was applied once, each other one at most once."""
    found = [*_repeated(final), *_lost(transactions, final), *_not_prefixes(transactions, final)]
    # Without an order of each list there is no graph.
    return found or _cycle(transactions, final)


def _repeated(final: Lists) -> Iterable[str]:
    for key, values in final.items():
        if len(set(values)) != len(values):
            twice = sorted(value for value in set(values) if values.count(value) > 1)
            yield f"key {key}: applied more than once: {twice}"


def _lost(transactions: Sequence[Transaction], final: Lists) -> Iterable[str]:
    asked = {}
    for each in transactions:
        if each.value is None:
            continue
        asked[each.value] = each
        holding = [each.value in final.get(key, ()) for key in each.keys]
        if each.seen is not None and not all(holding):
            yield f"value {each.value} of keys {each.keys} was answered, and is gone"
        if any(holding) and not all(holding):
            yield f"value {each.value} is in some lists of {each.keys} only"
    for key, values in final.items():
        strangers = [value for value in values if value not in asked or key not in asked[value].keys]
        if strangers:
            yield f"key {key}: nobody appended {strangers}"


def _not_prefixes(transactions: Sequence[Transaction], final: Lists) -> Iterable[str]:
    for each in transactions:
        for key, seen in zip(each.keys, each.seen or (), strict=each.seen is not None):
            if tuple(final.get(key, ())[: len(seen)]) != seen:
                yield f"key {key}: a caller saw {seen}, which the final list does not begin with"
            elif each.value is not None and (not seen or seen[-1] != each.value):
                yield f"key {key}: the append of {each.value} was told a list that does not end with it"


class _Order:
    """What must come before what. Nodes are transactions that took effect, by number, and moments at which some ended, by
    negative number."""

    def __init__(self, transactions: Sequence[Transaction], final: Lists) -> None:
        self.after: dict[int, set[int]] = {}
        self._transactions = transactions
        self._final = final
        self._writer = {each.value: number for number, each in enumerate(transactions) if each.value is not None}
        answered = {number for number, each in enumerate(transactions) if each.seen is not None}
        self.nodes = answered | {self._writer[value] for values in final.values() for value in values}
        self._order_by_lists()
        self._order_by_time(answered)

    def _edge(self, one: int, other: int) -> None:
        if one != other:
            self.after.setdefault(one, set()).add(other)

    def _order_by_lists(self) -> None:
        writer = self._writer
        for values in self._final.values():
            for one, other in itertools.pairwise(values):
                self._edge(writer[one], writer[other])
        for number, each in enumerate(self._transactions):
            if each.value is None and each.seen is not None:
                for key, seen in zip(each.keys, each.seen, strict=True):
                    later = self._final.get(key, ())[len(seen) :]
                    if seen:
                        self._edge(writer[seen[-1]], number)
                    if later:
                        self._edge(number, writer[later[0]])

    def _order_by_time(self, answered: Iterable[int]) -> None:
        """Each end is a moment; a transaction comes after the last moment before it began."""
        ends = sorted((self._transactions[number].ended_s, number) for number in answered)
        for place, (_, number) in enumerate(ends):
            self._edge(number, -place - 1)
            if place:
                self._edge(-place, -place - 1)
        place = 0
        for began_s, number in sorted((self._transactions[number].began_s, number) for number in self.nodes):
            while place < len(ends) and ends[place][0] < began_s:
                place += 1
            if place:
                self._edge(-place, number)


def _cycle(transactions: Sequence[Transaction], final: Lists) -> list[str]:
    order = _Order(transactions, final)
    stuck = _left_of_sorting(order.after, order.nodes)
    if not stuck:
        return []
    shown = [transactions[number] for number in sorted(stuck) if number >= 0][:6]
    return [f"no order of {len(stuck)} transactions explains what was seen; some of them: {shown}"]


def _left_of_sorting(after: Mapping[int, set[int]], nodes: Iterable[int]) -> set[int]:
    """The nodes that no topological order reaches: those in cycles, and behind them."""
    waiting: dict[int, int] = dict.fromkeys(nodes, 0)
    for one, others in after.items():
        waiting.setdefault(one, 0)
        for other in others:
            waiting[other] = waiting.get(other, 0) + 1
    free = [node for node, count in waiting.items() if not count]
    while free:
        node = free.pop()
        del waiting[node]
        for other in after.get(node, ()):
            waiting[other] -= 1
            if not waiting[other]:
                free.append(other)
    return set(waiting)
