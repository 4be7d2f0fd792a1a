"""Hooks of mkdocs: pages made from the code and from Markdown files of the repository, and the navigation."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
_NAV = {
    "Begin": (
        "index.md",
        "tutorial.md",
        "quickstart.md",
        "own-model.md",
        "own-script.md",
        "script-verdicts.md",
        "other-files.md",
        "python.md",
        "engines.md",
        "learn.md",
        "verdicts.md",
        "regressions.md",
        "training.md",
        "from-deepspeed-autotuner.md",
    ),
    "Reference": (
        "commands.md",
        "keys.md",
        "schemas.md",
        "step-verdicts.md",
        "limits.md",
        "statistics.md",
        "turns.md",
        "glossary.md",
    ),
    "Use": (
        "troubleshooting.md",
        "estimate.md",
        "estimate-time.md",
        "tracing.md",
        "ci.md",
        "scale.md",
        "trackers.md",
        "engine.md",
        "right-or-refused.md",
        "performance.md",
        "benchmarks.md",
        "faults.md",
        "zoo.md",
        "device.md",
    ),
    "Project": (
        "ARCHITECTURE.md",
        "engine-internals.md",
        "engine-safety.md",
        "numerics.md",
        "SECURITY.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
    ),
}
_TITLES = {  # of pages without a heading
    "benchmarks/stored_pairs.md": "Two stored runs of one version",
    "benchmarks/one_sided_pairs.md": "Two stored runs of one version, one beside other work",
}
_EXCLUDED = ("hooks.py", "reference.py")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages and those that lie elsewhere in the repository."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("zbench_docs_reference", ROOT / "docs" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    for name in _EXCLUDED:
        found = files.get_file_from_path(name)
        if found is not None:
            files.remove(found)
    made = {"commands.md": reference.commands_page(), "keys.md": reference.keys_page()}
    made |= {page: source.read_text(encoding="utf-8") for page, source in _elsewhere().items()}
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    config["nav"] = _navigation(files)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links lead to pages of the site; a link to a file that is no page becomes its text."""
    here = page.file.src_uri
    sources = {target: str(path.relative_to(ROOT)) for target, path in _elsewhere().items()}
    folder = posixpath.dirname(sources.get(here, f"docs/{here}"))
    pages = {source: target for target, source in sources.items()} | {"README.md": "index.md"}

    def replaced(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        found = pages.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
        if found is None or not found.endswith(".md"):
            return text if text.startswith("`") else f"{text} (`{path}`)"
        return f"[{text}]({posixpath.relpath(found, posixpath.dirname(here) or '.')}{anchor})"

    return _LINK.sub(replaced, markdown)


def _elsewhere() -> dict[str, Path]:
    """Return the pages that are kept outside docs/, by their place in the site."""
    found = {page: ROOT / page for page in _NAV["Project"] if (ROOT / page).is_file()}
    tables = sorted((ROOT / "results" / "benchmarks").glob("*.md"))
    return found | {f"benchmarks/{path.name}": path for path in tables}


def _navigation(files: Files) -> list[Any]:
    """Return the sections; pages that no section names come last, so that none is lost."""
    there = [file.src_uri for file in files.documentation_pages()]
    named = [page for pages in _NAV.values() for page in pages]
    tables = [page for page in there if page.startswith("benchmarks/")]
    others = [page for page in there if page not in (*named, *tables)]
    sections: dict[str, list[Any]] = {
        name: [page for page in pages if page in there] for name, pages in _NAV.items()
    }
    measured = [{_TITLES[page]: page} if page in _TITLES else page for page in sorted(tables)]
    sections |= {"Measured": measured, "More": sorted(others)}
    return [{name: list(pages)} for name, pages in sections.items() if pages]
