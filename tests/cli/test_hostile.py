"""Every command that prints records, over records whose every text is an attack on the terminal."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.analysis.synthetic import BASE_ID, HEAD_ID, record, saved, write_run
from zbench.record.documents import sealed
from zbench.record.record import Failure, Record

HOSTILE = "[/red]*.[bw]*\x1b]0;owned\x07\x1b[2J\u202e\x9b31m:skull:\r"
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")


def hostile() -> list[Record]:
    good = record(axes={HOSTILE: HOSTILE, "second": {HOSTILE: [HOSTILE]}})
    assert good.timing is not None
    assert good.memory is not None
    good = replace(
        good,
        timing=replace(good.timing, phases={HOSTILE: 0.1}),
        memory=replace(good.memory, by_category={HOSTILE: 1000}),
        traffic={HOSTILE: good.traffic["all_reduce"]},
        correctness=replace(good.correctness, verdict="drifted", worst_parameter=HOSTILE),
        warnings=[HOSTILE, f"{HOSTILE}: more"],
    )
    failed = record(axes={HOSTILE: "other"}, outcome="crashed")
    failed = replace(failed, trial_id="failed", error=Failure(HOSTILE, HOSTILE, HOSTILE))
    silent = replace(failed, trial_id="silent", error=None, config={}, axes={})
    return [good, failed, silent]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    machine = {"cpu": HOSTILE, "cores": 2}
    out = tmp_path / "results"
    for name in (BASE_ID, HEAD_ID):
        path = write_run(out / "example" / name, hostile(), machine=machine, started=HOSTILE)
    (path / "search.json").write_bytes(sealed({"schema_version": 1, "importance": {HOSTILE: 1.0}}))
    broken = write_run(out / "broken" / "0", hostile())
    (broken / "spec.yaml").write_text(f'schema_version: 1\nname: "{"x" * 9}"\n"[/red]\\e[2J": 1\n')
    return out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("show last --verbose", 0),
        ("show last --trial {failed}", 0),
        ("show last --trial {silent}", 0),
        ("show last --trial nope", 2),
        ("list", 0),
        ("report {head}", 0),
        ("compare {base} {head}", 4),
        ("compare {base} {head} --format markdown", 4),
        ("compare {base} {head} --format junit", 4),
        ("history", 0),
        ("export {head} --trial best", 2),
        ("plan {name}.yaml", 2),
    ],
)
def test_no_command_lets_a_control_character_or_markup_through(zbench, out, words, expected):
    paths = {"base": out / "example" / BASE_ID, "head": out / "example" / HEAD_ID, "name": HOSTILE}
    paths |= {name: saved(replace(record(), trial_id=name)).trial_id for name in ("failed", "silent")}
    code, stdout, err = zbench(*(word.format(**paths) for word in words.split()))
    assert code == expected, err
    assert not RAW.findall(stdout + err)
    assert "internal error" not in err


def test_json_holds_the_texts_as_they_are(zbench, out):
    shown = zbench("show", "last", "--json")
    assert json.loads(shown.out)["trials"][0]["correctness"]["worst_parameter"] == HOSTILE
    assert not RAW.findall(shown.out)
