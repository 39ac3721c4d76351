"""What people see: a live picture in a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import Self

import trio
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

_FRAME_S = 0.1
_PLAIN_EVERY_S = 1.0
_RATE_OVER_FRAMES = 10
_HISTORY_FRAMES = 30
_BAR_WIDTH = 30
_HEIGHTS = "▁▂▃▄▅▆▇█"


class View:
    """Shows steps as they are done, and how the present one goes. Use it as a context, and run `animate` meanwhile.

    Without a terminal there are no control codes: a line for each step, and one a second while it goes on."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        self._is_unicode = not console.options.ascii_only
        self._spinner = Spinner("dots" if self._is_unicode else "line", style="cyan")
        self._live = Live(self, console=console, auto_refresh=False, transient=True)
        self._step = ""
        self._forget()

    def _forget(self) -> None:
        self._started = self._spoken = time.monotonic()
        self._entries = 0
        self._position = ""
        self._in_flight: int | None = None
        self._followed: int | None = None
        self._fraction: float | None = None
        self._moving = False
        self._samples: deque[tuple[float, int]] = deque(maxlen=_RATE_OVER_FRAMES)
        self._rates: deque[float] = deque(maxlen=_HISTORY_FRAMES)

    # -- what happens -----------------------------------------------------------------------------------------------

    def heading(self, text: str) -> None:
        """An act begins."""
        self._step = ""
        self._console.print()
        if self._is_live:
            self._console.print(Rule(Text(text, style="bold"), align="left", style="dim"))
        else:
            self._console.print(Text(text))

    def step(self, text: str) -> None:
        """This goes on now; it has no end yet."""
        self._step = text
        self._forget()
        if self._is_live:
            self._live.refresh()

    def progress(
        self,
        entries: int,
        position: str,
        *,
        in_flight: int | None = None,
        followed: int | None = None,
        fraction: float | None = None,
    ) -> None:
        """How far the present step is. May be called as often as one likes."""
        self._entries, self._position, self._fraction = entries, position, fraction
        self._in_flight, self._followed = in_flight, followed
        now = time.monotonic()
        if not self._moving:
            self._moving = True
            self._samples.append((now, entries))
        if not self._is_live and now - self._spoken >= _PLAIN_EVERY_S:
            self._spoken = now
            self._samples.append((now, entries))
            line = f"  ..  {self._step}: {entries:,} entries, {self._rate():,.0f}/s, at {position}"
            self._console.print(Text(line), soft_wrap=True)

    def done(self, text: str, *, bad: bool = False) -> None:
        """A step has come to its end: this stays."""
        self._step = ""
        if self._is_unicode:
            mark = ("✘", "bold red") if bad else ("✔", "green")
        else:
            mark = ("!!", "bold red") if bad else ("ok", "green")
        if self._is_live:
            line = Table.grid(padding=(0, 2, 0, 0))
            line.add_row("", Text(*mark), text)
            self._console.print(line)
        else:
            self._console.print(Text.assemble("  ", mark, "  ", text), soft_wrap=True)

    def show(self, renderable: RenderableType) -> None:
        """Something that stays, as it is."""
        self._console.print(renderable, soft_wrap=not self._is_live)

    # -- the live picture ---------------------------------------------------------------------------------------------

    async def animate(self) -> None:
        """Draws the live picture again and again, until cancelled."""
        while self._is_live:
            now = time.monotonic()
            if self._moving:
                self._samples.append((now, self._entries))
                self._rates.append(self._rate())
            self._live.refresh()
            await trio.sleep(_FRAME_S)

    def _rate(self) -> float:
        """Entries a second of late."""
        (since, before), (until, after) = self._samples[0], self._samples[-1]
        return (after - before) / (until - since) if until > since else 0.0

    def __rich__(self) -> RenderableType:
        if not self._step:
            return Text("")
        self._spinner.update(text=Text.assemble(f" {self._step}", (f"  {self._elapsed():.1f} s", "dim")))
        step = Padding(self._spinner, (0, 0, 0, 2), expand=False)
        if not self._moving:
            return step
        bar = ProgressBar(
            total=1.0,
            completed=min(self._fraction or 0.0, 1.0),
            width=_BAR_WIDTH,
            pulse=self._fraction is None,
            complete_style="cyan",
            finished_style="cyan",
        )
        counts = Table.grid(padding=(0, 1))
        counts.add_column(width=_BAR_WIDTH)
        counts.add_row(bar, Text.assemble((f"{self._entries:,}", "bold"), f" entries, at {self._position}"))
        flying = "" if self._in_flight is None else f", {self._in_flight:,} in flight"
        flying += "" if self._followed is None else f", the follower at {self._followed:,}"
        rate = self._samples and f"{self._rate():,.0f} entries/s"
        counts.add_row(Text(self._sparkline(), style="cyan"), Text.assemble(rate or "", (flying, "dim")))
        return Group(step, Padding(counts, (0, 0, 0, 4), expand=False))

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _sparkline(self) -> str:
        if not self._is_unicode:
            return ""
        highest = max(self._rates, default=0.0) or 1.0
        return "".join(_HEIGHTS[int(rate / highest * (len(_HEIGHTS) - 1))] for rate in self._rates)

    def __enter__(self) -> Self:
        if self._is_live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._step = ""
        if self._is_live:
            self._live.stop()
