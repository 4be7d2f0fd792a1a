"""Reports what is hard to read in the pages: sentences above 30 words, paragraphs above 4 figures.

    python tools/prose.py [PAGE...]  # every page without arguments; exit status 1 if anything is reported

Code, tables and headings are left out. A piece of code in a sentence is one word. A number beside a name
(`ZeRO-2`, `stage 3`, `Adam 2`) is no figure, nor is one in code.
"""

import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
MOST_WORDS, MOST_FIGURES = 30, 4
CODE = "code"
_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)[)\"']*\s+|(?<=:)\s+(?=[A-Z])")
_WORD = re.compile(r"[\w'’.,/%-]*\w[\w'’.,/%-]*")
_FIGURE = re.compile(r"(?<![\w.-])(?<!stage )(?<!stages )(?<!ZeRO )(?<!code )(?<!Python )\d[\d,.]*(?![\w-])")


def pages() -> list[Path]:
    """Return every page of the project in alphabetical order."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")])


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the words of each paragraph and list item."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for before, token in pairwise(tokens):
        if before.type == "paragraph_open" and token.type == "inline":
            yield (token.map or [0])[0] + 1, "".join(map(_spoken, token.children or []))


def _spoken(token: Token) -> str:
    return {"code_inline": CODE, "softbreak": " ", "hardbreak": " "}.get(token.type, token.content)


def faults(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the description of everything that is hard to read."""
    for line, paragraph in paragraphs(text):
        for sentence in _END.split(paragraph):
            if (words := len(_WORD.findall(sentence))) > MOST_WORDS:
                yield line, f"{words} words: {sentence[:60]}..."
        if (figures := len(_FIGURE.findall(paragraph))) > MOST_FIGURES:
            yield line, f"{figures} figures: {paragraph[:60]}..."


def main(arguments: list[str]) -> int:
    """Print all faults; return the exit status."""
    found = [
        f"{page.relative_to(ROOT) if page.is_relative_to(ROOT) else page}:{line}: {fault}"
        for page in (map(Path, arguments) if arguments else pages())
        for line, fault in faults(page.read_text(encoding="utf-8"))
    ]
    print("\n".join(found) or "no sentence or paragraph is too long")
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
