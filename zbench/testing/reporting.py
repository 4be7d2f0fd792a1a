"""The suites of trackers (`--log`, plug-ins of `zbench.trackers`) and of formats of `zbench compare`."""

import re
from pathlib import Path
from typing import ClassVar

import pytest

from zbench.analysis.compare import Comparison
from zbench.record.record import Correctness, Failure, MemoryPeaks, Record, Timing
from zbench.report.exports import FORMATS
from zbench.report.trackers import TrackerFactory, tracker_factory

GOOD = Record(
    "run",
    "aaaaaaaaaaaa",
    0,
    {"zero_stage": 1, "betas": [0.9, 0.95]},
    {"run": {"world_size": 2}},
    "ok",
    timing=Timing([0.5, 0.25], 0.375, 100.0, 1.0),
    memory=MemoryPeaks(1000, None, 5000),
    correctness=Correctness("wrong", error_ratio=float("inf")),
)
FAILED = Record(
    "run", "bbbbbbbbbbbb", 1, {}, {}, "crashed", error=Failure("crashed", "it fell over\nwith a 雪 in it")
)


class TrackerSuite:
    """Conformance tests: a tracker takes each kind of repeat. name: of the tracker, as `--log` takes it."""

    name: ClassVar[str]

    @pytest.fixture
    def factory(self) -> TrackerFactory:
        """Return the tracker's factory, as `--log` finds it."""
        return tracker_factory(self.name)

    def logged(self, directory: Path) -> str:
        """Return everything that the tracker has written, as text."""
        raise NotImplementedError

    def test_a_good_and_a_failed_repeat_are_there_after_close(
        self, factory: TrackerFactory, tmp_path: Path
    ) -> None:
        tracker = factory(tmp_path, "tried")
        for record in (GOOD, FAILED):
            tracker.log(f"{record.trial_id}-r{record.repeat}", record)
        tracker.close()
        text = self.logged(tmp_path)
        for expected in ("aaaaaaaaaaaa-r0", "bbbbbbbbbbbb-r1", "tokens_per_s", "wrong", "it fell over"):
            assert expected in text

    def test_a_sweep_without_a_repeat_can_be_closed(self, factory: TrackerFactory, tmp_path: Path) -> None:
        factory(tmp_path, "tried").close()


class ExporterSuite:
    """Conformance tests: a format names each configuration, in valid syntax. format: a key of `FORMATS`.

    A subclass provides the fixtures `comparison` (of configurations with several answers) and `hostile` (of
    names that try to be markup).
    """

    format: ClassVar[str]

    def text(self, comparison: Comparison) -> str:
        """Return the format's text."""
        return FORMATS[self.format][0](comparison)

    def check_syntax(self, text: str) -> None:
        """Raise if the text is not valid in its format."""
        raise NotImplementedError

    def test_every_configuration_is_named_by_its_axes(self, comparison: Comparison) -> None:
        text = self.text(comparison).replace("\\", "")  # as escaped as its format wants
        for row in comparison.rows:
            for axis, value in row.head.axes.items():
                assert re.search(rf"{axis}\W+{value}\b", text), (axis, value)

    def test_text_is_valid_whatever_names_hold(self, comparison: Comparison, hostile: Comparison) -> None:
        for each in (comparison, hostile):
            self.check_syntax(self.text(each))

    def test_the_same_comparison_is_the_same_text(self, comparison: Comparison) -> None:
        assert self.text(comparison) == self.text(comparison)

    def test_no_control_character_reaches_a_terminal(self, hostile: Comparison) -> None:
        assert not [c for c in self.text(hostile) if ord(c) < 32 and c not in "\n\r\t"]
