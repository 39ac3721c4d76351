"""State machines of users, their commands, and both as typed data in JSON.

Rules:
- A command's arguments, its result and the state are typed data: cattrs makes JSON of them by their annotations, and
  reads that back. Nothing is pickled.
- An argument arrives in another process equal to the caller's: the caller reads back the bytes that it is about to
  send, and refuses a difference. So a text is never taken for a number.
- A command is known by its name and its version. An entry with another name or version stops the member: it never
  guesses.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Generic, TypeVar, overload

import attrs
import cattrs

from replog.errors import CommandRefusedError, ConfigError, UnknownCommandError, UnsavableStateError
from replog.machine.conversion import CONVERTER, from_json, structure, to_json
from replog.machine.shapes import ARGUMENT_NESTING_MAX, RESULT_NESTING_MAX, is_nested_deeper
from replog.machine.states import StateType

State = TypeVar("State", bound="StateMachine")
Method = TypeVar("Method", bound=Callable[..., Any])

_MARK = "__replog_command__"
# What a running machine has itself: `counters.read` must not be a command.
RESERVED_NAMES = frozenset(
    {"aclose", "call", "call_as", "close", "local", "machine_name", "next_id", "open", "read", "status"}
)
# Structured by looking at them only; the others by cattrs.
_PLAIN = (int, str, bool)


class StateMachine:
    """The base class of replicated state machines: an attrs class whose fields all have defaults, and whose methods marked
    with `replog.command` change them.

    Every process applies the same commands in the same order to its own object. So a command may depend on nothing but
    its arguments, the fields and `now`: not on the clock, randomness, files, or the order of a set. `version` is that
    of the fields: raise it when earlier snapshots can't be read any more."""

    __slots__ = ("_now_ns",)

    version: typing.ClassVar[int] = 1

    @property
    def now(self) -> datetime:
        """The machine's time when the command was appended, in UTC: the same in every process. For durations: it may lag behind
        the time of day (L12)."""
        return datetime.fromtimestamp(self.now_ns / 1e9, UTC)

    @property
    def now_ns(self) -> int:
        """The same time as `now`, in ns since the epoch. It never goes back."""
        return typing.cast(int, getattr(self, "_now_ns", 0))


@overload
def command(method: Method, /) -> Method: ...


@overload
def command(*, name: str | None = None, version: int = 1) -> Callable[[Method], Method]: ...


def command(method: Any = None, /, *, name: str | None = None, version: int = 1) -> Any:
    """Marks a method of a `StateMachine` as a command, which callers in any process have applied in all of them.

    A command whose meaning changes gets a higher `version`; the method of before stays under another name, with
    `@command(name="add", version=1)`, as long as entries of it may be in the log."""

    def mark(function: Any) -> Any:
        setattr(function, _MARK, (name or function.__name__, version))
        return function

    return mark if method is None else mark(method)


