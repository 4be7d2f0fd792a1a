"""Files that a command writes where the user says."""

from pathlib import Path

from zbench.errors import UsageError


def write_new(path: Path, text: str) -> None:
    """Write a file that does not exist yet; UsageError where it does or cannot be written."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists already; name another file or remove it") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}); name another place") from None
