"""A record survives its way to disk and back; a line that is no record is refused in words."""

import json
import math
import random
import zlib

import pytest

from tests.making import make_record
from zbench.errors import UsageError
from zbench.record import lines
from zbench.record.documents import DamagedError
from zbench.record.record import Correctness, Failure, Traffic


def test_record_comes_back_equal():
    record = make_record(
        error=Failure("crashed", "why", "logs/x"),
        traffic={"all_reduce": Traffic(3, 400)},
        correctness=Correctness("identical", 0.0),
        warnings=["loaded\nlate"],
    )
    line = lines.encode(record)
    assert lines.decode_line(line) == record
    assert line.count(b"\n") == 1


def test_non_finite_figures_are_valid_json_and_come_back():
    record = make_record(correctness=Correctness("wrong", error_ratio=math.inf, max_abs_diff=math.nan))
    line = lines.encode(record)
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    back = lines.decode_line(line).correctness
    assert back.error_ratio == math.inf
    assert math.isnan(back.max_abs_diff)


def summed(text: bytes) -> bytes:
    """Return a line whose checksum is right."""
    text = b'"after":"00000000",' + text
    return b'{"checksum":"%08x",%s' % (zlib.crc32(text), text)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"schema_version":1}', "damaged line"),
        (summed(b'"deep":' + b"[" * 100_000 + b"}"), "damaged line"),
        (summed(b'"schema_version":2}'), "newer zbench"),
        (summed(b'"schema_version":1}'), "not a zbench record: run_id"),
    ],
)
def test_what_is_no_record_is_refused_with_its_place(line, words):
    with pytest.raises(UsageError, match=f"trials.jsonl:7: .*{words}"):
        lines.decode_line(line, "trials.jsonl:7")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outcome": "fine"}, "outcome"),
        ({"trial_id": "../../../../precious"}, "trial_id: expected hexadecimal digits, got '../../"),
        ({"repeat": -1}, "repeat: expected 0 or more, got -1"),
        ({"correctness": {"verdict": "equivalent", "error_ratio": "nan"}}, r"correctness\.error_ratio: nan "),
        ({"timing": None}, "timing: missing, though the repeat succeeded"),
        ({"config": {"engine": "builtin"}}, r"not a zbench record: config\.engine: expected an object"),
    ],
)
def test_wrong_type_names_the_key(change, message):
    with pytest.raises(UsageError, match=message):
        lines.decode(lines.jsonable(make_record()) | change)


def test_what_an_older_record_lacks_means_what_it_meant_then():
    part = {"peak_device_bytes": 1, "peak_host_bytes": 2, "peak_rss_bytes": 3}
    keys = {"run_id": "r", "trial_id": "a", "repeat": 0, "axes": {}, "config": {}, "outcome": "crashed"}
    read = lines.decode(
        {**keys, "schema_version": 1, "memory": part, "correctness": {"verdict": "identical"}}
        | {"disturbance": {"load": 0.5}}
    )
    assert read.memory.exact
    assert read.correctness.deterministic_steps == 0
    assert (read.disturbance.stolen, read.disturbance.throttled) == (0, 0)


def test_later_line_replaces_an_earlier_one_of_the_same_repeat(tmp_path):
    file = tmp_path / "trials.jsonl"
    records = [make_record(rate=1.0), make_record(repeat=1), make_record(rate=2.0)]
    file.write_bytes(lines.encode_all(records))
    read = lines.read(file).records
    assert [(r.repeat, r.timing.tokens_per_s) for r in read] == [(0, 2.0), (1, 100.0)]


def test_a_bit_that_flips_anywhere_is_noticed(tmp_path):
    records = [make_record(repeat=number) for number in range(3)]
    file = tmp_path / "trials.jsonl"
    whole = lines.encode_all(records)
    flips = random.Random(0).sample(range(8 * len(whole)), 300)
    for bit in flips:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        file.write_bytes(damaged)
        with pytest.raises(DamagedError):
            lines.read(file)


@pytest.mark.parametrize("order", [(1, 2, 3), (0, 2, 3), (0, 1, 1, 2, 3), (0, 2, 1, 3)])
def test_lines_that_are_lost_doubled_or_exchanged_are_noticed_and_mended(tmp_path, order):
    records = [make_record(repeat=number) for number in range(4)]
    file = tmp_path / "trials.jsonl"
    whole = lines.encode_all(records).splitlines(keepends=True)
    file.write_bytes(b"".join(whole[number] for number in order))
    with pytest.raises(DamagedError, match=r"trials\.jsonl:\d: the line before it is missing, or lines were"):
        lines.read(file)
    assert lines.mended(file).damage
    assert [record.repeat for record in lines.read(file).records] == list(dict.fromkeys(order))
    assert lines.mended(file).damage == ()


def test_a_record_of_another_run_is_refused_with_its_line(tmp_path):
    record, other = make_record(run_id=tmp_path.name), make_record(run_id="other", repeat=1)
    file = tmp_path / "trials.jsonl"
    for records, line in (([record, other], 2), ([other, record], 1), ([other, make_record(run_id="x")], 2)):
        file.write_bytes(lines.encode_all(records))
        with pytest.raises(UsageError, match=rf"trials\.jsonl:{line}: a record of another run, (other|x);"):
            lines.read(file)
    file.write_bytes(lines.encode(other))
    assert lines.read(file).records == [other], "the directory was renamed"
