"""`zbench bisect` through the command line, with stand-ins for the interpreters of its versions."""

import json
import resource
import signal
from pathlib import Path

import pytest

from tests.cli.conftest import stand_in
from zbench.app.bisect import _Search
from zbench.errors import UsageError


@pytest.fixture
def search(tmp_path: Path) -> list[str]:
    """Return the words of a search among five versions; from the fourth on they need more memory."""
    (tmp_path / "sweep.yaml").write_text("name: tiny\naxes: {zero_stage: [1]}\n")
    names = [str(stand_in(tmp_path / f"v{n}", peak=10**6 * (1 + (n > 2)))) for n in range(5)]
    return ["bisect", names[0], names[-1], "--sweep", "sweep.yaml", "--versions", ",".join(names[1:-1])]


def test_the_first_bad_version_is_found_and_kept(zbench, search, tmp_path):
    document = zbench(*search, "--json").document
    assert (document["exit_code"], document["first_bad"]) == (0, str(tmp_path / "v3"))
    assert "peak_device_bytes" in document["metrics"]
    for version in tmp_path.glob("v?"):
        version.unlink()
    assert zbench(*search).out.startswith(f"{tmp_path / 'v3'} is the first revision that is "), (
        "no probe runs"
    )


@pytest.mark.parametrize("first", [1, 2])
def test_the_last_line_says_how_the_bad_version_shows_it(zbench, search, tmp_path, first):
    for n in range(first, 5):
        version = stand_in(tmp_path / f"v{n}", verdict="wrong")
        text = version.read_text()
        assert '"diagnosis": null' in text
        version.write_text(text.replace('"diagnosis": null', '"diagnosis": "a step is lost"'))
    last = zbench(*search).out.splitlines()[-1]
    bad = tmp_path / f"v{first}"
    assert last == f"{bad} is the first revision that is incorrect (2 probes): a step is lost"


def test_a_file_about_another_fault_or_other_versions_is_refused(zbench, refusal, search):
    zbench(*search)
    assert "zbench-bisect.json searches for what is" in refusal(*search, "--slower")
    assert "zbench-bisect.json searches other revisions" in refusal(*search[:-1], search[1])


FULL = "cannot write trials.jsonl: No space left on device"


@pytest.mark.parametrize("kind", ["StorageError", "ShortageError", "UsageError"])
@pytest.mark.parametrize("is_partial", [False, True])
def test_a_disk_that_is_full_for_a_while_is_no_finding(zbench, search, tmp_path, kind, is_partial):
    """The version that is probed first fails while `full` is there, with or without finished repeats."""
    if is_partial and kind == "UsageError":
        pytest.skip("a sweep that could not begin has no repeats")
    version, full = tmp_path / "v2", tmp_path / "full"
    text = version.read_text()
    document = {"trials": [], "exit_code": 2, "error": {"kind": kind, "message": FULL}}
    failing = f"import pathlib, sys\nif pathlib.Path({str(full)!r}).exists():\n"
    if is_partial:
        failing += f"    import json; line = {text.split('print(')[1].split('.replace')[0]}\n"
        failing += (
            f"    print(json.dumps(json.loads(line) | {{'error': {document['error']!r}}})); sys.exit(2)\n"
        )
    else:
        failing += f"    print({json.dumps(document)!r}); sys.exit(2)\n"
    first, rest = text.split("\n", 1)
    version.write_text(f"{first}\n{failing}{rest}")
    full.touch()
    output = zbench(*search)
    assert output.code == 2
    assert "No space left on device" in output.err
    assert "the same command continues the search" in output.err
    assert str(version) not in json.loads((tmp_path / "zbench-bisect.json").read_text())["findings"]
    full.unlink()
    assert zbench(*search, "--json").document["first_bad"] == str(tmp_path / "v3")


def test_findings_outlive_a_disk_that_is_full_when_they_are_written(tmp_path):
    state = tmp_path / "state.json"
    search = _Search(["a", "b", "c"], findings={"b": "good"})
    search.save(state)
    before = state.read_bytes()
    search.findings |= dict.fromkeys(map(str, range(1000)), "bad")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before), limits[1]))
    try:
        with pytest.raises(UsageError, match="cannot write"):
            search.save(state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert state.read_bytes() == before
    assert _Search.load(state, ["a", "b", "c"]).findings == {"b": "good"}
    assert list(tmp_path.iterdir()) == [state]
