"""Faces of replog's classes for programs without trio, made from the classes themselves: each verb is written and documented
once, for trio, and has its face by itself.

A kind of faces (`replog.aio`, `replog.blocking`) says how three things are done: a verb that gives a context, one that
waits, and one that does not. Objects with verbs of their own come out of a face as their faces.
"""

from __future__ import annotations

import functools
import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from types import FunctionType
from typing import Any, TypeVar

import trio

from replog.errors import (
    ClosedError,
    EndOfLogError,
    ForkedError,
    LocalProtocolError,
    NotPicklableError,
    ReplogError,
    WouldBlockError,
)

Verb = Callable[..., Any]


class Face:
    """An object of a trio run, as seen from outside. `way` leads into that run."""

    _kind: Faces

    def __init__(self, way: Any, inner: Any) -> None:
        self._way = way
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        """Attributes that are neither verbs nor properties."""
        if name.startswith("_"):
            raise AttributeError(name)
        return self._kind.given(self._way, getattr(self._inner, name))

    def __repr__(self) -> str:
        return repr(self._inner)

    def __reduce_ex__(self, protocol: object) -> Any:
        raise NotPicklableError(
            f"{self!r} cannot be sent to another process: it belongs to threads and sockets of this one. A function that another "
            "process runs must not capture it: open a client there; in Spark write df.foreachPartition(job.writer(encode)), with "
            "job = replog.spark.job(...)"
        )


AnyFace = TypeVar("AnyFace", bound=type[Face])


class Faces(ABC):
    """One kind of faces. `homes` maps each module whose classes have faces to the module that defines these: it is imported
    with the first such object, since few programs administer, embed bookies or run machines."""

    def __init__(self, homes: Mapping[str, str]) -> None:
        self._homes = homes
        self._face_of: dict[type, type[Face]] = {}

    @abstractmethod
    def opening(self, way: Any, make: Callable[[], Any]) -> Any:
        """A context outside of the run, for one in it."""

    @abstractmethod
    def immediate(self, way: Any, function: Callable[[], Any]) -> Any:
        """Calls what waits for nothing."""

    @abstractmethod
    def waiting_verb(self, name: str) -> Verb:
        """A method that waits for the coroutine function of this name."""

    def given(self, way: Any, value: Any) -> Any:
        """The face of this object, if it has one; else the object."""
        # Exactly these: a subclass, such as a named tuple, takes other arguments.
        if type(value) in (list, tuple):
            return type(value)(self.given(way, each) for each in value)
        face = self._face_of.get(type(value))
        if face is None and (home := self._homes.get(type(value).__module__)) is not None:
            import_module(home)  # waits for another thread that imports it just now
            face = self._face_of.get(type(value))
        return value if face is None else face(way, value)

    def face_of(self, source: type) -> Callable[[AnyFace], AnyFace]:
        """Makes a class the face of this one: it gets each public verb that it does not define itself. Members that it
        defines without a docstring get the signature and the docstring of the source."""

        def complete(face: AnyFace) -> AnyFace:
            closes = hasattr(face, "close")  # by that, not by `aclose`
            for name, member in inspect.getmembers_static(source):
                if not name.startswith("_") and not (closes and name == "aclose"):
                    self._complete(face, name, member)
            face._kind = self
            self._face_of[source] = face
            return face

        return complete

    def _complete(self, face: type[Face], name: str, source: Any) -> None:
        own = inspect.getattr_static(face, name, None)
        if isinstance(source, property):
            read = own.fget if isinstance(own, property) else self._reading(name)
            setattr(face, name, property(read, doc=source.__doc__))
        elif inspect.isfunction(source) and own is None:
            setattr(face, name, functools.wraps(source)(self._verb(name, source)))
        elif inspect.isfunction(own) and own.__doc__ is None:
            setattr(face, name, functools.wraps(source)(_copied(own)))

    def _verb(self, name: str, source: Verb) -> Verb:
        if gives_context(source):

            def open_context(self: Face, *args: Any, **kwargs: Any) -> Any:
                return self._kind.opening(self._way, lambda: getattr(self._inner, name)(*args, **kwargs))

            return open_context
        if inspect.iscoroutinefunction(source):
            return self.waiting_verb(name)

        def call(self: Face, *args: Any, **kwargs: Any) -> Any:
            kind = self._kind
            return kind.given(self._way, kind.immediate(self._way, lambda: getattr(self._inner, name)(*args, **kwargs)))

        return call

    def _reading(self, name: str) -> Verb:
        def read(self: Face) -> Any:
            kind = self._kind
            return kind.given(self._way, kind.immediate(self._way, lambda: getattr(self._inner, name)))

        return read


def gives_context(function: Verb) -> bool:
    """True if calling it gives an async context."""
    return inspect.isasyncgenfunction(inspect.unwrap(function))


def _copied(function: FunctionType) -> Verb:
    """The same code, for another signature and docstring: several faces may have it from one base."""
    # Without the copy, the docstring of one face would be written over that of another.
    variables, name, defaults = function.__globals__, function.__name__, function.__defaults__
    copy = FunctionType(function.__code__, variables, name, defaults, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def without_trio(error: Exception) -> Exception:
    """The error to raise outside of the run: errors of trio become errors of ours, others stay the very same."""
    translated: ReplogError
    if isinstance(error, trio.WouldBlock):
        translated = WouldBlockError("not at once: the verb of this name without _nowait waits")
    elif isinstance(error, trio.EndOfChannel):
        translated = EndOfLogError("the reader has given out all records, and does not follow")
    elif isinstance(error, trio.ClosedResourceError):
        translated = ClosedError(*error.args)
    elif isinstance(error, trio.BusyResourceError):
        translated = LocalProtocolError(*error.args)
    else:
        return error
    translated.__cause__ = error
    return translated


def forked(process_id: int) -> ForkedError:
    """For callers in a fork of the process that opened the client. Names where servers that fork let programs open one."""
    return ForkedError(
        f"this client belongs to process {process_id}, and this is its fork {os.getpid()}; nothing was done. Open a client of "
        "its own in each process, after the fork: in gunicorn's post_fork hook, uWSGI's @postfork or Celery's "
        "worker_process_init signal"
    )


def closed() -> ClosedError:
    """The error for calls that wait when the run ends."""
    return ClosedError("the client was left, or its trio run failed; what was under way has an unknown outcome")


def entered_before() -> ClosedError:
    """The error for a context that is entered a second time."""
    return ClosedError("this context was entered before: call what made it again, for another one")
