"""What errors say."""

import errno

import pytest

from zbench.errors import SpecError, UsageError, ZbenchError, reason_of, undamaged


def test_the_reason_of_a_failed_call_is_the_systems_text_alone() -> None:
    assert reason_of(OSError(errno.ENOSPC, "No space left on device", "/tmp/x")) == "No space left on device"
    assert reason_of(OSError("cannot")) == "cannot"


def test_a_mistake_in_a_file_has_its_place() -> None:
    assert str(SpecError("no", file="a.yaml", line=3, key="run.steps")) == "a.yaml:3: run.steps: no"
    assert str(SpecError("no", line=3)) == "3: no"
    assert str(SpecError("no")) == "no"


def test_whatever_reading_a_damaged_file_raises_is_one_message(tmp_path) -> None:
    path = tmp_path / "file"
    with (
        pytest.raises(UsageError, match="damaged \\(ValueError: bad\\); make it anew"),
        undamaged(path, "make it anew"),
    ):
        raise ValueError("bad")
    with pytest.raises(UsageError, match="cannot be read"), undamaged(path, "make it anew"):
        path.read_text()
    for error in (ZbenchError("told"), MemoryError()):
        with pytest.raises(type(error)) as caught, undamaged(path, "make it anew"):
            raise error
        assert caught.value is error
