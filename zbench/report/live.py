"""The output of a sweep under way: one line per finished repeat and, on a terminal, a progress bar."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from zbench.analysis.ranking import by_figure
from zbench.launch import events
from zbench.record.record import Record
from zbench.record.summary import has_failed, summarize
from zbench.report.roles import word
from zbench.report.screen import Screen
from zbench.report.text import (
    axes_text,
    failure_message,
    figure_text,
    outcome_text,
    plural,
    printable,
    throughput_text,
)
from zbench.spec.sweep import ObjectiveSpec
from zbench.units import format_clock

_WIDEST_BAR = 24


class PlainView:
    """One line per finished repeat, for logs and pipes."""

    def __init__(self, screen: Screen, objective: ObjectiveSpec) -> None:
        self._screen, self._objective = screen, objective
        self._records: list[Record] = []
        self._noted: set[str] = set()
        self._seconds: list[float] = []
        self._left = 0
        self._is_search = False

    def __call__(self, event: events.Event) -> None:
        """Handle one event, and print its line, if it has one."""
        match event:
            case events.SweepStarted():
                self._records += event.finished
                self._left = event.repeats
                self._is_search = event.is_search
                self._print(_opening(event))
                if event.repeats:
                    self._show("importing torch, once for all trials")
            case events.ReferenceStarted() if event.trial.workload.command is not None:
                self._show("running the script without the axes, as the reference")
            case events.ReferenceStarted():
                self._show("computing the reference in plain PyTorch")
            case events.TrialStarted():
                self._show(f"starting {axes_text(event.trial.axes)} #{event.repeat + 1}")
            case events.Notice() if event.text not in self._noted:
                self._noted.add(event.text)
                self._print(Text(f"note: {printable(event.text)}", "dim"))
            case events.TrialFinished():
                self._records.append(event.record)
                self._seconds.append(event.seconds)
                self._left = event.left
                self._print(self._finished_line(event.record))

    @property
    def _done(self) -> int:
        return len(self._seconds)

    @property
    def _time_left(self) -> str:
        """What is left takes as long as what was done, on average."""
        return format_clock(self._left * sum(self._seconds) / self._done if self._done else None)

    def _show(self, now: str) -> None:
        """Print what happens before the first repeat has finished, which can take a minute."""
        if not self._seconds:
            self._print(Text(now, "dim"))

    def _finished_line(self, record: Record) -> Text:
        if self._is_search:
            return Text.assemble(f"[{self._done}] ", record_line(record))
        total = self._done + self._left
        count = f"[{self._done:>{len(str(total))}}/{total}] "
        return Text.assemble(count, record_line(record), f"  ({self._time_left} left)" if self._left else "")

    def _print(self, line: Text | str) -> None:
        self._screen.print(line, soft_wrap=True)


class LiveView(PlainView):
    """The same lines, above a bar with the running trial, the time left, the leading trial and failures."""

    def __init__(self, screen: Screen, objective: ObjectiveSpec) -> None:
        super().__init__(screen, objective)
        self._now, self._step, self._leader = "preparing the run", "", ""
        self._under_way: dict[str, str] = {}
        self._failed = 0
        self.live = Live(console=screen, transient=True, get_renderable=self._render)

    def __call__(self, event: events.Event) -> None:
        """Follow one event."""
        super().__call__(event)
        match event:
            case events.TrialStarted():
                self._under_way[event.trial.trial_id] = self._now
            case events.StepDone():
                phase, step, steps = (event.line.get(key, "") for key in ("phase", "step", "steps"))
                self._now = self._under_way.get(event.trial.trial_id, self._now)  # several may take turns
                self._step = printable(f" {phase} {step}/{steps}")
        if isinstance(event, events.SweepStarted | events.TrialFinished):
            self._leader = self._leader_text()
            self._failed = sum(map(has_failed, self._records))

    def _leader_text(self) -> str:
        leader = next(iter(by_figure(summarize(self._records), self._objective)), None)
        if leader is None:
            return "none leads yet"
        return f"leads so far {throughput_text(leader)}: {axes_text(leader.axes)}"

    def _show(self, now: str) -> None:
        self._now, self._step = now, ""

    def _finished_line(self, record: Record) -> Text:
        return record_line(record)

    def _print(self, line: Text | str) -> None:
        self._screen.print(line)

    def _render(self) -> Group:
        total = self._done + self._left
        head = Table.grid(padding=1)
        # rich makes it narrower on a narrow terminal
        bar = ProgressBar(total=max(1, total), completed=self._done, width=_WIDEST_BAR)
        failures = Text(f"{self._failed} failed" if self._failed else "", "red")
        if self._is_search:
            head.add_row(plural(self._done, "repeat"), failures)
        else:
            head.add_row(bar, f"{self._done}/{total}", f"{self._time_left} left", failures)
        lines = [Text(f"{self._now}{self._step}"), Text(self._leader, "dim")]
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        return Group(head, *lines)


@contextmanager
def view(screen: Screen, objective: ObjectiveSpec, *, quiet: bool) -> Iterator[events.OnEvent]:
    """Yield the view for the stream: none with -q, a live view on a terminal, plain lines otherwise."""
    if quiet:
        yield lambda _: None
    elif screen.is_terminal and not screen.is_dumb_terminal:
        live_view = LiveView(screen, objective)
        with live_view.live:
            yield live_view
    else:
        yield PlainView(screen, objective)


def record_line(record: Record) -> Text:
    """Return a finished repeat in one line."""
    outcome = word(outcome_text(record))
    outcome.pad_right(8 - len(outcome))
    text = Text.assemble(outcome, axes_text(record.axes), (f" #{record.repeat + 1}", "dim"))
    if record.outcome != "ok":
        return text.append(f"  {failure_message(record)}")
    (summary,) = summarize([record])
    if record.timing is not None:
        text.append(f"  {throughput_text(summary)}")
    if record.memory is not None:
        text.append(f"  {figure_text(summary, 'peak_device_bytes')}")
    return text.append("  ").append(word(record.correctness.verdict))


def _opening(event: events.SweepStarted) -> str:
    finished = f", {plural(len(event.finished), 'record')} kept" if event.finished else ""
    failed = any(record.outcome != "ok" for record in event.finished)
    finished += " (only a new run repeats what failed)" * failed
    counts = f"{plural(event.configurations, 'configuration')}, {plural(event.repeats, 'repeat')} to run"
    if event.is_search:
        trials = f"at most {plural(event.repeats, 'trial')}" if event.repeats else "trials within the budget"
        counts = f"{trials}, then the best of them again"
    return f"{counts}{finished}: {printable(str(event.run_dir))}"
