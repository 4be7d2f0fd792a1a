"""`zbench doctor --aa`, with a stand-in for this interpreter."""

import json
import sys
from pathlib import Path

import pytest
from analysis.synthetic import trial

from tests.cli.calling import run
from zbench.record import lines

STAND_IN = """#!{python} -IS
import random
print({document!r}.replace("0.125", str(0.125 * random.uniform(0.99, 1.01))))
"""


@pytest.fixture(autouse=True)
def _stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = {"trials": [lines.jsonable(item) for item in trial([0.125])]}
    path = tmp_path / "python"
    path.write_text(STAND_IN.format(python=sys.executable, document=json.dumps(document)))
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


def test_it_reports_noise_margin_and_effect(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "doctor", "--aa", "--blocks", "9")
    assert code == 0
    assert "1 configurations, 9 blocks, 0 false alarms" in text
    assert "--threshold step_time=" in text
    assert "--run-noise" in text


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "doctor", "--aa", "--blocks", "9", "--json")
    document = json.loads(text)
    assert code == document["exit_code"] == 0
    assert 0.001 < document["aa"]["noise"] < 0.02
    assert document["aa"]["margin"] < document["aa"]["detectable"]


def test_too_few_blocks_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, said = run(capsys, "doctor", "--aa", "--blocks", "5")
    assert (code, text) == (2, "")
    assert "cannot reach alpha" in said
