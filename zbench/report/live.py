"""The output of a sweep under way: one line per finished repeat and, on a terminal, a progress bar."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from types import TracebackType
from typing import Self

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from zbench.analysis.ranking import by_figure
from zbench.launch.events import (
    Event,
    Notice,
    ReferenceStarted,
    StepDone,
    SweepStarted,
    TrialFinished,
    TrialStarted,
)
from zbench.record.record import Record
from zbench.record.summary import has_failed, point, summarize
from zbench.report.screen import Screen
from zbench.report.text import (
    OUTCOME_STYLE,
    VERDICT_STYLE,
    axes_text,
    bytes_text,
    clock_text,
    outcome_text,
    plural,
    printable,
    rate_text,
    values_text,
)
from zbench.spec.sweep import ObjectiveSpec

_ROOM_FOR_KEYS = 110
_WIDEST_BAR = 24


class Progressed:
    """What is known of a sweep that is under way: done, left, seconds left, leader, failures."""

    def __init__(self, objective: ObjectiveSpec) -> None:
        self.done = self.left = self.failed = 0
        self._objective = objective
        self._records: list[Record] = []
        self._seconds: list[float] = []

    def take(self, event: Event) -> None:
        """Follow one event."""
        if isinstance(event, SweepStarted):
            self._add(event.finished)
            self.left = event.repeats
            self.failed = sum(map(has_failed, event.finished))
        elif isinstance(event, TrialFinished):
            self._add([event.record])
            self._seconds.append(event.seconds)
            self.done, self.left = self.done + 1, event.left
            self.failed += has_failed(event.record)

    @property
    def seconds_left(self) -> float | None:
        """What is left takes as long as what was done, on average; None before the first trial ended."""
        return self.left * sum(self._seconds) / len(self._seconds) if self._seconds else None

    @cached_property
    def leader_text(self) -> str:
        """Who leads so far in a few words."""
        leader = next(iter(by_figure(summarize(self._records), self._objective)), None)
        if leader is None:
            return "none leads yet"
        return f"leads so far {rate_text(leader.number('tokens_per_s'))} tokens/s: {axes_text(leader.axes)}"

    def _add(self, records: Sequence[Record]) -> None:
        self._records += records
        self.__dict__.pop("leader_text", None)


def record_line(record: Record, axes: Sequence[str] = ()) -> Text:
    """Return a finished repeat in one line: its point with keys or, where `axes` names them, values alone."""
    where = values_text(point(record, axes)) if axes else axes_text(record.axes)
    text = Text.assemble((f"{outcome_text(record):8}", OUTCOME_STYLE[outcome_text(record)]), where)
    text.append(f" #{record.repeat + 1}", "dim")
    if record.outcome != "ok":
        why = record.error.message.strip().split("\n")[0] if record.error else ""
        return text.append(f"  {printable(why)}")
    if record.timing is not None:
        text.append(f"  {rate_text(record.timing.tokens_per_s)} tokens/s")
    if record.memory is not None:
        text.append(f"  {bytes_text(record.memory.peak_device_bytes)}")
    return text.append(f"  {record.correctness.verdict}", VERDICT_STYLE[record.correctness.verdict])


class PlainView:
    """One line per finished repeat, for logs and pipes."""

    def __init__(self, console: Screen, objective: ObjectiveSpec) -> None:
        self._console = console
        self._state = Progressed(objective)

    def __call__(self, event: Event) -> None:
        """Print what there is to say of the event."""
        self._state.take(event)
        match event:
            case SweepStarted():
                self._say(_opening(event))
            case Notice():
                self._say(f"note: {printable(event.text)}")
            case TrialFinished():
                total = self._state.done + self._state.left
                count = f"[{self._state.done:>{len(str(total))}}/{total}] "
                left = f"  ({clock_text(self._state.seconds_left)} left)" if event.left else ""
                self._say(Text.assemble(count, record_line(event.record), left))

    def _say(self, line: Text | str) -> None:
        self._console.print(line, soft_wrap=True)


class LiveView(AbstractContextManager["LiveView"]):
    """The same lines, above a bar that shows what runs now, the time left, who leads so far and failures."""

    def __init__(self, console: Screen, objective: ObjectiveSpec) -> None:
        self._state = Progressed(objective)
        self._has_room = console.width >= _ROOM_FOR_KEYS
        self._axes: tuple[str, ...] = ()
        self._now = self._step = ""
        self._live = Live(console=console, transient=True, get_renderable=self._render)

    def __call__(self, event: Event) -> None:
        """Follow one event."""
        self._state.take(event)
        match event:
            case SweepStarted():
                self._say(_opening(event))
                if not self._has_room and event.axes:
                    self._axes = event.axes
                    self._say(Text(f"axes: {' · '.join(map(printable, event.axes))}", "dim"))
                self._now, self._step = "importing torch, once for all trials", ""
            case Notice():
                self._say(Text(f"note: {printable(event.text)}", "dim"))
            case ReferenceStarted():
                self._now, self._step = "computing the reference in plain PyTorch", ""
            case TrialStarted():
                self._now, self._step = f"{axes_text(event.trial.axes)} #{event.repeat + 1}", ""
            case StepDone():
                phase, step, steps = (event.line.get(key, "") for key in ("phase", "step", "steps"))
                self._step = printable(f" {phase} {step}/{steps}")
            case TrialFinished():
                self._say(record_line(event.record, self._axes))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def _say(self, line: Text | str) -> None:
        self._live.console.print(line)

    def _render(self) -> Group:
        state = self._state
        total = state.done + state.left
        head = Table.grid(padding=1)
        failed = Text(f"{state.failed} failed", "red") if state.failed else Text("")
        count = f"{state.done}/{total}"
        left = f"{clock_text(state.seconds_left)} left"
        # rich makes it narrower on a narrow terminal
        bar = ProgressBar(total=max(1, total), completed=state.done, width=_WIDEST_BAR)
        head.add_row(bar, count, left, failed)
        lines = [Text(f"{self._now}{self._step}"), Text(state.leader_text, "dim")]
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        return Group(head, *lines)


def view(
    console: Screen, objective: ObjectiveSpec, *, quiet: bool
) -> AbstractContextManager[Callable[[Event], None]]:
    """Return what suits the stream: nothing with -q, a live view on a terminal, plain lines otherwise."""
    if quiet:
        return nullcontext(lambda _: None)
    watched = console.is_terminal and not console.is_dumb_terminal
    return LiveView(console, objective) if watched else nullcontext(PlainView(console, objective))


def _opening(event: SweepStarted) -> str:
    kept = f", {plural(len(event.finished), 'record')} kept" if event.finished else ""
    counts = (
        f"{plural(event.configurations, 'configuration')}, {plural(event.repeats, 'repeat')} to run{kept}"
    )
    return f"{counts}: {printable(str(event.run_dir))}"
