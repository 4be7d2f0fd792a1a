"""One file a format: each turns a Comparison into the text of that format."""

from collections.abc import Callable
from pathlib import Path

from zbench.analysis.compare import Comparison
from zbench.errors import UsageError, reason_of
from zbench.record.documents import replace_durably
from zbench.report.exports import csv, document, junit, markdown

FORMATS: dict[str, tuple[Callable[[Comparison], str], str]] = {
    "markdown": (markdown.render, "compare.md"),
    "json": (document.render, "compare.json"),
    "csv": (csv.render, "compare.csv"),
    "junit": (junit.render, "compare.junit.xml"),
}
"""Format -> (how it is made, its file's name); `table` is for terminals."""


def files(comparison: Comparison) -> dict[str, str]:
    """Return the text of every format by its file's name."""
    return {file: f"{render(comparison)}\n" for render, file in FORMATS.values()}


def write(texts: dict[str, str], directory: Path) -> list[Path]:
    """Write files into a directory, created if missing, each whole or not at all.

    UsageError if that fails.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            _replace(directory / name, text.encode())
    except OSError as error:
        raise UsageError(f"cannot write into {directory}: {reason_of(error)}; name another place") from None
    return [directory / name for name in texts]


def _replace(path: Path, data: bytes) -> None:
    """Replace a file; write through a link, and to a pipe or a device, which cannot be replaced."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_bytes(data)
    else:
        replace_durably(path, data)
