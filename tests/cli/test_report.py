"""`zbench report` through the command line."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.analysis.synthetic import BASE_ID, HEAD_ID, record, trial, write_run
from zbench.record.documents import sealed


@pytest.fixture
def out(tmp_path: Path) -> Path:
    out = tmp_path / "results"
    write_run(out / "example" / BASE_ID, trial([0.1, 0.11, 0.12]))
    path = write_run(out / "example" / HEAD_ID, trial([0.1, 0.11, 0.12], verdict="equivalent"))
    (path / "search.json").write_bytes(sealed({"schema_version": 1, "importance": {"zero_stage": 1.0}}))
    return out


def test_page_and_pictures(zbench, out):
    places = ("--html", out / "new" / "page.html", "--plots", out / "plots")
    code, text, _ = zbench("report", "last", *places, "--baseline", BASE_ID)
    assert code == 0
    written = [Path(line) for line in text.split()]
    assert written[0] == out / "new" / "page.html"
    names = ["throughput-memory", "changes", "step-times", "memory", "phases"]
    assert [path.stem for path in written[1:]] == names
    assert all(ET.parse(path).getroot().tag.endswith("svg") for path in written[1:])
    assert "Importance of keys in the search" in written[0].read_text()


def test_markdown_on_stdout_and_json(zbench, out):
    code, text, _ = zbench("report", BASE_ID)
    assert code == 0
    assert "| **zero\\_stage=1** | " in text
    code, text, _ = zbench("report", BASE_ID, "--html", out / "x.html", "--json")
    assert json.loads(text) == {"schema_version": 1, "written": [str(out / "x.html")], "exit_code": 0}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["gone"], "no run 'gone'"),
        (["{base}", "--html", "{out}/example/{base}/trials.jsonl/x.html"], "cannot write into"),
        (["{out}/failed/f", "--plots", "{out}/p"], "nothing to draw"),
        (["{out}/damaged/d", "--html", "{out}/x.html"], "search.json"),
    ],
)
def test_bad_input(refusal, out, arguments, says):
    write_run(out / "failed" / "f", [record(outcome="crashed")])
    (write_run(out / "damaged" / "d", trial([0.1])) / "search.json").write_text('{"importance"')
    assert says in refusal("report", *(word.format(base=BASE_ID, out=out) for word in arguments))
