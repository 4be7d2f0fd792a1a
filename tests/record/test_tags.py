"""Tags: names of runs in one small file beside them."""

from pathlib import Path

import pytest

from zbench.errors import UsageError
from zbench.record import tags


def test_a_tag_is_kept_and_moves(tmp_path: Path) -> None:
    assert tags.load(tmp_path) == {}
    tags.save(tmp_path, "before", "quickstart/1")
    tags.save(tmp_path, "after", "quickstart/2")
    tags.save(tmp_path, "before", "quickstart/3")
    assert tags.load(tmp_path) == {"before": "quickstart/3", "after": "quickstart/2"}
    text = (tmp_path / tags.TAGS).read_text()
    assert text.startswith('{\n  "schema_version": 1,\n  "tags": {\n    "before": "quickstart/3"')
    assert text.endswith("}\n")
    assert [path.name for path in tmp_path.iterdir()] == [tags.TAGS]


@pytest.mark.parametrize("name", ["a", "_a", "v1.2-rc_3", "a" * 100])
def test_names_that_may_be(tmp_path: Path, name: str) -> None:
    tags.save(tmp_path, name, "run")
    assert tags.load(tmp_path) == {name: "run"}


@pytest.mark.parametrize("name", ["", "last", "a/b", "-a", ".a", "a b", "a" * 101])
def test_names_that_may_not_be(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="a tag holds letters"):
        tags.save(tmp_path, name, "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"tags": []}'])
def test_a_file_that_is_none_is_named_with_the_remedy(tmp_path: Path, text: str) -> None:
    (tmp_path / tags.TAGS).write_text(text)
    with pytest.raises(UsageError, match="remove it to go on without tags"):
        tags.load(tmp_path)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        tags.save(tmp_path / "nowhere", "a", "run")
