"""Counts vague words in the texts and the names of each package, and reports pages above 150 lines.

    python tools/prose.py                    # zbench by package, tests, tools, and all pages
    python tools/prose.py FILE...            # these files only
    python tools/prose.py --list [FILE...]   # each vague word and vague name with its line

A vague word is a function word in the place of a noun, such as `one` or `what`. A vague name is an identifier
like `one`, `held`, `found` or `here`. Texts are docstrings, comments and the paragraphs of a page; messages
are all other strings of three words or more. Code and tables of a page do not count. The report has `if`
beside `where`, because `where` often stands for a condition.

Exit status 1 if a page is too long. The rates of vague words have no limit yet.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
MAX_PAGE_LINES = 150
CODE_BLOCKS = ("fence", "code_block")
SHORTEST_MESSAGE = 3  # words

VAGUE_WORDS = {
    "what": re.compile(r"\b(?:what|who)(?:ever)?\b(?![^.?]*\?)", re.I),  # no word of a question
    "one": re.compile(r"\bones?\b(?! of\b|-|\))", re.I),  # "one of the ranks" counts ranks
    "those": re.compile(r"\b(?:those|others)\b", re.I),
    "where": re.compile(r"\bwhere\b", re.I),
    "as of": re.compile(r"\b(?:as of|but for|of then)\b", re.I),
}
CONDITION = re.compile(r"\bif\b", re.I)
_WORD = re.compile(r"\w+")
VAGUE_NAMES = frozenset(
    _WORD.findall(
        """
        about alike also among apart away behind below beside between beyond both each either else
        enough every few found given gone had has have held here how it its itself kept left less made
        many mine more most much near none other others our ours own place said same seen several since
        so some such taken than that their theirs them then there these they thing things this those
        together told took way ways what when where which who whose why with within without yet
        """
    )
)
_PROSE_WORD = re.compile(r"(?<![\w.])[A-Za-z]{2,}(?![\w(])")

Kind = Literal["text", "message"]


@dataclass(frozen=True)
class Passage:
    """A piece of prose of a file.

    line: the first. kind: `text` for a docstring, a comment or a paragraph; `message` for another string.
    """

    line: int
    kind: Kind
    content: str

    def vague_words(self) -> Counter[str]:
        """Return how often each kind of vague word occurs."""
        return Counter({word: len(pattern.findall(self.content)) for word, pattern in VAGUE_WORDS.items()})


@dataclass(frozen=True)
class FileProse:
    """The passages and the names of a file. names: line and identifier of every binding.

    lines: of a page without its code; 0 for a module.
    """

    passages: list[Passage] = field(default_factory=list)
    names: list[tuple[int, str]] = field(default_factory=list)
    lines: int = 0

    def vague_names(self) -> list[tuple[int, str]]:
        """Return the names that are vague, each with its line."""
        return [(line, name) for line, name in self.names if name.strip("_") in VAGUE_NAMES]


def project_files() -> list[Path]:
    """Return every page of the project and every module, in alphabetical order."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")]
    modules = [path for folder in ("zbench", "tests", "tools") for path in ROOT.glob(f"{folder}/**/*.py")]
    return sorted(pages) + sorted(modules)


def package_of(path: Path) -> str:
    """Return the row of the report to which a file belongs."""
    if path.suffix == ".md":
        return "pages"
    parts = path.relative_to(ROOT).parts if path.is_relative_to(ROOT) else path.parts[-1:]
    return "/".join(parts[:2]).removesuffix(".py") if parts[0] == "zbench" else parts[0]


def read(path: Path) -> FileProse:
    """Return the prose of a page or of a module."""
    source = path.read_text(encoding="utf-8")
    return read_module(source) if path.suffix == ".py" else read_page(source)


