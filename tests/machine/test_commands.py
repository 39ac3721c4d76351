"""Commands and states as typed data: what is passed arrives equal, or is refused before it is sent."""

from __future__ import annotations

import enum
import json
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import replog
from replog.errors import CommandRefusedError, ConfigError, UnknownCommandError
from replog.machine.commands import MachineType


class Colour(enum.Enum):
    RED = "red"


@attrs.frozen
class Item:
    name: str
    prices: tuple[float, ...] = ()


@attrs.define
class Shop(replog.StateMachine):
    items: dict[int, Item] = attrs.field(factory=dict)
    tags: set[str] = attrs.field(factory=set)
    note: bytes | None = None

    @replog.command
    def put(self, number: int, item: Item, colour: Colour = Colour.RED, at: datetime | None = None) -> Item | None:
        old = self.items.get(number)
        self.items[number] = item
        return old

    @replog.command
    def tag(self, tags: set[str], *, note: bytes = b"") -> list[str]:
        self.tags |= tags
        self.note = note
        return sorted(self.tags)

    @replog.command(name="put", version=2)
    def put_named(self, name: str) -> None:
        self.items[len(self.items)] = Item(name)

    def helper(self) -> None:
        """Not a command."""


SHOP = MachineType(Shop)


def sent(function: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """The arguments as another process gets them."""
    return SHOP.decode(SHOP.find(function).encode(args, kwargs)).args


@given(st.integers(), st.text(), st.lists(st.floats(allow_nan=False, allow_infinity=False)))
@pytest.mark.slow
def test_arguments_arrive_equal(number: int, name: str, prices: list[float]) -> None:
    item = Item(name, tuple(prices))
    assert sent(Shop.put, number, item) == [number, item, Colour.RED, None]


def test_keyword_arguments_and_defaults_arrive_as_positions() -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    assert sent(Shop.put, item=Item("a"), number=1, at=at) == [1, Item("a"), Colour.RED, at]
    assert sent(Shop.tag, {"b", "a"}, note=b"\x00\xff") == [{"a", "b"}, b"\x00\xff"]


@pytest.mark.parametrize(
    "args", [("1", Item("a")), (1, "a"), (1.5, Item("a")), (1, Item("a"), "red"), (1, Item("a", (float("nan"),))), (1,)]
)
def test_argument_of_another_type_raises_before_sending(args: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        sent(Shop.put, *args)


def test_command_is_known_by_name_and_version() -> None:
    body = SHOP.find(Shop.put_named).encode(("a",), {})
    assert json.loads(body) == ["put", 2, "a"]
    assert SHOP.decode(body).command.function is Shop.put_named


@pytest.mark.parametrize(
    "body", [b'["put",3,"a"]', b'["pit",1]', b'["put",2]', b'["put",2,{}]', b"[]", b"x", b"7", b'[["put"],1]', b"\xff"]
)
def test_unknown_command_is_named_by_an_error(body: bytes) -> None:
    with pytest.raises(UnknownCommandError):
        SHOP.decode(body)
    with pytest.raises(CommandRefusedError, match="nothing was written"):
        SHOP.decode_asked(body)


@pytest.mark.parametrize(
    ("function", "result"),
    [(Shop.put_named, None), (Shop.put, Item("a", (1.5,))), (Shop.put, None), (Shop.tag, ["a", "b"])],
)
def test_result_arrives_equal(function: Any, result: Any) -> None:
    command = SHOP.find(function)
    assert command.decode_result(command.encode_result(result)) == result


def test_method_without_mark_is_not_a_command() -> None:
    with pytest.raises(ConfigError, match="mark it"):
        SHOP.find(Shop.helper)


def test_state_is_read_back_equal() -> None:
    shop = Shop({3: Item("a", (1.5,))}, {"y", "x"}, b"\x00")
    fields = json.loads(SHOP.states.json(shop))
    assert fields["tags"] == ["x", "y"]
    assert SHOP.states.decode(fields) == shop


def test_unreplicable_class_is_refused() -> None:
    class Plain(replog.StateMachine):
        pass

    @attrs.define
    class NoDefault(replog.StateMachine):
        value: int

    @attrs.define
    class NoType(replog.StateMachine):
        @replog.command
        def set(self, value) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
            pass

    @attrs.define
    class Many(replog.StateMachine):
        @replog.command
        def set(self, *values: int) -> None:
            pass

    @attrs.define
    class Taken(replog.StateMachine):
        @replog.command
        def read(self) -> None:
            pass

    @attrs.define
    class NotData(replog.StateMachine):
        @replog.command
        def set(self, value: object) -> None:
            pass

    for machine in (Plain, NoDefault, NoType, Many, Taken, int):
        with pytest.raises(ConfigError):
            MachineType(machine)  # type: ignore[type-var]
