"""What errors say."""

import errno

import pytest

from zbench.errors import UsageError, ZbenchError, reason_of, undamaged


def test_a_failed_calls_reason_is_the_systems_text() -> None:
    assert reason_of(OSError(errno.ENOSPC, "No space left on device", "/tmp/x")) == "No space left on device"
    assert reason_of(OSError("cannot")) == "cannot"


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
