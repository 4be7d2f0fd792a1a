"""`zbench bisect` through the command line, with stand-ins for the interpreters of its versions."""

from pathlib import Path

import pytest

from tests.cli.conftest import stand_in


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
