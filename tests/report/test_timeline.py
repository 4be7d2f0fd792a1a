"""The memory of a traced step in the units that are drawn."""

from zbench.report.timeline import stacked

SAMPLES = [
    {"seconds": 0.0, "device": {"parameters": 1 << 20}, "host": {}},
    {"seconds": 0.25, "device": {"parameters": 1 << 20, "activations": 3 << 19}, "host": {}},
]


def test_time_is_in_milliseconds_and_memory_in_mebibytes_with_gaps_filled() -> None:
    assert stacked(SAMPLES, "device") == ([0.0, 250.0], {"parameters": [1.0, 1.0], "activations": [0.0, 1.5]})


def test_a_kind_without_memory_has_no_stack() -> None:
    assert stacked(SAMPLES, "host") == ([0.0, 250.0], {})
