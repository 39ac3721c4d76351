"""A request of a client to a bookie on its way there and back, and how it reads in a conversation."""

from __future__ import annotations

from collections.abc import Callable

from replog.protocol.messages import (
    AddRequest,
    FenceRequest,
    LedgerRequest,
    ReadLastAddConfirmedRequest,
    Response,
    Status,
    WriteLastAddConfirmedRequest,
)
from replog.protocol.proofs import claimed
from tests.simulator.plan import ANSWER_KINDS
from tests.simulator.world import Node

Reply = Callable[[Response | None], None]


class Server(Node):
    """A node that answers requests."""

    def handle(self, request: LedgerRequest, reply: Reply, client_number: int) -> None:
        """Takes a request; `reply` sends the answer, None meaning that the connection is refused."""
        raise NotImplementedError


class Call:
    """One request to one bookie. `answered` is called with a response, or with None when there is none in time."""

    __slots__ = ("answered", "bookie", "client", "is_answered", "is_open", "kind", "request", "subject")

    def __init__(
        self,
        client: Node,
        bookie: Server,
        kind: str,
        subject: int,
        request: LedgerRequest,
        answered: Callable[[Response | None, bool], None],
    ) -> None:
        self.client = client
        self.bookie = bookie
        self.kind = kind
        self.subject = subject
        self.request = request
        self.answered = answered
        self.is_open = True
        self.is_answered = False

    def arrive(self) -> None:
        """At the bookie."""
        self.bookie.handle(self.request, self.reply, self.client.number)

    def reply(self, response: Response | None) -> None:
        """The bookie answers."""
        client = self.client
        client.world.transmit(self.bookie, client, ANSWER_KINDS[self.kind], self.subject, self.receive, response)

    def receive(self, response: Response | None) -> None:
        """The answer is there: in time, late, or for the second time."""
        world = self.client.world
        if world.transcript is not None and not self.is_idle_poll(response):
            late = "" if self.is_open else " (again)" if self.is_answered else " (late)"
            world.tell(f"{self.client.name} < {self.bookie.name}: {describe_response(self, response)}{late}")
        if not self.is_open:
            world.count("answer twice" if self.is_answered else "answer after its deadline")
        in_time, self.is_open, self.is_answered = self.is_open, False, True
        self.answered(response, in_time)

    def is_idle_poll(self, response: Response | None) -> bool:
        """Whether this is a poll that told nothing new: a conversation leaves it out."""
        request = self.request
        if not isinstance(request, ReadLastAddConfirmedRequest):
            return False
        return response is None or claimed(response.proof) <= request.after

    def time_out(self) -> None:
        """The deadline."""
        if self.is_open:
            self.is_open = False
            if self.client.world.transcript is not None and not self.is_idle_poll(None):
                self.client.world.tell(f"{self.client.name}: no answer of {self.bookie.name} to {describe_call(self)}")
            self.answered(None, True)


def describe_call(call: Call) -> str:
    """A request in a few words."""
    ledger_id, entry_id = divmod(call.subject, 1000)
    request = call.request
    if isinstance(request, AddRequest):
        batch = request.batch
        kind = f"recovery-add term {request.term}" if request.recovery else f"add term {request.term}"
        confirmed = claimed(request.proof) if request.recovery else batch.last_add_confirmed
        return f"{kind} {ledger_id}/{','.join(map(str, batch.entry_ids))} confirmed {confirmed}"
    if isinstance(request, FenceRequest):
        return f"fence {ledger_id} term {request.term}"
    if isinstance(request, WriteLastAddConfirmedRequest):
        return f"write-confirmed {ledger_id} {claimed(request.proof)}"
    return f"{call.kind} {ledger_id}/{entry_id}"


def describe_response(call: Call, response: Response | None) -> str:
    """A response in a few words."""
    if response is None:
        return f"refused connection for {describe_call(call)}"
    held = "".join(f" [{','.join(map(str, batch.entry_ids))}]" for batch in response.batches)
    term = f" term {response.fence_term}" if response.status is Status.FENCED else ""
    proves = isinstance(call.request, FenceRequest | ReadLastAddConfirmedRequest)
    told = claimed(response.proof) if proves else response.last_add_confirmed
    confirmed = f" confirmed {told}" if response.status is Status.OK else ""
    return f"{response.status.name.lower()}{term}{held}{confirmed} for {describe_call(call)}"
