"""What each choice costs: pairs that agree in all other axes, intervals, and where it is another."""

import itertools
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from zbench.analysis.ranking import Ranking, rank
from zbench.record.record import Record
from zbench.record.summary import summarize
from zbench.report.answer import effect_text
from zbench.report.exports.csv import render_effects

from .synthetic import record
from .test_ranking import FASTEST

STAGES, OFFLOADS, BUCKETS = (1, 2, 3), ("none", "cpu"), (100, 500)


def sweep(costs: Mapping[tuple[Any, Any, Any], float], repeats: int = 3) -> list[Record]:
    """Return the records of stages x offloads x buckets at 1 % noise; costs: logarithms, 0 where missing."""
    rng = np.random.default_rng(7)
    records = []
    for repeat, point in itertools.product(range(repeats), itertools.product(STAGES, OFFLOADS, BUCKETS)):
        axes = dict(zip(("zero_stage", "offload_optimizer", "bucket"), point, strict=True))
        step_s = 0.1 * math.exp(costs.get(point, 0.0) + 0.1 * repeat + rng.normal(0, 0.01))
        records.append(record(step_s, axes=axes, repeat=repeat))
    return records


def ranked(records: list[Record]) -> Ranking:
    return rank(summarize(records), FASTEST)


def test_an_effect_is_of_pairs_that_agree_in_other_axes() -> None:
    slow = dict.fromkeys(itertools.product(STAGES, OFFLOADS, (100,)), math.log(1.12))
    ranking = ranked(sweep(slow))
    bucket = ranking.effects[0]
    assert (bucket.axis, bucket.value, bucket.against, bucket.pairs) == ("bucket", 100, 500, 6)
    assert bucket.low is not None
    assert bucket.high is not None
    assert 0.09 < bucket.low < 0.12 < bucket.high < 0.15
    assert bucket.exception is None
    assert ranking.document()["effects"][0]["axis"] == "bucket"
    others = [one for one in ranking.effects if one.axis != "bucket"]
    assert all(one.low < 0 < one.high for one in others if one.low is not None and one.high is not None)
    assert len(others) == 3, "each value against that of the recommended one"


def test_a_recommended_value_without_pairs_hides_no_effect() -> None:
    slow = dict.fromkeys(itertools.product(STAGES, OFFLOADS, (100,)), math.log(1.12))
    alone = {"zero_stage": 2, "offload_optimizer": "none", "bucket": "default", "overlap": False}
    records = sweep(slow) + [record(0.05 * math.exp(0.1 * n), axes=alone, repeat=n) for n in range(3)]
    bucket = next(one for one in ranked(records).effects if one.axis == "bucket")
    assert (bucket.value, bucket.against, bucket.pairs) == (100, 500, 6)


def test_where_an_effect_is_another_one_is_named() -> None:
    slow = dict.fromkeys(itertools.product(STAGES, ("none",), (100,)), 0.2)
    bucket = next(one for one in ranked(sweep(slow)).effects if one.axis == "bucket")
    assert bucket.exception is not None
    is_cpu = bucket.exception == ("offload_optimizer", "cpu")
    assert is_cpu or bucket.exception == ("offload_optimizer", "none")
    there = 0.0 if is_cpu else math.expm1(math.copysign(0.2, bucket.change))
    assert bucket.change_there == pytest.approx(there, abs=0.03)
    assert bucket.is_none_there == is_cpu


def test_effects_are_lines_of_csv_and_text() -> None:
    slow = dict.fromkeys(itertools.product(STAGES, ("none",), (100,)), 0.2)
    ranking = ranked(sweep(slow))
    header, *lines = render_effects(ranking).splitlines()
    assert header.startswith("axis,value,against,change,low,high,pairs,exception")
    assert len(lines) == len(ranking.effects)
    text = effect_text(next(one for one in ranking.effects if one.axis == "bucket"))
    assert re.match(r"bucket: \d+ against \d+ [+-]\d+\.\d % \([+-][\d.]+ to [+-][\d.]+\), 6 pairs; ", text)
    assert text.endswith(("not where offload_optimizer=cpu", "% where offload_optimizer=none"))
