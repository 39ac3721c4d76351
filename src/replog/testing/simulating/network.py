"""The network between the simulated processes, and a transport over it.

Connections behave like TCP: requests arrive in order, or the connection breaks. Answers may overtake each other,
because a bookie may answer in any order. Single requests and answers can get lost, as if the bookie had been too busy.
While the link between two processes is cut, messages on it are held; they arrive when the link works again, unless the
connection broke. So messages arrive late, at bad times. No message is delivered twice: a connection cannot do that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from replog.abc import Connection, Reply, RequestHandler, ResponseReceiver, Transport
from replog.errors import BookieUnreachableError
from replog.protocol.messages import (
    AddRequest,
    FenceRequest,
    LedgerAwaited,
    ReadLastAddConfirmedRequest,
    Request,
    Response,
)
from replog.testing.simulating.world import World

SCHEME = "simulated"
METASTORE = "m"
_DELAY_MIN_S = 0.0002

OnRequest = Callable[[Request], None]
OnSend = Callable[[str, str, Request], None]
OnAnswer = Callable[[str, str, Request, Response], None]


class Rates:
    """The current condition of the network."""

    def __init__(self) -> None:
        self.lost = 0.0  # probability that a request or an answer is lost
        self.slow = 0.0  # probability that a message takes up to `slow_s` longer
        self.spread_s = 0.002
        self.slow_s = 0.3


class Network:
    """All connections between processes.

    Observers: `on_send` is called for each request when a client sends it, `on_request` when it arrives, `on_answer` for each
    answer when a bookie gives it. Processes are passed by name."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rates = Rates()
        self.on_send: OnSend = lambda _client, _process, _request: None
        self.on_request: OnRequest = lambda _request: None
        self.on_answer: OnAnswer = lambda _process, _client, _request, _response: None
        # Of processes that run in contexts of their own
        self.callers: dict[str, Callable[[Callable[[], None]], None]] = {}
        self.listeners: dict[str, Listener] = {}  # by address
        self._cuts: dict[tuple[str, str], int] = {}
        self._held: list[tuple[str, str, Callable[[], None]]] = []
        self._random = world.stream("network")
        self._mended = trio.Event()

    def delay_s(self) -> float:
        """Draw how long a message takes."""
        delay_s = _DELAY_MIN_S + self._random.random() * self.rates.spread_s
        if self.rates.slow and self._random.random() < self.rates.slow:
            delay_s += self._random.random() * self.rates.slow_s
        return delay_s

    def loses(self) -> bool:
        """Draw whether a message is lost."""
        return bool(self.rates.lost) and self._random.random() < self.rates.lost

    # -- cuts ----------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Hold all messages from source to target, until `mend` was called as often as `cut`."""
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1
        self.world.tell("network", f"cut {source} > {target}")

    def mend(self, source: str, target: str) -> None:
        """Undo one `cut`."""
        self._cuts[source, target] -= 1
        if not self._cuts[source, target]:
            del self._cuts[source, target]
            self.world.tell("network", f"mended {source} > {target}")
            self.let_go()

    def is_open(self, source: str, target: str) -> bool:
        """True if a message from source reaches target now; source may have died since it sent the message."""
        paused = self.world.paused
        return (source, target) not in self._cuts and source not in paused and target not in paused

    def let_go(self) -> None:
        """Deliver held messages, in order, where the way is open again."""
        held, self._held = self._held, []
        for source, target, action in held:
            self.deliver(source, target, self.world.now_s, action)
        self._mended.set()
        self._mended = trio.Event()

    def deliver(self, source: str, target: str, due_s: float, action: Callable[[], None]) -> None:
        """Call the action when a message arrives: when it is due, or later if the way is cut then."""

        def arrive() -> None:
            if self.is_open(source, target):
                action()
            else:
                self._held.append((source, target, action))

        self.world.at(self.world.due_s(due_s - self.world.now_s), arrive)

    def call(self, process: str, action: Callable[[], None]) -> None:
        """Call what a message causes in a process, in that process's context; skip it if the process is dead."""
        caller = self.callers.get(process)
        if caller is None:
            action()
        elif process not in self.world.dead:
            caller(action)

    async def passage(self, source: str, target: str) -> None:
        """Wait for as long as a message takes from source to target."""
        arrived = trio.Event()
        self.world.at(self.world.due_s(self.delay_s()), arrived.set)
        await arrived.wait()
        while not self.is_open(source, target):
            await self._mended.wait()

    # -- processes ----------------------------------------

    def kill(self, process: str) -> None:
        """Kill a process. Messages that it sent may still arrive; its connections break."""
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
        """Break all connections of a bookie. Some clients notice it much later, as when a machine loses power."""
        for connection in list(listener.connections):
            connection.break_off(self.delay_s() + (3.0 if self._random.random() < 0.15 else 0.0))

    def resume(self, process: str) -> None:
        """End the pause of a process, and deliver everything that was held for it."""
        self.world.resume(process)
        self.let_go()

    # -- connections ----------------------------------------

    def connections(self) -> list[SimulatedConnection]:
        """All open connections."""
        return [connection for listener in self.listeners.values() for connection in listener.connections]

    def cut_connection(self, connection: SimulatedConnection) -> None:
        """Break one connection; each end notices it later."""
        self.world.tell(connection.client, f"connection to {connection.listener.process} breaks")
        connection.break_off(self.delay_s())