def read_page(text: str) -> FileProse:
    """Return the paragraphs and list items of a page in Markdown."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    paragraphs = [
        Passage((token.map or [0])[0] + 1, "text", "".join(map(_plain, token.children or [])))
        for previous, token in pairwise(tokens)
        if previous.type == "paragraph_open" and token.type == "inline"
    ]
    code = sum(token.map[1] - token.map[0] for token in tokens if token.map and token.type in CODE_BLOCKS)
    return FileProse(paragraphs, [], len(text.splitlines()) - code)


def _plain(token: Token) -> str:
    return {"code_inline": "code", "softbreak": " ", "hardbreak": " "}.get(token.type, token.content)


def read_module(source: str) -> FileProse:
    """Return docstrings, comments, messages and names of a module."""
    tree = ast.parse(source)
    docstrings = list(_docstrings(tree))
    passages = [Passage(node.lineno, "text", str(node.value)) for node in docstrings]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            passages.append(Passage(token.start[0], "text", token.string))
    for line, content in _strings(tree, {id(node) for node in docstrings}):
        if len(_PROSE_WORD.findall(content)) >= SHORTEST_MESSAGE:
            passages.append(Passage(line, "message", content))
    return FileProse(passages, list(_names(tree)))


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield every string that is a statement; attributes have docstrings, too."""
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value


def _strings(tree: ast.Module, docstrings: set[int]) -> Iterator[tuple[int, str]]:
    """Yield the line and the content of each string; a value in an f-string becomes the word `value`."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.JoinedStr):
            parts = (str(part.value) if isinstance(part, ast.Constant) else "value" for part in node.values)
            yield node.lineno, "".join(parts)
            formatted = (part.value for part in node.values if isinstance(part, ast.FormattedValue))
            pending += formatted
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value
        else:
            pending += ast.iter_child_nodes(node)


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the identifier of each assignment, argument, attribute, function and class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name


def report(proses: dict[Path, FileProse]) -> Iterator[str]:
    """Yield a table: for each package its words, and the vague words and names per thousand."""
    packages: dict[str, list[FileProse]] = {}
    for path, prose in proses.items():
        packages.setdefault(package_of(path), []).append(prose)
    kinds = "".join(f"{word:>7}" for word in VAGUE_WORDS)
    texts = f"{'per 1,000':22}{'words':>8}{'vague':>7}{kinds}{'if':>7}"
    yield f"{texts} |{'messages':>9}{'vague':>7} |{'names':>8}{'vague':>7}"
    for package, files in sorted(packages.items()):
        yield _row(package, files)
    if len(packages) > 1:
        yield _row("all", list(proses.values()))


def _row(package: str, files: list[FileProse]) -> str:
    passages = [passage for prose in files for passage in prose.passages]
    texts, messages = ([p for p in passages if p.kind == kind] for kind in ("text", "message"))
    words, message_words = (sum(len(_WORD.findall(p.content)) for p in part) for part in (texts, messages))
    vague, vague_messages = (
        sum((p.vague_words() for p in part), Counter[str]()) for part in (texts, messages)
    )
    conditions = sum(len(CONDITION.findall(passage.content)) for passage in texts)
    names = sum(len(prose.names) for prose in files)
    vague_names = sum(len(prose.vague_names()) for prose in files)
    kinds = "".join(_rate(vague[word], words) for word in VAGUE_WORDS)
    return (
        f"{package:22}{words:8}{_rate(vague.total(), words)}{kinds}{_rate(conditions, words)}"
        f" |{message_words:9}{_rate(vague_messages.total(), message_words)}"
        f" |{names:8}{_rate(vague_names, names)}"
    )


def _rate(count: int, total: int) -> str:
    return f"{1000 * count / (total or 1):7.1f}"


def findings(path: Path, prose: FileProse) -> Iterator[str]:
    """Yield a line for each passage with vague words and for each vague name."""
    found = [
        (passage.line, f"{', '.join(+passage.vague_words())}: {' '.join(passage.content.split())[:100]}")
        for passage in prose.passages
        if passage.vague_words().total()
    ]
    found += [(line, f"name: {name}") for line, name in prose.vague_names()]
    for line, finding in sorted(found):
        yield f"{path}:{line}: {finding}"


def main(arguments: list[str]) -> int:
    """Print the report; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--list", action="store_true", help="print each vague word and name with its line")
    given = parser.parse_args(arguments)
    proses = {path: read(path) for path in given.files or project_files()}
    long_pages = {path: prose.lines for path, prose in proses.items() if prose.lines > MAX_PAGE_LINES}
    if given.list:
        for path, prose in proses.items():
            print(*findings(path, prose), sep="\n")
    else:
        print(*report(proses), sep="\n")
    for path, lines in long_pages.items():
        print(f"{path}: {lines} lines without code, expected at most {MAX_PAGE_LINES}: divide the page")
    return int(bool(long_pages))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
