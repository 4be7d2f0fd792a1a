"""One configuration in full: units that can be read, and shares that are explained."""

import io
import re
from dataclasses import replace

import pytest

from tests.making import make_record
from tests.report.test_kept import shown
from zbench.record.record import Coefficient, Correctness, MemoryPeaks
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


def test_what_is_not_exact_or_not_resolved_is_told() -> None:
    """A size whose error is a tenth of it or more says nothing of a fault."""
    terms = [Coefficient("clipping", 0.5, 0.0999), Coefficient("decay", 2.0, 0.1)]
    correctness = Correctness("wrong", coefficients=terms, deterministic_steps=4)
    memory = MemoryPeaks(3 << 20, 1 << 20, 9 << 20, exact=False)
    (summary,) = summarize([make_record(rate=1.0, correctness=correctness, memory=memory, losses=[0.12345])])
    lines = shown(lambda screen: print_configuration(screen, summary)).splitlines()
    said = {line[2:20].strip(): line[20:] for line in lines[1:]}
    assert said["clipping"] == "0.5 ± 0.1 of what it should be"
    assert said["decay"] == "not resolved of what it should be"
    assert (said["peak device"], said["peak RSS"]) == ("3 MiB (estimated)", "9 MiB")
    assert (said["mean step"], said["loss"]) == ("1 s", "0.1235 to 0.1235  ▄")
    assert "  deterministic steps 4" in lines
