"""Make the comment of performance-comment.yml from a comparison's JSON, which a stranger may have written.

`python3 .github/comment.py compare.json >body.md`. Nothing of the file is copied as it is: words are of fixed
lists, numbers are numbers, and names are cut to a few harmless characters within code spans. Standard library
only; it runs with the right to comment.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

MARKER = "<!-- zbench-compare -->"
ANSWERS = (
    "incorrect",
    "failed",
    "regression",
    "suspected",
    "unchecked",
    "inconclusive",
    "unmeasured",
    "pass",
)
VERDICTS = ("wrong", "drifted", "unchecked", "equivalent", "identical")
HEADINGS = ("configuration", "answer", "step time", "tokens/s", "verdict")
MOST_ROWS, MOST_BYTES, LONGEST = 100, 16 << 20, 120
NOTHING = "There is no comparison of this commit; the job's summary says why."


def comment(path: Path) -> str:
    """Return the comment; one line where the file is no comparison."""
    try:
        text = path.read_bytes()[:MOST_BYTES]
        rows = [cells(row) for row in json.loads(text)["trials"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{MARKER}\n### zbench\n\n{NOTHING}\n"
    rows.sort(key=lambda row: ANSWERS.index(row[1]))
    counts = {answer: sum(row[1] == answer for row in rows) for answer in ANSWERS}
    told = ", ".join(f"{count} {answer}" for answer, count in counts.items() if count)
    table = [HEADINGS, ["---"] * len(HEADINGS), *rows[:MOST_ROWS]]
    lines = [MARKER, "### zbench", "", f"**{told or 'no configuration is in both'}**", ""]
    lines += [f"| {' | '.join(row)} |" for row in table]
    return "\n".join(lines) + "\n"


def cells(row: dict[str, Any]) -> list[str]:
    """Return the cells of one configuration; ValueError and its kin for what is none."""
    axes = " ".join(f"{key}={value}" for key, value in row["axes"].items())
    change = row["step_time"] and row["step_time"]["change"]
    return [
        f"`{re.sub('[^A-Za-z0-9 ._=+-]', '.', axes)[:LONGEST] or 'the one configuration'}`",
        ANSWERS[ANSWERS.index(row["answer"])],
        "-" if change is None else f"{float(change):+.1%}",
        " → ".join(number(row[side]["tokens_per_s"]) for side in ("base", "head")),
        " → ".join(VERDICTS[VERDICTS.index(row[side]["verdict"])] for side in ("base", "head")),
    ]


def number(value: float | None) -> str:
    """Return a figure in three digits."""
    return "-" if value is None else f"{float(value):.3g}"


if __name__ == "__main__":
    print(comment(Path(sys.argv[1])), end="")