class Command:
    """One command of a class: its name, version and method, and how its arguments and its result are read and written."""

    __slots__ = (
        "_head",
        "_hooks",
        "_plain",
        "_result_type",
        "_signature",
        "_types",
        "apply",
        "function",
        "name",
        "version",
    )

    def __init__(self, mark: tuple[str, int], function: Callable[..., Any], owner: type) -> None:
        self.name, self.version = name, _ = mark
        self._head = to_json(mark)[:-1]  # the text of each call, up to its arguments
        self.function = function
        hints = _hints(function, owner)
        parameters = list(inspect.signature(function).parameters.values())[1:]
        for each in parameters:
            if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) or each.name not in hints:
                raise ConfigError(
                    f"command {name!r} of {owner.__name__}: its parameter {each.name!r} needs a type, and can't be variadic"
                )
        by_name = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
        self.apply = _keywords_applied(function, by_name) if by_name else function
        self._signature = inspect.Signature(parameters)
        self._types = [hints[each.name] for each in parameters]
        self._plain = [each if each in _PLAIN else None for each in self._types]
        try:
            self._hooks = [partial(_refuse if each in _PLAIN else structure, each) for each in self._types]
            for each in self._types:
                CONVERTER.get_structure_hook(each)
        except cattrs.errors.StructureHandlerNotFoundError as error:
            raise ConfigError(
                f"command {name!r} of {owner.__name__}: {error}: its arguments must be typed data"
            ) from error
        self._result_type = hints.get("return", Any)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The command with these arguments as JSON. Raises `TypeError` if they don't fit the command's signature."""
        if kwargs or len(args) != len(self._plain):
            bound = self._signature.bind(*args, **kwargs)
            bound.apply_defaults()
            args = (*bound.args, *bound.kwargs.values())
        plain = self._plain
        fields = [
            value if type(value) is plain[place] else self._unstructured(value, place)
            for place, value in enumerate(args)
        ]
        try:
            # As JSON of the whole list, at a third of the cost: the encoder is made again for each list, but for no text.
            texts = [f",{value}" if type(value) is int else f",{to_json(value)}" for value in fields]
            body = f"{self._head}{''.join(texts)}]".encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"command {self.name!r}: {error}: nothing was sent") from error
        if len(body) > _FLAT_BYTES_MAX and is_nested_deeper(body, _LEVELS_MAX):
            raise TypeError(f"command {self.name!r}: an argument is {_TOO_DEEP}: nothing was sent")
        return body

    def _unstructured(self, value: Any, place: int) -> Any:
        wanted = self._types[place]
        try:
            plain = CONVERTER.unstructure(value, unstructure_as=wanted)
            # Through JSON, which makes lists of tuples and texts of keys.
            same = structure(wanted, json.loads(to_json(plain)))
            is_same = same == value
        except RecursionError as error:
            raise TypeError(f"command {self.name!r}: argument {place + 1} is {_TOO_DEEP}: nothing was sent") from error
        except (TypeError, ValueError, AttributeError, KeyError, cattrs.BaseValidationError) as error:
            raise self._wrong(value, place) from error
        if not is_same:
            raise self._wrong(value, place)
        # As the leader reads it, which takes nothing but a plain value for one: 1 in place of True or 1.0.
        return same if wanted in _PLAIN else plain

    def _wrong(self, value: Any, place: int) -> TypeError:
        needed = f"argument {place + 1} must be {_type_name(self._types[place])}, not {value!r}"
        return TypeError(f"command {self.name!r}: {needed}: nothing was sent")

    def decode(self, fields: list[Any]) -> list[Any]:
        """The arguments, of the fields behind name and version. Raises `UnknownCommandError` if they don't fit."""
        plain = self._plain
        if len(fields) != len(plain):
            raise UnknownCommandError(
                f"command {self.name!r} with {len(fields)} arguments, where {len(plain)} are known"
            )
        # Nearly always all of them are plain, which a comparison of lists finds at once.
        if list(map(type, fields)) == plain:
            return fields
        try:
            return [
                value if type(value) is wanted else hook(value)
                for value, wanted, hook in zip(fields, plain, self._hooks, strict=True)
            ]
        except (TypeError, ValueError, AttributeError, KeyError, cattrs.BaseValidationError) as error:
            raise UnknownCommandError(
                f"command {self.name!r}: its arguments {fields!r} are not of the known types"
            ) from error

    def encode_result(self, result: Any) -> bytes:
        """The result as JSON. Raises `TypeError` or `ValueError` if it is not of the command's type, or too deep."""
        if type(result) is int:
            return b"%d" % result
        if result is None or type(result) in _PLAIN:
            return to_json(result).encode()
        try:
            data = to_json(CONVERTER.unstructure(result, unstructure_as=self._result_type)).encode()
        except RecursionError as error:
            # In every process alike: it is deeper than the limit, which is far below what the stack takes.
            raise ValueError(_RESULT_TOO_DEEP) from error
        if is_nested_deeper(data, RESULT_NESTING_MAX):
            raise ValueError(_RESULT_TOO_DEEP)
        return data

    def decode_result(self, data: bytes) -> Any:
        """The result that these bytes are."""
        wanted = self._result_type
        if wanted is type(None):
            return None
        result = from_json(data.decode())
        return result if type(result) is wanted and wanted in _PLAIN else structure(wanted, result)


class Call:
    """A command and its arguments, ready to be applied."""

    __slots__ = ("args", "command")

    def __init__(self, command: Command, args: list[Any]) -> None:
        self.command = command
        self.args = args


