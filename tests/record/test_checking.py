"""Every file with a digest is verified: of a run, a baseline, tags and a site."""

from pathlib import Path

import pytest

from tests.making import make_record
from zbench.record.checking import checked
from zbench.record.documents import sealed, sealed_page
from zbench.record.store import RunDirectory
from zbench.record.tags import save_tag


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return a folder with a run, a baseline, a tag, and a site beside them."""
    place = tmp_path / "results"
    with RunDirectory.create(place, "s", spec={"name": "s"}, environment={}) as run:
        run.append(make_record())
    save_tag(place, "first", f"s/{run.path.name}")
    files = {
        "results/baselines/main.json": sealed({"schema_version": 1, "trials": []}),
        "site/runs/s/1.json": sealed({"schema_version": 1}),
        "site/runs/s/1.html": sealed_page(b"<p>1", "abc"),
        "site/index.html": sealed_page(b"<p>all", ""),
    }
    for name, data in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return place


def test_files_that_are_whole_have_no_problem(results: Path) -> None:
    files = [*checked(results), *checked(results.parent / "site")]
    assert [file.problem for file in files] == [None] * 7
    assert {file.path.name for file in files} == {
        "environment.json", "trials.jsonl", "tags.json", "main.json", "1.json", "1.html", "index.html",
    }  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["spec.yaml", "environment.json", "trials.jsonl", "end.json", "tags.json", "main.json",
     "1.json", "1.html", "index.html"],
)  # fmt: skip
def test_each_file_that_was_changed_is_named(results: Path, name: str) -> None:
    (file,) = results.parent.rglob(name)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    files = [*checked(results), *checked(results.parent / "site")]
    (problem,) = [file.problem for file in files if file.problem is not None and name in file.problem]
    assert str(file) in problem
