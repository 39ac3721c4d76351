"""A process that belongs to no cluster: it asks its peers until one has a cluster, or all of them begin one (Q16).

Or it begins one alone, offline, with the keys of another metastore; others are let in then.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

import trio

from replog.errors import ConfigError
from replog.metastores.quorum.directory import MemberDirectory, named_errors, new_id
from replog.metastores.quorum.frames import FrameKind, MemberFrame
from replog.metastores.quorum.peers import Peers
from replog.protocol.consensus.founding import (
    Began,
    Founding,
    Joins,
    answer_of_member,
    decode_founding,
    encode_founding,
)
from replog.protocol.consensus.groups import Membership
from replog.protocol.consensus.log import Base
from replog.protocol.consensus.registers import first_rows
from replog.runtime.loggers import logger
from replog.runtime.threads import run_in_thread

_log = logger("replog.metastores.quorum")

_ASK_AGAIN_S = 0.25
_SAY_S = 10.0  # how often it says whom it waits for


class Beginning:
    """The shell around `Founding`, until it ends."""

    def __init__(self, directory: MemberDirectory, addresses: tuple[str, ...], peers: Peers) -> None:
        self._addresses = addresses
        self._directory = directory
        self._peers = peers
        self._founding: Founding | None = None
        self._changed = trio.Event()

    def receive(self, frame: MemberFrame) -> None:
        """A message of a process that may have a cluster or not. Raises `RemoteProtocolError`."""
        if frame.kind is FrameKind.FOUNDING and self._founding is not None:
            self._founding.receive(frame.address, frame.sender, decode_founding(frame.payload))
            self._changed.set()

    async def run(self) -> str:
        """Returns the id of the cluster, once this process belongs to one, durably: its name may be a new one then. Raises
        `lmdb.Error`, OSError."""
        store, peers = self._directory.store, self._peers
        offers = await run_in_thread(lambda: store.offers)
        # Anew for each start: nobody has promised anything to this one (Q16).
        founding = self._founding = Founding(peers.address, peers.name, self._addresses, offers, new_id())
        asked_at_s, said_at_s = -_ASK_AGAIN_S, trio.current_time()
        while (result := founding.result) is None:
            now_s = trio.current_time()
            if now_s - asked_at_s >= _ASK_AGAIN_S:
                asked_at_s = now_s
                founding.tick()
            if now_s - said_at_s >= _SAY_S:
                said_at_s = now_s
                self._say_whom_it_waits_for(founding)
            if founding.offers != offers:
                offers = founding.offers
                await run_in_thread(partial(store.put_offers, offers))
            founding.written(offers)
            self._send(founding)
            if founding.result is None:
                with trio.move_on_after(_ASK_AGAIN_S):
                    await self._changed.wait()
                self._changed = trio.Event()
        base = Base(1, 1, result.members) if isinstance(result, Began) else None
        new_name = new_id() if isinstance(result, Joins) and not result.keeps_name else ""
        await run_in_thread(partial(self._directory.belong, result.cluster, base, new_name))
        peers.name = self._directory.name
        _log.info("member %s belongs to cluster %s%s", peers.name, result.cluster, ", which it began" if base else "")
        return result.cluster

    def _send(self, founding: Founding) -> None:
        sent, founding.sent = founding.sent, []
        for address, message in sent:
            self._peers.say(address, FrameKind.FOUNDING, encode_founding(message))

    def _say_whom_it_waits_for(self, founding: Founding) -> None:
        reasons = {each: self._peers.problem_with(each) or why for each, why in founding.missing().items()}
        listed = "; ".join(f"{address}: {why}" for address, why in reasons.items())
        founder = self._addresses[0]
        _log.warning(
            "the metastore has not begun: it waits for %s",
            listed or f"{founder}, which begins it when all others have come",
        )


def answer(frame: MemberFrame, cluster: str, addresses: list[str], peers: Peers) -> None:
    """Answers a process that has no cluster. Raises `RemoteProtocolError`."""
    said = answer_of_member(cluster, addresses, decode_founding(frame.payload))
    if said is not None:
        peers.say(frame.address, FrameKind.FOUNDING, encode_founding(said))


def begin_with(path: Path, address: str, keys: Mapping[str, bytes]) -> str:
    """Makes this directory's member a cluster of its own that has these keys, durably and in one step, and returns its id.

    Waits for the disk. Raises `ConfigError` if it belongs to a cluster, `MetastoreError`."""
    with closing(MemberDirectory(path, new_id())) as opened, named_errors(path):
        if opened.store.cluster or opened.store.offers:
            raise ConfigError(
                f"nothing was changed: the member in {path} belongs to a cluster, or has begun one with its peers"
            )
        cluster = new_id()
        members = Membership(((opened.name,),), {opened.name: address})
        opened.store.put_cluster(cluster, Base(1, 1, members), rows=first_rows(keys))
        return cluster
