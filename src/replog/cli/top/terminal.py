"""A terminal for a live view: the other screen, keys without Enter, and everything restored at the end, whatever happens."""

from __future__ import annotations

import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import trio
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

_KEYS_AT_ONCE = 64
_SEVERAL_BYTES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|.)?", re.DOTALL)  # arrows and the like mean nothing here


class Screen:
    """The terminal of standard output, and of standard input if that is one, as a context manager."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.has_keys = sys.stdin is not None and sys.stdin.isatty()
        self._live: Live | None = None
        self._modes: list[object] | None = None

    @property
    def size(self) -> tuple[int, int]:
        """The present width and height, in characters."""
        return self.console.size.width, self.console.size.height

    @contextmanager
    def open(self) -> Iterator[None]:
        """Take the terminal, and restore it at the end."""
        self._take()
        try:
            yield
        finally:
            self._give_back()

    def _take(self) -> None:
        if self.has_keys:
            self._modes = termios.tcgetattr(sys.stdin.fileno())
            # Cbreak and not raw: Ctrl-C and Ctrl-Z stay signals. At once, without waiting for output to drain.
            tty.setcbreak(sys.stdin.fileno(), termios.TCSANOW)
        self._live = Live(console=self.console, screen=True, auto_refresh=False, redirect_stdout=False)
        self._live.start()

    def _give_back(self) -> None:
        try:
            if self._live is not None:
                self._live.stop()
        finally:
            self._live = None
            if self._modes is not None:
                with suppress(termios.error):  # the terminal itself may be gone
                    termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._modes)  # type: ignore[arg-type]
                self._modes = None

    def show(self, lines: Sequence[Text]) -> None:
        """Draw this over what was there, in one write."""
        if self._live is not None:
            self._live.update(Group(*lines), refresh=True)

    def stop_here(self) -> None:
        """Do what Ctrl-Z means: restore the terminal, stop this process, and take the terminal again when it goes on."""
        self._give_back()
        # SIGTSTP is caught here, so stopping oneself takes the signal that cannot be.
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()


async def watch_terminal(
    screen: Screen, redraw: Callable[[], None], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Redraw when the terminal's size changes, and handle Ctrl-Z. Runs until cancelled."""
    with trio.open_signal_receiver(signal.SIGWINCH, signal.SIGTSTP) as signals:
        task_status.started()
        async for number in signals:
            if number == signal.SIGTSTP:
                screen.stop_here()
            redraw()


async def watch_keys(screen: Screen, pressed: Callable[[str], None]) -> None:
    """Report each key, as its character. Returns when the terminal is gone, or at once if there is none."""
    if not screen.has_keys:
        return
    descriptor = sys.stdin.fileno()
    while True:
        await trio.lowlevel.wait_readable(descriptor)
        try:
            found = os.read(descriptor, _KEYS_AT_ONCE)
        except OSError:
            # The terminal is gone; SIGHUP says so to the whole command.
            return
        if not found:
            return
        for character in _SEVERAL_BYTES.sub(b"", found).decode("utf-8", "replace"):
            pressed(character)
