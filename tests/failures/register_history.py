"""A judge of histories of one versioned register: `create`, `get`, `put` and `delete` of many clients, some without an answer;
and of listings, which say whether the register was there.

It looks for an order of the calls that a single register would give the same answers in, and in which each call lies between its
beginning and its end (Herlihy and Wing, 1990; the search is Wing and Gong's with the memory of Lowe). A call whose outcome is
unknown may have happened at any time after its beginning, or never. It knows nothing of replog but these calls.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

import attrs


@attrs.frozen
class Call:
    """One call. `answer` is a version, `EXISTS`, `MISSING` or `CONFLICT`; None if it is unknown whether it happened."""

    what: str
    begun_s: float
    ended_s: float
    value: bytes = b""  # written, or read
    expected: int | None = None
    answer: int | str | None = None
    key: str = ""
    words: tuple[str, ...] = ()  # that `children` found below the key


EXISTS, MISSING, CONFLICT = "exists", "missing", "conflict"


@attrs.frozen
class _Register:
    """The state: `version` is None for one that nobody has seen yet, since the answer to its write was lost."""

    value: bytes
    version: int | None


State = _Register | None
_IMPOSSIBLE = "impossible"


def _after(state: State, call: Call) -> State | str:
    """The state behind this call, if a register in this state gives its answer."""
    match call.what:
        case "get":
            if state is None:
                return state if call.answer == MISSING else _IMPOSSIBLE
            return _seen(state, call.answer, call.value)
        case "create":
            if state is not None:
                return state if call.answer == EXISTS else _IMPOSSIBLE
            return _written(call) if call.answer is None or isinstance(call.answer, int) else _IMPOSSIBLE
        case "listed":
            return state if call.answer == (MISSING if state is None else EXISTS) else _IMPOSSIBLE
        case _:
            return _changed(state, call)


def _seen(state: _Register, version: int | str | None, value: bytes) -> State | str:
    if not isinstance(version, int) or value != state.value or state.version not in (None, version):
        return _IMPOSSIBLE
    return _Register(value, version)


def _written(call: Call) -> _Register:
    return _Register(call.value, call.answer if isinstance(call.answer, int) else None)


def _changed(state: State, call: Call) -> State | str:
    if state is None:
        return state if call.answer == MISSING else _IMPOSSIBLE
    may_match = call.expected is None or state.version in (None, call.expected)
    if call.answer == CONFLICT:
        # A version that nobody has seen may be any other one, too.
        return state if call.expected is not None and state.version != call.expected else _IMPOSSIBLE
    if call.answer in (EXISTS, MISSING) or not may_match:
        return _IMPOSSIBLE
    return None if call.what == "delete" else _written(call)


def by_register(calls: Iterable[Call], keys: Iterable[str]) -> Mapping[str, list[Call]]:
    """The calls of each of these registers. Each listing is one `listed` of every register: whether all of them are of one moment
    is not judged."""
    found: defaultdict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if call.what != "children":
            found[call.key].append(call)
            continue
        for key in keys:
            answer = EXISTS if key.rpartition("/")[2] in call.words else MISSING
            found[key].append(attrs.evolve(call, what="listed", answer=answer, key=key))
    return found


def violation(calls: list[Call]) -> str:
    """What no order explains; "" if there is one."""
    ordered = sorted(calls, key=lambda each: each.begun_s)
    ends = [math.inf if each.answer is None else each.ended_s for each in ordered]
    certain = sum(1 << place for place, each in enumerate(ordered) if each.answer is not None)
    seen: set[tuple[int, State]] = set()
    stack: list[tuple[int, State]] = [(0, None)]
    furthest = 0
    while stack:
        done, state = stack.pop()
        if done & certain == certain:
            return ""
        if (done, state) in seen:
            continue
        seen.add((done, state))
        furthest = max(furthest, (done & certain).bit_count())
        # Only a call that has begun before all that are left have ended can be the next one.
        first_end = min(ends[place] for place in range(len(ordered)) if not done >> place & 1)
        for place, call in enumerate(ordered):
            if call.begun_s > first_end:
                break
            if not done >> place & 1:
                after = _after(state, call)
                if not isinstance(after, str):
                    stack.append((done | 1 << place, after))
    return f"no order explains more than {furthest} of {certain.bit_count()} answered calls"
