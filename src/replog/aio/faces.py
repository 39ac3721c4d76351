"""The asyncio faces of replog's classes: made from those of trio, so that every verb is here, with its signature and docstring.

A verb that waits becomes a coroutine function that waits for a task of the trio run; one that gives a context, an `Opening`; all
else is called at once. Arguments and results are the same, except that objects with verbs of their own come with their face.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, ClassVar, TypeVar

from replog.aio.contexts import Opening
from replog.aio.host import Host, translated

_faces: dict[type, type[Face]] = {}


class Face:
    """An object of the trio run, as asyncio tasks see it. Only for the event loop that made it."""

    __slots__ = ("_host", "_inner")
    _of: ClassVar[type]

    def __init__(self, host: Host, inner: Any) -> None:
        self._host = host
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        with translated():
            return given(self._host, getattr(self._inner, name))

    def __repr__(self) -> str:
        return f"<asyncio face of {self._inner!r}>"


AnyFace = TypeVar("AnyFace", bound=type[Face])


def given(host: Host, value: Any) -> Any:
    """What asyncio tasks get for this: its face, if it has one."""
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(given(host, each) for each in value)
    face = _faces.get(type(value))
    return value if face is None else face(host, value)


def face_of(source: type) -> Callable[[AnyFace], AnyFace]:
    """Makes a class the face of this one: with each of its public verbs that the class doesn't define itself."""

    def complete(face: AnyFace) -> AnyFace:
        for name, member in inspect.getmembers_static(source):
            if name.startswith("_"):
                continue
            own = inspect.getattr_static(face, name, None)
            if inspect.isfunction(own) and inspect.isfunction(member):
                setattr(face, name, functools.wraps(member)(_copied(own)))
            elif isinstance(own, property):
                setattr(face, name, property(own.fget, doc=member.__doc__))
            elif own is not None:
                pass
            elif isinstance(member, property):
                setattr(face, name, _read_property(name, member))
            elif inspect.isfunction(member):
                setattr(face, name, _method(name, member))
        face.__doc__ = source.__doc__ if face.__doc__ is None else face.__doc__
        face._of = source
        _faces[source] = face
        return face

    return complete


def gives_context(function: Callable[..., Any]) -> bool:
    """Whether calling it gives an async context."""
    return inspect.isasyncgenfunction(inspect.unwrap(function))


def _copied(function: FunctionType) -> Callable[..., Any]:
    """The same code under another signature and docstring: several faces may have it from one base."""
    code, variables = function.__code__, function.__globals__
    copy = FunctionType(code, variables, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _read_property(name: str, source: property) -> property:
    def read(self: Face) -> Any:
        with translated():
            return given(self._host, getattr(self._inner, name))

    return property(read, doc=source.__doc__)


def _method(name: str, source: Callable[..., Any]) -> Callable[..., Any]:
    method: Callable[..., Any]
    if gives_context(source):

        def method(self: Face, *args: Any, **kwargs: Any) -> Any:
            return Opening(lambda: getattr(self._inner, name)(*args, **kwargs), given)

    elif inspect.iscoroutinefunction(source):

        async def method(self: Face, *args: Any, **kwargs: Any) -> Any:
            return given(self._host, await self._host.call(lambda: getattr(self._inner, name)(*args, **kwargs)))

    else:

        def method(self: Face, *args: Any, **kwargs: Any) -> Any:
            with translated():
                return given(self._host, getattr(self._inner, name)(*args, **kwargs))

    return functools.wraps(source)(method)


def function_of(source: Callable[..., Any]) -> Callable[..., Any]:
    """The face of a function of the package: one that gives a context, or waits."""
    if gives_context(source):

        def opening(*args: Any, **kwargs: Any) -> Any:
            return Opening(lambda: source(*args, **kwargs), given)

        return functools.wraps(source)(opening)

    async def waiting(*args: Any, **kwargs: Any) -> Any:
        host = await Host.join()
        try:
            return given(host, await host.call(lambda: source(*args, **kwargs)))
        finally:
            await host.part()

    return functools.wraps(source)(waiting)
