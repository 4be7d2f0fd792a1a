"""Run the GitHub Action's script on documentation-only commits under load: none may fail.

    python -m zbench.bench.docs_only [--exact N] [--timed N] [--blocks MIN:MAX] --out FILE

Makes a user's repository (a model beside a sweep file, and a README), commits one line to the README at a
time, and runs `.github/compare.sh` on each commit as the Action does: by exact figures and verdicts alone
(`blocks: 0`), then a few with timing. The load (`zbench.bench.neighbour`) keeps every core busy throughout.
Each commit's result is written at once, and an interrupted measurement continues after the last one. Run it
from a checkout of zbench, which holds the script.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zbench.bench import results
from zbench.bench.neighbour import neighbour
from zbench.bench.resumable import Kept

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".github" / "compare.sh"
MODEL = '''"""A user's model."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        x = torch.relu(self.hidden(x))
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())
'''
SWEEP = """name: theirs
workload: {model: "their_model:Net", data: {synthetic: true}, sequence_length: 32, micro_batch_size: 2}
run: {world_size: 2, threads_per_rank: 1, device: cpu, warmup_steps: 1, steps: 4}
engine: {gradient_clipping: 1.0}
axes: {zero_stage: [1]}
"""


class Repository:
    """A user's repository, and a runner's environment in which the Action's script runs on it."""

    def __init__(self, scratch: Path) -> None:
        self._here, self._scratch = scratch / "theirs", scratch
        binary = scratch / "bin" / "zbench"
        binary.parent.mkdir()
        binary.write_text(f'#!/usr/bin/env bash\nexec {sys.executable} -P -m zbench.cli.main "$@"\n')
        binary.chmod(0o755)
        self._here.mkdir()
        self._git("init", "-q", "-b", "main")
        (self._here / "their_model.py").write_text(MODEL)
        (self._here / "sweep.yaml").write_text(SWEEP)
        self.document(0)

    def document(self, number: int) -> None:
        """Commit one more line of documentation."""
        with (self._here / "README.md").open("a") as file:
            file.write(f"Sentence {number} of the documentation.\n")
        self._git("add", ".")
        self._git("commit", "-q", "-m", f"Document {number}")

    def compare(self, blocks: str) -> dict[str, Any]:
        """Return what the Action's script finds between HEAD^ and HEAD: its exit code and its JSON."""
        output = self._scratch / "output"
        output.write_text("")
        environment = {
            "PATH": f"{self._scratch / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self._scratch),
            "XDG_CACHE_HOME": str(self._scratch / "cache"),
            "RUNNER_TEMP": str(self._scratch),
            "GITHUB_OUTPUT": str(output),
            "ZBENCH_SWEEP": "sweep.yaml",
            "ZBENCH_BLOCKS": blocks,
        }
        done = subprocess.run(
            [str(SCRIPT)], cwd=self._here, env=environment, capture_output=True, text=True, check=True
        )
        outputs = dict(line.split("=", 1) for line in output.read_text().splitlines())
        file = Path(outputs["directory"]) / "compare.json"
        if not file.exists():
            raise RuntimeError(f"the script compared nothing: {done.stdout}{done.stderr}")
        return {"code": int(outputs["exit-code"]), "comparison": json.loads(file.read_text())}

    def _git(self, *words: str) -> None:
        identity = ["-c", "user.name=bench", "-c", "user.email=bench@example.org"]
        subprocess.run(["git", *identity, *words], cwd=self._here, check=True, capture_output=True)


def finding(kind: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return what one commit's comparison says."""
    rows = found["comparison"]["trials"]
    exact = [one for row in rows for one in row["exact"] if one["answer"] != "absent"]
    return {
        "kind": kind,
        "code": found["code"],
        "answers": [row["answer"] for row in rows],
        "verdicts": [row["head"]["verdict"] for row in rows],
        "compared": len(exact),
        "unequal": [one["metric"] for one in exact if one["answer"] != "same"],
        "changes": [row["step_time"]["change"] for row in rows if row["step_time"]],
        "warnings": found["comparison"]["warnings"],
    }


def table(found: Sequence[dict[str, Any]], blocks: str) -> str:
    """Return what was found, as Markdown."""
    rows = []
    for kind, name in (
        ("exact", "by exact figures and verdicts"),
        ("timed", f"with timing, {blocks} blocks"),
    ):
        chosen = [one for one in found if one["kind"] == kind]
        if not chosen:
            continue
        answers = [answer for one in chosen for answer in one["answers"]]
        counted = ", ".join(f"{answers.count(answer)} {answer}" for answer in dict.fromkeys(answers))
        red = sum(one["code"] != 0 for one in chosen)
        figures = [sum(one["compared"] for one in chosen), sum(len(one["unequal"]) for one in chosen)]
        rows.append([name, len(chosen), red, counted, *figures])
    columns = ("commits", "red", "answers", "exact figures compared", "of them unequal")
    return results.table(("documentation-only commits", *columns), rows)


def main() -> None:
    """Measure, write the table after each commit, and print it."""
    parser = results.parser(__doc__, must_write=True)
    parser.add_argument("--exact", type=int, default=30, help="commits by exact figures")
    parser.add_argument("--timed", type=int, default=5, help="commits with timing")
    parser.add_argument("--blocks", default="8:24", help="blocks of those with timing")
    given = parser.parse_args()
    kept = Kept(given.out)
    with tempfile.TemporaryDirectory(prefix="zbench-docs-only-") as scratch, neighbour():
        repository = Repository(Path(scratch))
        for kind, number, blocks in (("exact", given.exact, "0"), ("timed", given.timed, given.blocks)):
            while len(kept.of(kind)) < number:
                repository.document(len(kept.found) + 1)
                kept.add(finding(kind, repository.compare(blocks)))
                print(f"{kind}: {kept.found[-1]}", file=sys.stderr, flush=True)
                results.write(given.out, table(kept.found, given.blocks), {"commits": kept.found})
    print(table(kept.found, given.blocks))


if __name__ == "__main__":
    main()
