"""The network between the simulated processes, and a transport over it.

A connection is as TCP gives it: requests arrive in their order, or the connection breaks. Answers may overtake each other,
since a bookie may give them in any order. Single requests and answers are lost now and then, as by a bookie that is too
busy. Where a way is cut, what is under way is held, and goes on when the way is mended, unless the connection broke: so late
messages come in at the worst time. Nothing is doubled, since no connection can do that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from replog.abc import Connection, Reply, RequestHandler, ResponseReceiver, Transport
from replog.errors import BookieUnreachableError
from replog.protocol.messages import AddRequest, FenceRequest, ReadLastAddConfirmedRequest, Request, Response
from replog.testing.simulating.world import World

SCHEME = "simulated"
METASTORE = "m"
_DELAY_MIN_S = 0.0002

OnRequest = Callable[[Request], None]
OnSend = Callable[[str, str, Request], None]
OnAnswer = Callable[[str, str, Request, Response], None]


class Rates:
    """How bad the network is now."""

    def __init__(self) -> None:
        self.lost = 0.0  # of requests, and of answers
        self.slow = 0.0  # of messages that take much longer
        self.spread_s = 0.002
        self.slow_s = 0.3


class Network:
    """All ways between processes. `on_send` is told of each request when a client sends it, `on_request` when it arrives,
    `on_answer` of each answer when a bookie gives it: by the names of the bookie's process and the client's."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rates = Rates()
        self.on_send: OnSend = lambda _client, _process, _request: None
        self.on_request: OnRequest = lambda _request: None
        self.on_answer: OnAnswer = lambda _process, _client, _request, _response: None
        self.callers: dict[
            str, Callable[[Callable[[], None]], None]
        ] = {}  # of processes that run in contexts of their own
        self.listeners: dict[str, Listener] = {}  # by address
        self._cuts: dict[tuple[str, str], int] = {}
        self._held: list[tuple[str, str, Callable[[], None]]] = []
        self._random = world.stream("network")
        self._mended = trio.Event()

    def delay_s(self) -> float:
        """How long a message takes."""
        delay_s = _DELAY_MIN_S + self._random.random() * self.rates.spread_s
        if self.rates.slow and self._random.random() < self.rates.slow:
            delay_s += self._random.random() * self.rates.slow_s
        return delay_s

    def loses(self) -> bool:
        """Whether this message is lost."""
        return bool(self.rates.lost) and self._random.random() < self.rates.lost

    # -- cuts ----------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Nothing passes this way, until it was mended as often."""
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1
        self.world.tell("network", f"cut {source} > {target}")

    def mend(self, source: str, target: str) -> None:
        """Undoes one cut."""
        self._cuts[source, target] -= 1
        if not self._cuts[source, target]:
            del self._cuts[source, target]
            self.world.tell("network", f"mended {source} > {target}")
            self.let_go()

    def is_open(self, source: str, target: str) -> bool:
        """Whether a message of this process reaches the other one now. It may have died after it sent it."""
        paused = self.world.paused
        return (source, target) not in self._cuts and source not in paused and target not in paused

    def let_go(self) -> None:
        """Sends on what was held, in its order, where the way is open again."""
        held, self._held = self._held, []
        for source, target, action in held:
            self.deliver(source, target, self.world.now_s, action)
        self._mended.set()
        self._mended = trio.Event()

    def deliver(self, source: str, target: str, due_s: float, action: Callable[[], None]) -> None:
        """Does what a message does at its target when it is due, or when the way is open after that."""

        def arrive() -> None:
            if self.is_open(source, target):
                action()
            else:
                self._held.append((source, target, action))

        self.world.at(self.world.due_s(due_s - self.world.now_s), arrive)

    def call(self, process: str, action: Callable[[], None]) -> None:
        """Does what a message causes in a process, in the context of this process. A dead one does nothing."""
        caller = self.callers.get(process)
        if caller is None:
            action()
        elif process not in self.world.dead:
            caller(action)

    async def passage(self, source: str, target: str) -> None:
        """Returns when a message has passed this way."""
        await trio.sleep_until(self.world.due_s(self.delay_s()))
        while not self.is_open(source, target):
            await self._mended.wait()

    # -- processes ----------------------------------------

    def kill(self, process: str) -> None:
        """The process dies: what it sent may arrive, and its connections break."""
        self.world.kill(process)
        for connection in self.connections():
            if connection.client == process:
                connection.break_off(self.delay_s())
        for address, listener in list(self.listeners.items()):
            if listener.process == process:
                self.hang_up(listener)
                del self.listeners[address]
        self.let_go()

    def hang_up(self, listener: Listener) -> None:
        """Breaks all its connections; now and then clients learn that only much later, as when a machine loses power."""
        for connection in list(listener.connections):
            connection.break_off(self.delay_s() + (3.0 if self._random.random() < 0.15 else 0.0))

    def resume(self, process: str) -> None:
        """A process that was stopped goes on, with all that came meanwhile."""
        self.world.resume(process)
        self.let_go()

    # -- connections ----------------------------------------

    def connections(self) -> list[SimulatedConnection]:
        """Those that are open."""
        return [connection for listener in self.listeners.values() for connection in listener.connections]

    def cut_connection(self, connection: SimulatedConnection) -> None:
        """It breaks; each end learns it later."""
        self.world.tell(connection.client, f"connection to {connection.listener.process} breaks")
        connection.break_off(self.delay_s())


