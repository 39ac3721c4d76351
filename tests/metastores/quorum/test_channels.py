"""The way to one member: answers that can't be answers are as good as lost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio

from replog.abc import Reply
from replog.metastores.quorum.channels import Channel, LostError, NotSentError
from replog.protocol.messages import MetastorePurpose, Request, Response, Status
from replog.registry import Registry
from replog.transports.memory import MemoryTransport


class Rude:
    """Answers everything by this status and body."""

    def __init__(self, status: Status, body: object) -> None:
        self.status, self.body = status, body

    def handle(self, requests: Sequence[Request], reply: Reply) -> None:
        reply([Response(each.request_id, self.status, body=self.body) for each in requests])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "body", "is_right"),
    [
        (Status.OK, b"found", True),
        (Status.TOO_BUSY, b"", True),
        (Status.OK, "text", False),
        (Status.FENCED, b"", False),
    ],
)
async def test_answer_is_checked(nursery: trio.Nursery, status: Status, body: object, is_right: bool) -> None:
    async with MemoryTransport().listen("rude", Rude(status, body)):
        channel = Channel("memory:rude", Registry().open_transport, None, nursery)
        if is_right:
            response = await channel.ask(MetastorePurpose.CLIENT, b"question", lambda: None)
            assert (response.status, response.body) == (status, body)
        else:
            with pytest.raises(LostError, match=r"an answer|FENCED"):
                await channel.ask(MetastorePurpose.CLIENT, b"question", lambda: None)


async def test_nobody_there_was_sent_nothing(nursery: trio.Nursery) -> None:
    sent: list[None] = []
    channel = Channel("memory:nobody", Registry().open_transport, None, nursery)
    with pytest.raises(NotSentError, match="no bookie listens"):
        await channel.ask(MetastorePurpose.CLIENT, b"question", lambda: sent.append(None))
    assert not sent
