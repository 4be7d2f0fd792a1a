"""What a sweep shows while it runs: one row a finished trial, and on a terminal a bar with the time left."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

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
from zbench.record.summary import best, summarize
from zbench.report.table import OUTCOME_STYLE, VERDICT_STYLE, axes_text, rate_text
from zbench.spec.sweep import ObjectiveSpec
from zbench.units import format_bytes


class Progressed:
    """What is known of a sweep that is under way: done, left, seconds left, best, failures."""

    def __init__(self, objective: ObjectiveSpec) -> None:
        self.done = self.left = self.failed = 0
        self._objective = objective
        self._records: list[Record] = []
        self._seconds: list[float] = []

    def take(self, event: Event) -> None:
        """Follow one event."""
        if isinstance(event, SweepStarted):
            self._records = list(event.finished)
            self.left = event.repeats
            self.failed = sum(record.outcome in ("oom", "timeout", "crashed") for record in event.finished)
        elif isinstance(event, TrialFinished):
            self._records.append(event.record)
            self._seconds.append(event.seconds)
            self.done, self.left = self.done + 1, event.left
            self.failed += event.record.outcome in ("oom", "timeout", "crashed")

    @property
    def seconds_left(self) -> float | None:
        """What is left takes as long as what was done, on average; None before the first trial ended."""
        return self.left * sum(self._seconds) / len(self._seconds) if self._seconds else None

    def best_text(self) -> str:
        """Return the best configuration so far in a few words."""
        winner = best(summarize(self._records), self._objective)
        if winner is None:
            return "no best yet"
        return f"best {rate_text(winner.number('tokens_per_s'))} tokens/s: {axes_text(winner.axes)}"


def record_line(record: Record) -> Text:
    """Return a finished repeat in one line."""
    text = Text.assemble((f"{record.outcome:8}", OUTCOME_STYLE[record.outcome]), f" {axes_text(record.axes)}")
    text.append(f" #{record.repeat + 1}", "dim")
    if record.timing is not None:
        text.append(f"  {rate_text(record.timing.tokens_per_s)} tokens/s")
    if record.memory is not None and record.memory.peak_device_bytes is not None:
        text.append(f"  {format_bytes(record.memory.peak_device_bytes)}")
    if record.outcome == "ok":
        text.append(f"  {record.correctness.verdict}", VERDICT_STYLE[record.correctness.verdict])
    elif record.error is not None:
        text.append(f"  {record.error.message}")
    return text


def clock_text(seconds: float | None) -> str:
    """Return a time left, as `1:05` or `2:00:00`; `-:--` where it is not known."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class PlainView:
    """One line a finished repeat, for logs and pipes."""

    def __init__(self, console: Console, objective: ObjectiveSpec) -> None:
        self._console = console
        self._state = Progressed(objective)

    def __call__(self, event: Event) -> None:
        """Print what there is to say of the event."""
        self._state.take(event)
        if isinstance(event, SweepStarted):
            self._console.print(_opening(event), soft_wrap=True)
        elif isinstance(event, Notice):
            self._console.print(Text(f"note: {event.text}", "dim"), soft_wrap=True)
        elif isinstance(event, TrialFinished):
            total = self._state.done + self._state.left
            count = f"[{self._state.done:>{len(str(total))}}/{total}] "
            left = f"  ({clock_text(self._state.seconds_left)} left)" if event.left else ""
            self._console.print(Text.assemble(count, record_line(event.record), left), soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class LiveView:
    """The same lines, above a bar that shows what runs now, the time left, the best so far and failures."""

    def __init__(self, console: Console, objective: ObjectiveSpec) -> None:
        self._console = console
        self._state = Progressed(objective)
        self._began = time.monotonic()
        self._now = "starting"
        self._bar = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            console=console,
            auto_refresh=False,
        )
        self._task = self._bar.add_task("", total=None, status="")
        self._live = Live(console=console, refresh_per_second=8, transient=True, get_renderable=self._render)

    def __call__(self, event: Event) -> None:
        """Follow one event."""
        self._state.take(event)
        match event:
            case SweepStarted():
                self._live.console.print(_opening(event))
            case Notice():
                self._live.console.print(Text(f"note: {event.text}", "dim"))
            case ReferenceStarted():
                self._now = "computing the reference trajectory in plain PyTorch"
            case TrialStarted():
                self._now = f"{axes_text(event.trial.axes)} #{event.repeat + 1}"
            case StepDone():
                phase, step, steps = (event.line.get(key, "") for key in ("phase", "step", "steps"))
                self._now = f"{self._now.split('  ')[0]}  {phase} {step}/{steps}"
            case TrialFinished():
                self._live.console.print(record_line(event.record))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def _render(self) -> Progress:
        state = self._state
        failed = f"  {state.failed} failed" if state.failed else ""
        status = f"{clock_text(state.seconds_left)} left{failed}\n{self._now}\n{state.best_text()}"
        self._bar.update(
            self._task, completed=state.done, total=(state.done + state.left) or None, status=status
        )
        return self._bar


def _opening(event: SweepStarted) -> str:
    again = f", {len(event.finished)} records kept" if event.finished else ""
    return f"{event.configurations} configurations, {event.repeats} repeats to run{again}: {event.run_dir}"


def view(console: Console, objective: ObjectiveSpec, *, quiet: bool) -> "LiveView | PlainView | QuietView":
    """Return what suits the stream: nothing with -q, a live view on a terminal, plain lines otherwise."""
    if quiet:
        return QuietView()
    return LiveView(console, objective) if console.is_terminal else PlainView(console, objective)


class QuietView:
    """Says nothing."""

    def __call__(self, event: Event) -> None:
        """Ignore the event."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None