class Listener:
    """A bookie that can be connected to."""

    def __init__(self, process: str, handler: RequestHandler) -> None:
        self.process = process
        self.handler = handler
        self.connections: dict[SimulatedConnection, None] = {}


class SimulatedConnection(Connection):
    """One connection: `client` is the process at its one end, the listener's the other."""

    def __init__(self, network: Network, client: str, listener: Listener, receiver: ResponseReceiver) -> None:
        self.client = client
        self.listener = listener
        self._network = network
        self._receiver: ResponseReceiver | None = receiver
        self._error: BookieUnreachableError | None = None
        self._last_due_s = 0.0
        self._inbox: list[Request] = []  # that arrived at this tick
        self._asked: dict[int, Request] = {}  # arrived, and not answered
        self._reply: Reply = self._answer  # one object: the bookie tells connections apart by it
        listener.connections[self] = None

    def send(self, requests: Sequence[Request]) -> None:
        """As `Connection.send`."""
        if self._error is not None or self._receiver is None:
            raise self._error or BookieUnreachableError(self.listener.process, "the connection is closed")
        if self.client in self._network.world.dead:
            return  # what runs on there has no effect
        for request in requests:
            self._network.on_send(self.client, self.listener.process, request)
            self._last_due_s = max(self._last_due_s, self._network.world.now_s + self._network.delay_s())
            if self._network.loses():
                self._network.world.count("request lost")
                continue

            def arrive(request: Request = request) -> None:
                self._arrived(request)

            self._network.deliver(self.client, self.listener.process, self._last_due_s, arrive)

    def _arrived(self, request: Request) -> None:
        """Hands over what arrives at one tick together."""
        if self not in self.listener.connections:
            return
        self._network.world.tell(self.listener.process, f"< {self.client} {describe(request)}")
        self._network.on_request(request)
        self._asked[request.request_id] = request
        self._inbox.append(request)
        if len(self._inbox) == 1:
            self._network.world.at(self._network.world.now_s, self._hand_over)

    def _hand_over(self) -> None:
        requests, self._inbox = self._inbox, []
        if self in self.listener.connections:
            self.listener.handler.handle(requests, self._reply)

    def _answer(self, responses: Sequence[Response]) -> None:
        network, process = self._network, self.listener.process
        for response in responses:
            if process in network.world.dead:
                return
            request = self._asked.pop(response.request_id)
            network.world.tell(process, f"> {self.client} {describe(request)}: {_outcome(response)}")
            network.on_answer(process, self.client, request, response)
            if network.loses():
                network.world.count("answer lost")
                continue
            response = _boasting(request, response)

            def arrive(response: Response = response) -> None:
                if self._receiver is not None:
                    self._receiver.responses_received((response,))

            if self in self.listener.connections:
                due_s = network.world.now_s + network.delay_s()
                network.deliver(process, self.client, due_s, partial(network.call, self.client, arrive))

    def break_off(self, after_s: float) -> None:
        """The bookie's end is gone now; the client learns it after so long, if the way is open then."""
        self.listener.connections.pop(self, None)
        world = self._network.world
        error = BookieUnreachableError(self.listener.process, "the connection broke")

        def tell() -> None:
            self._error = error
            receiver, self._receiver = self._receiver, None
            if receiver is not None:
                receiver.disconnected(error)

        due_s = world.now_s + after_s
        self._network.deliver(self.listener.process, self.client, due_s, partial(self._network.call, self.client, tell))

    async def aclose(self) -> None:
        """As `Connection.aclose`."""
        self._receiver = None
        self.listener.connections.pop(self, None)
        await trio.lowlevel.cancel_shielded_checkpoint()


