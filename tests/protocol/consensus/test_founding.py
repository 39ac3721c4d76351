"""How a cluster begins: random schedules, what each rule left out leads to, and single steps (Q16)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog.errors import RemoteProtocolError
from replog.protocol.consensus.founding import (
    Began,
    Belongs,
    Founding,
    FoundingMessage,
    Fresh,
    Joins,
    Look,
    Offer,
    Promised,
    answer_of_member,
    decode_founding,
    encode_founding,
)
from tests.lanes.seeds import seeds
from tests.simulator.council.founding import broken_by
from tests.simulator.council.founding_mutants import MUTANTS
from tests.simulator.mutation import Mutant

_AT_ONCE = 500
PEERS = ("a", "b", "c")


@pytest.mark.parametrize("block", seeds(200, few=4, fast=2))
def test_seeds_break_nothing(block: int) -> None:
    for seed in range(block * _AT_ONCE, (block + 1) * _AT_ONCE):
        assert not broken_by(seed), f"seed {seed}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_seeds_find_a_rule_left_out(mutant: Mutant) -> None:
    with mutant.applied():
        assert any(broken_by(seed) for seed in range(mutant.seeds)), f"not within {mutant.seeds} seeds"


def begun(address: str, offers: tuple[str, ...] = ()) -> Founding:
    return Founding(address, f"n{address}", PEERS, offers, f"cluster of {address}")


def test_founder_begins_when_all_have_promised() -> None:
    founder = begun("a")
    founder.tick()
    assert founder.sent == [(each, Offer("cluster of a", PEERS)) for each in ("b", "c")]
    founder.receive("b", "nb", Promised("cluster of a"))
    founder.receive("b", "nb", Promised("cluster of a"))
    assert founder.result is None
    assert dict(founder.missing()) == {"c": "no answer yet"}
    founder.receive("c", "nc", Promised("another cluster"))
    assert founder.result is None
    founder.receive("c", "nc", Promised("cluster of a"))
    assert isinstance(founder.result, Began)
    assert founder.result.members.newest == ("na", "nb", "nc")
    assert founder.result.members.addresses == {"na": "a", "nb": "b", "nc": "c"}


def test_one_peer_alone_begins_at_once() -> None:
    alone = Founding("a", "na", ("a",), (), "c1")
    alone.tick()
    assert isinstance(alone.result, Began)


def test_promise_waits_until_it_is_durable() -> None:
    peer = begun("b")
    peer.receive("a", "na", Offer("c1", PEERS))
    assert peer.offers == ("c1",)
    assert not peer.sent
    peer.written(("c1",))
    assert peer.sent == [("a", Promised("c1"))]


@pytest.mark.parametrize(("sender", "peers"), [("c", PEERS), ("b", PEERS), ("a", ("a", "b")), ("a", ("a", "b", "d"))])
def test_only_the_first_peer_of_the_same_list_is_promised_anything(sender: str, peers: tuple[str, ...]) -> None:
    peer = begun("b")
    peer.receive(sender, "nx", Offer("c1", peers))
    assert not peer.offers
    assert peer.sent == [(sender, Fresh(PEERS))]


def test_another_list_is_named() -> None:
    founder = begun("a")
    founder.receive("b", "nb", Fresh(("a", "b", "d")))
    assert founder.missing()["b"] == "it has another list of peers: a, b, d"


def test_two_directories_of_one_name_begin_nothing() -> None:
    founder = begun("a")
    for address in ("b", "c"):
        founder.receive(address, "same", Promised("cluster of a"))
    assert founder.result is None
    assert "it has the name of b" in founder.missing()["c"]


@pytest.mark.parametrize(
    ("offers", "keeps_name"), [((), True), (("c1",), True), (("c2",), False), (("c2", "c1"), True)]
)
def test_name_that_was_promised_to_another_cluster_is_not_kept(offers: tuple[str, ...], keeps_name: bool) -> None:
    peer = begun("b", offers)
    peer.receive("c", "nc", Belongs("c1", ("c",)))
    assert peer.result == Joins("c1", ("c",), keeps_name)


def test_member_promises_nothing() -> None:
    belongs = Belongs("c1", PEERS)
    assert answer_of_member("c1", PEERS, Offer("c2", PEERS)) == belongs
    assert answer_of_member("c1", PEERS, Look(PEERS)) == belongs
    assert answer_of_member("c1", PEERS, Promised("c2")) is None


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
lists = st.lists(texts, max_size=5).map(tuple)


@given(
    st.one_of(
        st.builds(Look, lists),
        st.builds(Fresh, lists),
        st.builds(Belongs, texts, lists),
        st.builds(Offer, texts, lists),
        st.builds(Promised, texts),
    )
)
def test_messages_are_read_as_they_were_written(message: FoundingMessage) -> None:
    assert decode_founding(encode_founding(message)) == message


@given(
    st.binary(max_size=100)
    | st.sampled_from([b'{"kind":"Look"}', b'{"kind":"Other"}', b"[1]", b'{"kind":"Look","x":1}'])
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_founding(data)
