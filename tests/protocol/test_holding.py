"""A bookie's answer about its holdings: the requested range, in bounded pieces, and nothing impossible (F3)."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from replog.errors import RemoteProtocolError
from replog.protocol.answers import check_answer
from replog.protocol.holding import RANGES_MAX, Holding, decode_holding, encode_holding, hold
from replog.protocol.messages import RangesRequest, Response, Status


def asked(first: int, last: int) -> RangesRequest:
    return RangesRequest(1, 7, b"k" * 32, 1, first, last)


def entries(ranges: Iterable[tuple[int, int, int]]) -> set[int]:
    return {entry_id for first, last, stride in ranges for entry_id in range(first, last + 1, stride)}


@pytest.mark.parametrize("seed", range(30))
def test_answer_holds_the_requested_range(seed: int) -> None:
    chance = random.Random(seed)
    stride = chance.choice((1, 3, 5))
    firsts = chance.sample(range(300), chance.randrange(9))
    ranges = [(first, first + stride * chance.randrange(9), stride) for first in firsts]
    request = asked(first := chance.randrange(150), first + chance.randrange(150))
    holding = hold(ranges, Status.NO_ENTRY, request)
    wanted = {each for each in entries(ranges) if request.first_entry_id <= each <= request.last_entry_id}
    assert holding.through == request.last_entry_id
    assert entries(holding.ranges) == wanted
    assert decode_holding(encode_holding(holding), request) == holding


def test_too_many_ranges_come_in_pieces() -> None:
    ranges = [(3 * number, 3 * number + 1, 1) for number in range(2 * RANGES_MAX + 10)]
    found, first, pieces = set[int](), 0, 0
    while first <= 40_000:
        holding = hold(ranges, Status.NO_ENTRY, asked(first, 40_000))
        assert len(holding.ranges) <= RANGES_MAX
        assert first <= holding.through
        found |= entries(holding.ranges)
        first, pieces = holding.through + 1, pieces + 1
    assert pieces == 3
    assert found == entries(ranges)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "7",
        "{}",
        "[" * 100_000,
        '{"through":9,"denial":1}',
        '{"through":9,"denial":0,"ranges":[]}',
        '{"through":9,"denial":99,"ranges":[]}',
        '{"through":10,"denial":1,"ranges":[]}',
        '{"through":-1,"denial":1,"ranges":[]}',
        '{"through":true,"denial":1,"ranges":[]}',
        '{"through":"9","denial":1,"ranges":[]}',
        '{"through":9,"denial":1,"ranges":[[0,9]]}',
        '{"through":9,"denial":1,"ranges":[[0,9,0]]}',
        '{"through":9,"denial":1,"ranges":[[0,9,2]]}',
        '{"through":9,"denial":1,"ranges":[[5,4,1]]}',
        '{"through":9,"denial":1,"ranges":[[0,10,1]]}',
        '{"through":9,"denial":1,"ranges":[[0,9.0,1]]}',
        '{"through":9,"denial":1,"ranges":7}',
        '{"through":8,"denial":1,"ranges":[[0,9,1]]}',
        encode_holding(Holding(((0, 0, 1),) * (RANGES_MAX + 1), 9)),
    ],
)
def test_nonsense_is_refused_as_an_answer(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="ledger 7"):
        decode_holding(text, asked(0, 9))
    with pytest.raises(RemoteProtocolError):
        check_answer(asked(0, 9), Response(1, Status.OK, detail=text))


def test_damage_is_reported_within_the_requested_range() -> None:
    """F3: an audit says damaged, and not missing."""
    request = RangesRequest(1, 7, b"", 1, 10, 29)
    holding = hold([(0, 50, 1)], Status.NO_ENTRY, request, [(0, 9), (25, 99), (5, 12), (30, 31)])
    assert holding.damaged == ((10, 12), (25, 29))
    assert decode_holding(encode_holding(holding), request) == holding
    for wrong in ("[[9, 12]]", "[[12, 10]]", "[[10]]", '["x"]', "7", '[["a", "b"]]', "[[25, 30]]"):
        text = encode_holding(holding).replace("[[10,12],[25,29]]", wrong)
        with pytest.raises(RemoteProtocolError):
            decode_holding(text, request)
