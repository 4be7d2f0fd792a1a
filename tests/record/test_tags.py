"""Tags name runs: kept, moved, and never another name of a run."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from zbench.errors import UsageError
from zbench.record.tags import TAGS, load_tags, save_tag


def test_a_tag_is_kept_and_moves(tmp_path: Path) -> None:
    assert load_tags(tmp_path) == {}
    save_tag(tmp_path, "before", "quickstart/1")
    save_tag(tmp_path, "after", "quickstart/2")
    save_tag(tmp_path, "before", "quickstart/3")
    assert load_tags(tmp_path) == {"before": "quickstart/3", "after": "quickstart/2"}
    assert {path.name for path in tmp_path.iterdir()} == {TAGS, ".lock"}
    names = ["a", "_a", "v1.2-rc_3", "a" * 100]
    for name in names:
        save_tag(tmp_path, name, "run")
    assert {*names} < load_tags(tmp_path).keys()
    with pytest.raises(UsageError, match="No such file"):
        save_tag(tmp_path / "nowhere", "a", "run")


@pytest.mark.parametrize("name", ["20260102-000000-000aa", "quickstart"])
def test_a_tag_is_no_other_name_of_a_run(tmp_path: Path, name: str) -> None:
    (tmp_path / "quickstart").mkdir()
    with pytest.raises(UsageError, match="names a run or a sweep already"):
        save_tag(tmp_path, name, "quickstart/1")
    assert load_tags(tmp_path) == {}


def test_tags_that_are_given_at_once_are_all_kept(tmp_path: Path) -> None:
    names = [f"tag{number}" for number in range(60)]
    with ThreadPoolExecutor(6) as pool:  # a lock of flock(2) is of an open file, so of a thread's own, too
        list(pool.map(lambda name: save_tag(tmp_path, name, "run"), names))
    assert load_tags(tmp_path).keys() == set(names)


@pytest.mark.parametrize("name", ["", "last", "a/b", "-a", ".a", "a b", "a" * 101])
def test_names_that_may_not_be(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="a tag holds letters"):
        save_tag(tmp_path, name, "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"tags": []}'])
def test_a_file_that_is_none_is_named_with_the_remedy(tmp_path: Path, text: str) -> None:
    (tmp_path / TAGS).write_text(text)
    with pytest.raises(UsageError, match="remove it to continue without tags"):
        load_tags(tmp_path)