class MachineType(Generic[State]):
    """The description of a class of state machines: its commands, and how its state is read and written."""

    def __init__(self, machine: type[State]) -> None:
        is_attrs: bool = isinstance(machine, type) and attrs.has(machine)
        if not is_attrs or not issubclass(machine, StateMachine):
            raise ConfigError(f"{machine!r} must be an attrs class that inherits from replog.StateMachine")
        self.machine = machine
        self.states = StateType(machine)
        self.commands: dict[tuple[str, int], Command] = {}
        self.by_attribute: dict[str, Command] = {}
        for attribute, member in inspect.getmembers_static(machine, inspect.isfunction):
            mark = getattr(member, _MARK, None)
            if mark is None:
                continue
            if mark in self.commands or attribute in RESERVED_NAMES:
                raise ConfigError(f"command {attribute!r} of {machine.__name__}: the name is taken; choose another")
            self.commands[mark] = self.by_attribute[attribute] = Command(mark, member, machine)
        self.check_state()

    def check_state(self) -> None:
        """Raises `ConfigError` if the initial state can't be written and read back."""
        try:
            initial = self.machine()
        except TypeError as error:
            raise ConfigError(f"{self.machine.__name__}: all its fields need defaults: {error}") from error
        try:
            self.states.check(initial)
        except UnsavableStateError as error:
            raise ConfigError(f"{self.machine.__name__}, as it is at the beginning: {error}") from error

    def find(self, function: Callable[..., Any]) -> Command:
        """The command that this method of the class is. Raises `ConfigError`."""
        mark = getattr(function, _MARK, None)
        found = None if mark is None else self.commands.get(mark)
        if found is None:
            name = getattr(function, "__qualname__", repr(function))
            raise ConfigError(f"{name} is not a command of {self.machine.__name__}: mark it with @replog.command")
        return found

    def decode(self, body: bytes) -> Call:
        """The command that these bytes of an entry are. Raises `UnknownCommandError`."""
        try:
            fields = from_json(body.decode())
            name, version = fields[0], fields[1]
            known = self.commands.get((name, version))
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise UnknownCommandError(f"{body[:60]!r} is not a command of {self.machine.__name__}") from error
        if known is None:
            problem = f"{self.machine.__name__} has no command {name!r} of version {version!r}"
            raise UnknownCommandError(f"{problem}: a newer program wrote it; upgrade this one")
        return Call(known, known.decode(fields[2:]))

    def decode_asked(self, body: bytes) -> Call:
        """Decodes a caller's request. Raises `CommandRefusedError`: nothing was written."""
        try:
            call = self.decode(body)
        except UnknownCommandError as error:
            raise CommandRefusedError(f"the leader refuses it: {error}; nothing was written") from error
        if len(body) > _FLAT_BYTES_MAX and is_nested_deeper(body, _LEVELS_MAX):
            raise CommandRefusedError(f"the leader refuses it: an argument is {_TOO_DEEP}; nothing was written")
        return call


def _keywords_applied(function: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    """The function of a command whose last arguments are passed by these names."""

    def apply(*args: Any) -> Any:
        return function(*args[: -len(names)], **dict(zip(names, args[-len(names) :], strict=True)))

    return apply


def _refuse(wanted: Any, value: Any) -> Any:
    raise TypeError(f"{value!r} is not {_type_name(wanted)}")


def _hints(function: Callable[..., Any], owner: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, localns={owner.__name__: owner})
    except NameError as error:
        raise ConfigError(f"{function.__qualname__}: the type of an argument is not known: {error}") from error


def _type_name(wanted: Any) -> str:
    return wanted.__name__ if isinstance(wanted, type) else str(wanted)


_LEVELS_MAX = ARGUMENT_NESTING_MAX + 1  # of a body, which is a list
_FLAT_BYTES_MAX = 2 * _LEVELS_MAX  # a shorter body cannot be nested deeper
_TOO_DEEP = f"nested more than {ARGUMENT_NESTING_MAX} levels deep"
_RESULT_TOO_DEEP = f"its result is nested more than {RESULT_NESTING_MAX} levels deep"
