"""One file a format: each turns a Comparison into the text of that format."""

from collections.abc import Callable
from pathlib import Path

from zbench.analysis.compare import Comparison
from zbench.errors import UsageError, reason_of
from zbench.report.exports import bmf, csv, document, gha, junit, markdown

TEXT_FORMATS: dict[str, tuple[Callable[[Comparison], str], str]] = {
    "markdown": (markdown.render, "compare.md"),
    "json": (document.render, "compare.json"),
    "csv": (csv.render, "compare.csv"),
    "junit": (junit.render, "compare.junit.xml"),
    "bmf": (bmf.render, "compare.bmf.json"),
}
"""Format -> (how it is made, its file's name); `table` is for terminals, `gha` makes two files."""


def files(comparison: Comparison, *formats: str) -> dict[str, str]:
    """Return the text of every file of these formats by file name; all formats where none is named."""
    texts: dict[str, str] = {}
    for name in formats or (*TEXT_FORMATS, "gha"):
        if name == "gha":
            texts |= gha.render_files(comparison)
        else:
            render, file = TEXT_FORMATS[name]
            texts[file] = render(comparison)
    return {file: f"{text}\n" for file, text in texts.items()}


def write(texts: dict[str, str], directory: Path) -> list[Path]:
    """Write files into a directory, made if missing; UsageError where that cannot be."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write into {directory}: {reason_of(error)}; name another place") from None
    return [directory / name for name in texts]
