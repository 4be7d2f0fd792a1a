"""One configuration in full: units that can be read, and shares that are explained."""

import io
import re
from dataclasses import replace

import pytest

from tests.making import make_record
from zbench.record.summary import summarize
from zbench.report.detail import print_configuration
from zbench.report.screen import Screen


@pytest.mark.parametrize(
    ("tflops", "phases", "words", "overlap"),
    [
        (0.0114, {"forward": 0.4, "backward": 0.6}, r"FLOP/s +11\.4 GFLOP/s\n", False),
        (3.0, {"forward": 0.5, "backward": 0.6}, r"FLOP/s +3 TFLOP/s\n", True),
    ],
)
def test_operations_are_in_a_unit_that_reads_well_and_phases_beyond_a_step_are_explained(
    tflops: float, phases: dict[str, float], words: str, overlap: bool
) -> None:
    record = make_record(rate=1.0)
    assert record.timing is not None
    (summary,) = summarize([replace(record, timing=replace(record.timing, tflops=tflops, phases=phases))])
    out = io.StringIO()
    print_configuration(Screen(file=out, width=200), summary)
    assert re.search(words, out.getvalue())
    assert ("their medians add up to more than a step" in out.getvalue()) == overlap