class Listener:
    """A bookie that accepts connections."""

    def __init__(self, process: str, handler: RequestHandler) -> None:
        self.process = process
        self.handler = handler
        self.connections: dict[SimulatedConnection, None] = {}


class SimulatedConnection(Connection):
    """One connection, from the process `client` to the process of the listener."""

    def __init__(self, network: Network, client: str, listener: Listener, receiver: ResponseReceiver) -> None:
        self.client = client
        self.listener = listener
        self._network = network
        self._receiver: ResponseReceiver | None = receiver
        self._error: BookieUnreachableError | None = None
        self._last_due_s = 0.0
        self._inbox: list[Request] = []  # requests that arrived in this tick
        self._asked: dict[int, Request] = {}  # requests that arrived and are not answered yet, by their ids
        self._reply: Reply = self._answer  # always the same object: bookies identify a connection by it
        listener.connections[self] = None

    def send(self, requests: Sequence[Request]) -> None:
        """Sends requests (`Connection.send`)."""
        if self._error is not None or self._receiver is None:
            raise self._error or BookieUnreachableError(self.listener.process, "the connection is closed")
        if self.client in self._network.world.dead:
            return  # a dead process may still run, without effect
        for request in requests:
            self._network.on_send(self.client, self.listener.process, request)
            # Not before the request ahead of it: a connection keeps the order.
            self._last_due_s = max(self._last_due_s, self._network.world.now_s + self._network.delay_s())
            if self._network.loses():
                self._network.world.count("request lost")
                continue

            def arrive(request: Request = request) -> None:
                self._arrived(request)

            self._network.deliver(self.client, self.listener.process, self._last_due_s, arrive)

    def _arrived(self, request: Request) -> None:
        """Collect requests that arrive in the same tick, and hand them over together."""
        if self not in self.listener.connections:
            return
        self._network.world.tell(self.listener.process, f"< {self.client} {describe(request)}")
        self._network.on_request(request)
        self._asked[request.request_id] = request
        self._inbox.append(request)
        # Together, at the end of the tick: a real socket also delivers several small requests with one read,
        # and bookies gather what comes together into one commit.
        if len(self._inbox) == 1:
            self._network.world.at(self._network.world.now_s, self._hand_over)

    def _hand_over(self) -> None:
        requests, self._inbox = self._inbox, []
        if self in self.listener.connections:
            # In the context of that process: tasks that a handler starts belong to it.
            handle = self.listener.handler.handle
            self._network.call(self.listener.process, lambda: handle(requests, self._reply))

    def _answer(self, responses: Sequence[Response]) -> None:
        network, process = self._network, self.listener.process
        for response in responses:
            if process in network.world.dead:
                return
            request = None
            if isinstance(response, LedgerAwaited):
                network.world.tell(process, f"> {self.client} a reader of ledger {response.ledger_id} waits")
            else:
                request = self._asked.pop(response.request_id)
                network.world.tell(process, f"> {self.client} {describe(request)}: {_outcome(response)}")
                network.on_answer(process, self.client, request, response)
            if network.loses():
                network.world.count("answer lost")
                continue
            if request is not None:
                response = _boasting(request, response)

            def arrive(response: Response = response) -> None:
                if self._receiver is not None:
                    self._receiver.responses_received((response,))

            if self in self.listener.connections:
                due_s = network.world.now_s + network.delay_s()
                network.deliver(process, self.client, due_s, partial(network.call, self.client, arrive))

    def break_off(self, after_s: float) -> None:
        """Close the bookie's end now. The client notices it after a delay, or later if the way is cut then."""
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
        """Closes the connection (`Connection.aclose`)."""
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
        """Connects to an address (`Transport.connect`). If the link is cut, it waits until the link works again."""
        network = self._network
        listener = network.listeners.get(address)
        if listener is None:
            await trio.sleep(network.delay_s())
            raise BookieUnreachableError(address, "no bookie listens there")
        await network.passage(self._process, listener.process)
        await network.passage(listener.process, self._process)
        # Looked at again after the way there and back: the bookie may have died or started again meanwhile.
        if network.listeners.get(address) is not listener or not network.world.is_up(listener.process):
            raise BookieUnreachableError(address, "the bookie stopped meanwhile")
        if self._process in network.world.dead:
            raise BookieUnreachableError(address, "this process is dead")
        return SimulatedConnection(network, self._process, listener, receiver)

    @asynccontextmanager
    async def listen(
        self, address: str, handler: RequestHandler, *, bookie_id: str = "", authenticator: object = None
    ) -> AsyncIterator[str]:
        """Listens at an address (`Transport.listen`)."""
        await trio.lowlevel.checkpoint()
        listener = self._network.listeners[address] = Listener(self._process, handler)
        try:
            yield address
        finally:
            self._network.hang_up(listener)
            if self._network.listeners.get(address) is listener:
                del self._network.listeners[address]


def describe(request: Request) -> str:
    """A short description of a request, for the trace."""
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
    """Make some answers claim too much: clients must not trust the number without its proof (R11)."""
    if not isinstance(request, FenceRequest | ReadLastAddConfirmedRequest) or request.request_id % 8:
        return response
    return attrs.evolve(response, last_add_confirmed=response.last_add_confirmed + 1000)


def _outcome(response: Response) -> str:
    entries = "".join(f" {batch.first_entry_id}-{batch.last_entry_id}" for batch in response.batches)
    return f"{response.status.name} confirmed {response.last_add_confirmed}{entries}"
