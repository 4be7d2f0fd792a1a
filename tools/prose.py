"""Reports what is hard to read: sentences above 30 words, paragraphs above 4 figures, pages above 150 lines.

    python tools/prose.py [FILE...]  # every page, and every docstring of zbench, without arguments

Exit status 1 if a paragraph or a page is too long, or more than 1 sentence in 100. Code, tables and headings
are left out, and lines of code do not count. A piece of code in a sentence is one word. A number beside a
name (`ZeRO-2`, `stage 3`, `Adam 2`) is no figure, nor is one in code.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
MOST_WORDS, MOST_FIGURES, MOST_LINES = 30, 4, 150
LONG_SHARE = 0.01
CODE = "code"
CODE_BLOCKS = ("fence", "code_block")
_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)[)\"']*\s+|(?<=:)\s+(?=[A-Z])")
_WORD = re.compile(r"[\w'’.,/%-]*\w[\w'’.,/%-]*")
_FIGURE = re.compile(r"(?<![\w.-])(?<!stage )(?<!stages )(?<!ZeRO )(?<!code )(?<!Python )\d[\d,.]*(?![\w-])")


@dataclass(frozen=True)
class Prose:
    """What a page says. faults: the line and the description of everything that is hard to read."""

    sentences: int
    long_sentences: list[tuple[int, str]]
    faults: list[tuple[int, str]]


def files() -> list[Path]:
    """Return every page of the project and every module of zbench, in alphabetical order."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")]
    return sorted(pages) + sorted(ROOT.glob("zbench/**/*.py"))


def prose_of(path: Path) -> Prose:
    """Return what a page, or the docstrings of a module, say."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return read(text)
    says = [(line, read(docstring)) for line, docstring in _docstrings(ast.parse(text))]
    return Prose(
        sum(prose.sentences for _, prose in says),
        [(line + at - 1, fault) for line, prose in says for at, fault in prose.long_sentences],
        [],  # shapes, references and exit codes are figures
    )


def _docstrings(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(module):
        if isinstance(node, documented) and (docstring := ast.get_docstring(node)):
            yield node.body[0].lineno, docstring


def read(text: str) -> Prose:
    """Return what a page in Markdown says."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    count, long_sentences, faults = 0, [], []
    for line, paragraph in _paragraphs(tokens):
        sentences = _END.split(paragraph)
        count += len(sentences)
        for sentence in sentences:
            if (words := len(_WORD.findall(sentence))) > MOST_WORDS:
                long_sentences.append((line, f"{words} words: {sentence[:60]}..."))
        if (figures := len(_FIGURE.findall(paragraph))) > MOST_FIGURES:
            faults.append((line, f"{figures} figures: {paragraph[:60]}..."))
    code = sum(token.map[1] - token.map[0] for token in tokens if token.map and token.type in CODE_BLOCKS)
    if (lines := len(text.splitlines()) - code) > MOST_LINES:
        faults.append((1, f"{lines} lines without code"))
    return Prose(count, long_sentences, faults)


def _paragraphs(tokens: list[Token]) -> Iterator[tuple[int, str]]:
    """Yield the line and the words of each paragraph and list item."""
    for before, token in pairwise(tokens):
        if before.type == "paragraph_open" and token.type == "inline":
            yield (token.map or [0])[0] + 1, "".join(map(_spoken, token.children or []))


def _spoken(token: Token) -> str:
    return {"code_inline": CODE, "softbreak": " ", "hardbreak": " "}.get(token.type, token.content)


def main(arguments: list[str]) -> int:
    """Print all faults; return the exit status."""
    proses = {path: prose_of(path) for path in map(Path, arguments or files())}
    for page, prose in proses.items():
        name = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page
        for line, fault in sorted(prose.long_sentences + prose.faults):
            print(f"{name}:{line}: {fault}")
    sentences = sum(prose.sentences for prose in proses.values())
    long_ones = sum(len(prose.long_sentences) for prose in proses.values())
    faults = sum(len(prose.faults) for prose in proses.values())
    print(f"{long_ones} of {sentences} sentences have more than {MOST_WORDS} words; {faults} other faults")
    return int(faults > 0 or long_ones > LONG_SHARE * sentences)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
