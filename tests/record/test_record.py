"""What a record says of itself beyond what was written to it."""

import pytest

from zbench.record.record import MemoryPeaks


@pytest.mark.parametrize(
    ("simulated", "measured", "apart"),
    [
        ({"peak_device_bytes": 150}, 100, 0.5),
        ({"peak_device_bytes": 80}, 100, -0.2),
        ({"peak_device_bytes": 0}, 100, -1.0),
        ({"peak_device_bytes": 100}, 0, None),
        ({"peak_device_bytes": 100}, None, None),
        ({}, 100, None),
    ],
)
def test_the_simulated_peaks_error_is_relative_to_the_measured_one(
    simulated: dict[str, int], measured: int | None, apart: float | None, make_record
) -> None:
    memory = None if measured is None else MemoryPeaks(measured, 0, 1)
    found = make_record(simulated=simulated, memory=memory).simulated_apart
    assert found == pytest.approx(apart)
