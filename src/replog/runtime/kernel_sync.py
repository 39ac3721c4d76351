"""Making a file durable without a thread: the kernel syncs it, and tells an event loop by a descriptor when that has ended.

A thread that syncs for an event loop costs two changes of thread, 160 to 200 us on a virtual machine. Linux does without:
its asynchronous I/O (`io_submit`) has a command for `fdatasync` since 4.18, and signals an `eventfd` at the end. It is called
through ctypes, by its numbers, since the C library does not name it. This is not io_uring, which many containers forbid.

Where the kernel has no such thing, or where a filter of system calls forbids it, `open_kernel_sync` returns None. A
sync that the kernel refuses later happens in the caller's thread, once, and `is_refused` is set from then on: the
caller then syncs in another way.

Rules:
- One sync at a time. The kernel holds the file until it has ended, even if its descriptor is closed meanwhile.
- Each sync that was begun has one outcome, which is taken once. An error of the disk is what `os.fdatasync` would raise.
- A fork has none of it: the kernel's part belongs to the process that opened it.
"""

from __future__ import annotations

import os
import select
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from replog.runtime.platform import IS_LINUX, sync_data

# The numbers of io_setup, io_destroy, io_submit and io_getevents, by the machine's name.
_NUMBERS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4), "riscv64": (0, 1, 2, 4)}

# `struct iocb` of linux/aio_abi.h on a little-endian machine: data, key, flags of a read or write, command, priority,
# descriptor, buffer, size, offset, reserved, flags, eventfd.
CONTROL_BLOCK = struct.Struct("<QIIHhIQQqQII")
_FDATASYNC = 3  # IOCB_CMD_FDSYNC
_TELL_EVENTFD = 1  # IOCB_FLAG_RESFD
# `struct io_event`: data, control block, result, second result.
_EVENT = struct.Struct("<QQqq")


class Kernel(Protocol):
    """The system calls, as far as they are needed here."""

    def submit(self, control_block: bytes) -> bool:
        """Begins what the block says. False if it is refused."""

    def take_result(self) -> int:
        """The result of the sync, once its eventfd was signalled: 0, or an error number below zero."""

    def close(self) -> None:
        """Gives everything back. Waits for the sync under way."""


class KernelSync:
    """Syncs one file at a time. `descriptor` is readable when the sync that was begun has ended. Made by `open_kernel_sync`."""

    def __init__(self, kernel: Kernel) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.is_refused = False  # the kernel refused a sync: it is not asked again
        self._kernel = kernel
        self._ended_elsewhere: list[OSError | None] = []  # how a sync ended that the kernel did not do; at most one

    def begin(self, fd: int) -> None:
        """Begins what `os.fdatasync` does. Waits for the disk only if the kernel refuses it."""
        asked = (0, 0, 0, _FDATASYNC, 0, fd, 0, 0, 0, 0, _TELL_EVENTFD, self.descriptor)
        if self._kernel.submit(CONTROL_BLOCK.pack(*asked)):
            return
        # The written bytes must become durable, and no other caller would sync them. Only once: `is_refused`.
        self.is_refused = True
        try:
            sync_data(fd)
        except OSError as error:
            self.ended_elsewhere(error)
        else:
            self.ended_elsewhere(None)

    def ended_elsewhere(self, error: OSError | None) -> None:
        """Says that a sync was made, and how it ended: for a disk that does not leave it to the kernel."""
        self._ended_elsewhere.append(error)
        os.eventfd_write(self.descriptor, 1)

    def has_ended(self) -> bool:
        """True once for each sync, when it has ended; its `outcome` is there then. Never waits."""
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            return False
        return True

    def wait(self) -> None:
        """Waits until the sync that was begun `has_ended`. In a thread that may wait for a disk."""
        watch = select.poll()
        watch.register(self.descriptor, select.POLLIN)
        while not self.has_ended():
            watch.poll()

    def outcome(self) -> OSError | None:
        """How the sync that `has_ended` went: None, or the error that `os.fdatasync` would have raised."""
        if self._ended_elsewhere:
            return self._ended_elsewhere.pop()
        result = self._kernel.take_result()
        return OSError(-result, os.strerror(-result)) if result < 0 else None

    def close(self) -> None:
        """Gives the descriptor back. Only when no sync is under way."""
        self._kernel.close()
        os.close(self.descriptor)


def open_kernel_sync() -> KernelSync | None:
    """A `KernelSync`; None where the system has nothing of the kind, or does not allow it."""
    numbers = _NUMBERS.get(os.uname().machine)
    # A 32-bit program on a 64-bit kernel has other numbers and other structures.
    if not IS_LINUX or numbers is None or sys.byteorder != "little" or sys.maxsize < 1 << 32:
        return None
    try:
        return KernelSync(_AsynchronousIO(*numbers))
    except (ImportError, OSError):
        return None


class _AsynchronousIO(Kernel):
    """Linux's, with room for one request. Raises ImportError, OSError."""

    def __init__(self, set_up: int, destroy: int, submit: int, get_events: int) -> None:
        import ctypes  # only here: it takes a while, and some builds of CPython come without

        context = ctypes.c_ulong(0)
        waiting: Any = ctypes.CDLL(None, use_errno=True).syscall
        if waiting(ctypes.c_long(set_up), ctypes.c_long(1), ctypes.byref(context)) != 0:
            raise OSError(ctypes.get_errno(), "the kernel gives no asynchronous I/O")
        # These never wait, and so keep the interpreter's lock: to give it up is to change threads.
        quick: Any = ctypes.PyDLL(None).syscall
        block = ctypes.create_string_buffer(CONTROL_BLOCK.size)
        blocks = (ctypes.c_void_p * 1)(ctypes.addressof(block))
        event = ctypes.create_string_buffer(_EVENT.size)
        one = ctypes.c_long(1)
        self._block, self._event = memoryview(block).cast("B"), memoryview(event).cast("B")
        self._submit: Callable[[], int] = partial(quick, ctypes.c_long(submit), context, one, blocks)
        self._get_event: Callable[[], int] = partial(quick, ctypes.c_long(get_events), context, one, one, event, None)
        self._destroy: Callable[[], int] = partial(waiting, ctypes.c_long(destroy), context)

    def submit(self, control_block: bytes) -> bool:
        self._block[:] = control_block
        return self._submit() == 1

    def take_result(self) -> int:
        taken = self._get_event()
        assert taken == 1, "an eventfd that was signalled has an event"
        result: int = _EVENT.unpack(self._event)[2]
        return result

    def close(self) -> None:
        self._destroy()
