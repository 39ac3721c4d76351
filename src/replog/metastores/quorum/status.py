"""The state of a member, and of the others as it knows them: for people, over the wire as JSON."""

from __future__ import annotations

from typing import Any

from replog.metastores.quorum.node import Node
from replog.metastores.quorum.peers import Peers
from replog.protocol.consensus.groups import Group
from replog.protocol.consensus.member import Member


def status_of(name: str, address: str, cluster: str, node: Node | None, peers: Peers, failure: str) -> dict[str, Any]:
    """All that one member tells. `survives` is how many members may be lost now, as far as the leader knows; None elsewhere."""
    found: dict[str, Any] = {"name": name, "address": address, "cluster": cluster, "problem": failure}
    if node is None:
        return {**found, "role": "waits for its cluster", "members": []}
    member = node.member
    return {
        **found,
        "role": "stopped" if failure else member.role.name.lower(),
        "leader": member.leader,
        "leader_address": peers.address_of(member.leader or "") or None,
        "term": member.term,
        "last_index": member.log.last,
        "committed_index": member.commit,
        "applied_index": node.applied,
        "is_changing": member.members.is_changing,
        "survives": survives(member, peers),
        "members": [_of(each, member, peers) for each in member.members.names],
    }


def _of(name: str, member: Member, peers: Peers) -> dict[str, Any]:
    leading = member.leading
    found: dict[str, Any] = {"name": name, "address": member.members.addresses.get(name, "")}
    if leading is not None:
        follower = leading.followers.get(name)
        matched = member.log.last if name == member.name else follower.matched if follower is not None else 0
        found |= {"behind": member.log.last - matched, "answers": peers.answers(name)}
    return found


def survives(member: Member, peers: Peers) -> int | None:
    """How many of the members that answer may be lost until no majority is left, as a leader counts: -1 if there is none now.
    None if this member does not lead."""
    if member.leading is None:
        return None
    return min((_spare(group, peers) for group in member.members.groups), default=-1)


def _spare(group: Group, peers: Peers) -> int:
    return max(-1, sum(peers.answers(name) for name in group) - (len(group) // 2 + 1))
