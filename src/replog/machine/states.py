"""The state of a class of machines, as it is saved: written, read back, and found equal."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import attrs
import cattrs

from replog.errors import UnsavableStateError
from replog.machine.conversion import CONVERTER, structure, to_state_json
from replog.machine.shapes import ShapeError, difference, extra_attribute, shape_of

State = TypeVar("State")


class StateType(Generic[State]):
    """How the fields of one attrs class are written and read."""

    def __init__(self, machine: type[State]) -> None:
        self._machine = machine
        self._fields: Any = attrs.fields(cast("Any", machine))

    def check(self, state: State) -> None:
        """Raises `UnsavableStateError` if the state differs when it was written and read: in a value or a type."""
        shapes = self.shapes(state)
        self.check_saved(json.loads(self.json(state)), shapes)

    def shapes(self, state: State) -> dict[str, Any]:
        """The shape of each field. Raises `UnsavableStateError`."""
        extra = extra_attribute(state)
        if extra is not None:
            problem = (
                f"the attribute {extra!r} of {self._machine.__name__} is no field, so it is not saved: make it a field"
            )
            raise UnsavableStateError(problem)
        seen: set[int] = set()
        shapes = {}
        for each in self._fields:
            try:
                if not each.init:
                    raise ShapeError("is not saved: remove its init=False")
                shapes[each.name] = shape_of(getattr(state, each.name), seen)
            # Whatever the classes of its values raise.
            except Exception as error:
                raise _unsavable(each.name, error) from error
        return shapes

    def check_saved(self, saved: Any, shapes: dict[str, Any]) -> None:
        """Raises `UnsavableStateError` if these fields, read from JSON, are not read back as a state of these shapes that
        is written as the same fields."""
        try:
            restored = self.decode(saved)
        except Exception as error:
            raise self._of_field(lambda each: structure(each.type or Any, saved[each.name]), error) from error
        for name, after in self.shapes(restored).items():
            if shapes[name] != after:
                raise _unsavable(
                    name, ShapeError(f"differs when it was written and read: {difference(shapes[name], after)}")
                )
            if to_state_json(saved[name]) != self._field_json(restored, name):
                raise _unsavable(name, ShapeError("differs when it was written and read: in a value"))

    def json(self, state: State) -> str:
        """The fields as JSON. Sets are sorted, so that equal states have the same JSON. Raises `UnsavableStateError`."""
        try:
            return to_state_json(CONVERTER.unstructure(state, unstructure_as=self._machine))
        except Exception as error:
            raise self._of_field(lambda each: self._field_json(state, each.name), error) from error

    def _field_json(self, state: State, name: str) -> str:
        wanted = getattr(self._fields, name).type
        return to_state_json(CONVERTER.unstructure(getattr(state, name), unstructure_as=wanted or Any))

    def _of_field(self, attempt: Callable[[Any], object], error: Exception) -> UnsavableStateError:
        """The error that names the first field for which this fails, too."""
        for each in self._fields:
            try:
                attempt(each)
            except Exception as of_field:
                return _unsavable(each.name, of_field)
        return _unsavable("", error)

    def decode(self, fields: Any) -> State:
        """The state with these fields. Raises as cattrs does."""
        state: State = CONVERTER.structure(fields, self._machine)
        return state


def _unsavable(field: str, error: Exception) -> UnsavableStateError:
    problem = str(error)
    if isinstance(error, cattrs.BaseValidationError):
        problem = f"can't be read back: {'; '.join(cattrs.transform_error(error))}"
    elif not isinstance(error, ShapeError):
        problem = f"can't be saved: {type(error).__name__}: {error}"
    return UnsavableStateError(f"field {field!r} {problem}" if field else problem)
