"""Kept samples: how long the next ones take, and which of them a file has."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.making import make_record
from zbench.errors import UsageError
from zbench.launch import samples
from zbench.launch.references import References, is_verified
from zbench.launch.samples import KeptSamples, Sample, Side
from zbench.spec.trial import TrialSpec

from .conftest import make_trial


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


def test_what_remains_takes_as_long_as_what_was_taken(taker: Taker) -> None:
    kept = KeptSamples(taker, None, {}, max_seconds=110.0)
    assert (kept.taken, kept.time_left(1), kept.is_time_for(9999)) == (0, "", True)
    for side in ("base", "head"):
        kept.take(side)
    assert kept.time_left(3, 9) == " (0:30 to 1:30 left)"
    assert kept.time_left(3, 3) == " (0:30 left)"
    assert (kept.is_time_for(9), kept.is_time_for(10)) == (True, False)
    assert kept.take_in_turns("base", "head") is None
    assert (kept.taken, kept.time_left(8)) == (2, " (1:40 left)"), "a refusal took time, too"


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


def of(trial: TrialSpec, *, mode: str = "full", **workload: object) -> TrialSpec:
    changed = {"verify": trial.verify.model_copy(update={"mode": mode})}
    return trial.model_copy(update={**changed, "workload": trial.workload.model_copy(update={**workload})})


def test_a_command_without_a_checkpoint_and_a_trial_that_says_so_are_not_verified(tmp_path: Path) -> None:
    trial = make_trial()
    none = [
        of(trial, mode="off"),
        of(trial, command="train"),
        of(trial, mode="off", command="t", checkpoint="c"),
    ]
    verified = [of(trial), of(trial, mode="reference"), of(trial, command="train", checkpoint="c")]
    assert [is_verified(each) for each in (*none, *verified)] == [False] * 3 + [True] * 3
    references = References(tmp_path, lambda text: None)
    assert references.missing(none) == []
    assert references.are_known(none)
    assert not references.are_known(verified[:1])
    assert len(references.missing(verified[:1])) == 1
    assert references.missing(verified[:1]) == [], "it was asked for"
    assert references.of(trial) is None
