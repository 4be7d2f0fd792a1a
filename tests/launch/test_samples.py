"""Kept samples: how long the next ones take, and which of them a file has."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.making import make_record
from zbench.errors import UsageError
from zbench.launch import samples
from zbench.launch.samples import KeptSamples, Sample, Side


class Taker:
    """Takes samples of a record, in ten seconds each; no pair of them. remembered: those of a file."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.remembered: list[Side] = []

    def take(self, side: Side) -> Sample:
        self.now += 10.0
        return [make_record()]

    def take_in_turns(self, first: Side, second: Side) -> None:
        self.now += 5.0

    def remember(self, side: Side, sample: Sample) -> None:
        self.remembered.append(side)


@pytest.fixture
def taker(monkeypatch: pytest.MonkeyPatch) -> Taker:
    taker = Taker()
    monkeypatch.setattr(samples, "time", SimpleNamespace(monotonic=lambda: taker.now))
    return taker


def test_samples_of_a_file_cost_their_seconds_and_no_time(taker: Taker, tmp_path: Path) -> None:
    for _ in range(2):
        kept = KeptSamples(taker, tmp_path / "samples", {"of": "these"}, max_seconds=10.0)
        taken = kept.take("base"), kept.take("head")
        assert kept.take_in_turns("base", "head") is None
        written = (tmp_path / "samples").read_bytes().splitlines(keepends=True)
        assert len(written) == 4, "each is in the file before the next is taken"
        kept.close()
    assert taken == ([make_record()],) * 2
    assert (taker.now, taker.remembered) == (1025.0, ["base", "head"])
    assert kept.time_left(2) == " (0:25 left)"
    again = KeptSamples(taker, tmp_path / "samples", {"of": "these"}, max_seconds=0.0)
    again.take("base")
    again.take("head")
    assert again.is_time_for(2), "one is in the file"
    again.take_in_turns("base", "head")
    assert not again.is_time_for(2)
    again.close()
    (tmp_path / "samples").write_bytes(b"".join([*written[:2], written[3]]))
    with pytest.raises(UsageError, match=":3: damaged line; measure again without --resume"):
        KeptSamples(taker, tmp_path / "samples", {"of": "these"})