class SimulatedTransport(Transport):
    """The transport of one process."""

    def __init__(self, network: Network, process: str) -> None:
        self._network = network
        self._process = process

    async def connect(
        self,
        address: str,
        receiver: ResponseReceiver,
        nursery: trio.Nursery,
        *,
        bookie_id: str = "",
        authenticator: object = None,
    ) -> Connection:
        """As `Transport.connect`. Over a way that is cut it waits until that is mended."""
        network = self._network
        listener = network.listeners.get(address)
        if listener is None:
            await trio.sleep(network.delay_s())
            raise BookieUnreachableError(address, "nobody listens there")
        await network.passage(self._process, listener.process)
        await network.passage(listener.process, self._process)
        if network.listeners.get(address) is not listener or not network.world.is_up(listener.process):
            raise BookieUnreachableError(address, "it went away")
        if self._process in network.world.dead:
            raise BookieUnreachableError(address, "this process is dead")
        return SimulatedConnection(network, self._process, listener, receiver)

    @asynccontextmanager
    async def listen(
        self, address: str, handler: RequestHandler, *, bookie_id: str = "", authenticator: object = None
    ) -> AsyncIterator[str]:
        """As `Transport.listen`."""
        await trio.lowlevel.checkpoint()
        listener = self._network.listeners[address] = Listener(self._process, handler)
        try:
            yield address
        finally:
            self._network.hang_up(listener)
            if self._network.listeners.get(address) is listener:
                del self._network.listeners[address]


def describe(request: Request) -> str:
    """A request, in short."""
    name = type(request).__name__.removesuffix("Request")
    if isinstance(request, AddRequest):
        batch = request.batch
        more = "recovery " if request.recovery else ""
        return (
            f"{more}{name} {request.ledger_id}/{batch.first_entry_id}-{batch.last_entry_id} term {request.term} "
            f"confirmed {batch.last_add_confirmed}"
        )
    ledger_id, entry_id = getattr(request, "ledger_id", ""), getattr(request, "entry_id", "")
    return f"{name} {ledger_id}/{entry_id}"


def _boasting(request: Request, response: Response) -> Response:
    """Some answers tell more than is true: the bare number may be anything (R11)."""
    if not isinstance(request, FenceRequest | ReadLastAddConfirmedRequest) or request.request_id % 8:
        return response
    return attrs.evolve(response, last_add_confirmed=response.last_add_confirmed + 1000)


def _outcome(response: Response) -> str:
    entries = "".join(f" {batch.first_entry_id}-{batch.last_entry_id}" for batch in response.batches)
    return f"{response.status.name} confirmed {response.last_add_confirmed}{entries}"
