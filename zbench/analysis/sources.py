"""Find and read the two sides of a comparison: a run, a results file, a directory, a named baseline."""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from zbench.analysis.trials import RunResults, Source
from zbench.errors import UsageError, reason_of
from zbench.record import lines, store
from zbench.record.documents import (
    check_schema_version,
    make_directory,
    parsed,
    replace_durably,
    require_seal,
    sealed,
)
from zbench.record.figures import impossible_figure
from zbench.record.record import Record

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def load_results(name: str, output_dir: Path) -> RunResults:
    """Return the results of `name`: a path, a baseline's name, a run id, a sweep's name or `last`.

    Raises UsageError if the results are damaged, empty, implausible, ambiguous or missing.
    """
    if not name:
        raise UsageError("expected a path, a baseline, a run id or `last`, got ''")
    path = Path(name)
    if os.path.isfile(path):  # False for a name that no file can have, such as one of 300 characters
        results = _from_file(name, path)
    elif os.path.isdir(path):
        results = _from_directory(name, path)
    elif _PLAIN_NAME.fullmatch(name) and baseline_path(name, output_dir).is_file():
        results = _from_file(name, baseline_path(name, output_dir))
    else:
        results = _from_run(name, _named_run(name, output_dir))
    if not results.trials:
        raise UsageError(
            f"{name} holds no trials: expected at least one record; run the sweep again, or name another"
        )
    return results


def baseline_path(name: str, output_dir: Path) -> Path:
    """Return where a named baseline is kept; UsageError for a name that could leave that directory."""
    if not _PLAIN_NAME.fullmatch(name):
        raise UsageError(f"a baseline's name holds letters, digits, '.', '-' and '_', got {name!r}")
    return output_dir / store.BASELINES / f"{name}.json"


def branch_baseline(branch: str) -> str:
    """Return the name of a branch's baseline: readable, and by its digest another one for every branch."""
    digest = hashlib.sha256(branch.encode(errors="surrogateescape")).hexdigest()[:12]
    return f"branch-{re.sub('[^A-Za-z0-9_-]', '-', branch)[:60]}-{digest}"


def save_baseline(name: str, results: RunResults, output_dir: Path) -> Path:
    """Keep results under a name, with the machine's fingerprint and the commit; return the file."""
    path = baseline_path(name, output_dir)
    source = {key: value for key, value in asdict(results.source).items() if key not in ("name", "path")}
    document = {"schema_version": 1, "kind": "baseline", "name": name, **source}
    document["trials"] = [lines.jsonable(record) for trial in results.trials for record in trial.records]
    try:
        make_directory(path.parent)
        replace_durably(path, sealed(document))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {reason_of(error)}; choose a place with -o DIR") from None
    return path


def _named_run(name: str, output_dir: Path) -> Path:
    try:
        return store.resolve_run(name, output_dir)
    except UsageError as error:
        if any(name in (run.name, f"{run.parent.name}/{run.name}") for run in store.find_runs(output_dir)):
            raise  # it names several runs
        raise UsageError(f"{error}; no file, directory or baseline has this name either") from None


def _from_file(name: str, path: Path) -> RunResults:
    if path.name == store.TRIALS and (path.parent / store.ENVIRONMENT).is_file():
        return _from_run(name, path.parent)
    text = _text(path)
    if not text.strip():
        raise UsageError(
            f"{path} is empty: expected {store.TRIALS}, a baseline, or what `zbench sweep --json` prints"
        )
    if path.suffix == ".jsonl":
        return RunResults.of(Source(name, str(path)), store.load_records(path))
    document = parsed(text, str(path))
    check_schema_version(document, str(path))
    if "digest" in document or document.get("kind") == "baseline":
        require_seal(text.encode(), str(path), "save the baseline again")
    if not isinstance(document.get("trials"), list):
        raise UsageError(f"{path}: expected a key `trials` with a list of records; is this a zbench result?")
    records = [lines.decode(value, f"{path}: trials[{i}]") for i, value in enumerate(document["trials"])]
    return RunResults.of(_source_of_document(name, path, document), check_plausible(records, str(path)))


def _source_of_document(name: str, path: Path, document: Mapping[str, Any]) -> Source:
    """Return where the records of a baseline, or of what `--json` printed, came from."""
    facts = document.get("facts")
    origin = {key: document.get(key) for key in ("fingerprint", "commit", "branch", "started", "sweep")}
    runs = document.get("run_ids") or ([document["run_id"]] if document.get("run_id") else [])
    known_facts = dict(facts) if isinstance(facts, Mapping) else {}
    return Source(name, str(path), tuple(map(str, runs)), facts=known_facts, **origin)


def _from_directory(name: str, path: Path) -> RunResults:
    runs = store.find_runs(path)
    if (path / store.TRIALS).is_file():
        if runs:
            raise UsageError(f"{path} is a run and also holds runs ({runs[0]}, ...); name the one you mean")
        return _from_run(name, path)
    if not runs:
        raise UsageError(
            f"{path} holds no run: expected a directory with {store.TRIALS} in it, or runs below it"
        )
    if len(runs) > 1:
        raise UsageError(f"{path} holds {len(runs)} runs ({runs[0]}, ...); name one of them")
    return _from_run(name, runs[0])


def _from_run(name: str, path: Path) -> RunResults:
    records = store.load_records(path)
    return RunResults.of(source_of(path, name), records)


def source_of(path: Path, name: str) -> Source:
    """Return where the records of a run directory come from, without reading them."""
    origin = _machine_and_code(store.load_environment(path))
    whole = path.resolve()
    return Source(name, str(path), (whole.name,), sweep=whole.parent.name, **origin)


def _machine_and_code(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an environment document says of machine and commit, as arguments of Source.

    Besides the machine's own facts, timings depend on the kernel and on torch; nothing changes at a reboot.
    """
    machine, system, software, git = (
        dict(part) if isinstance(part := environment.get(key), Mapping) else {}
        for key in ("machine", "system", "software", "git")
    )
    more = {"kernel": system.get("kernel"), "torch": software.get("torch")}
    commit = git.get("commit")
    return {
        "fingerprint": environment.get("fingerprint"),
        "facts": machine | more if machine else {},
        "commit": f"{commit}+changes" if commit and git.get("dirty") else commit,
        "branch": environment.get("branch"),
        "started": environment.get("started"),
    }


def is_torn(path: Path) -> bool:
    """Say whether a `trials.jsonl` ends in the middle of a record, which reading leaves out."""
    file = path / store.TRIALS if path.is_dir() else path
    if file.suffix != ".jsonl" or not file.is_file():
        return False
    end = file.read_bytes().rpartition(b"\n")[2]
    return bool(end.strip()) and not lines.is_record(end)


def check_plausible(records: list[Record], place: str) -> list[Record]:
    """Return the records; UsageError for a figure that no measurement gives: damage, or an edit by hand."""
    for record in records:
        if (figure := impossible_figure(record)) is not None:
            raise UsageError(
                f"{place}: trial {record.trial_id} repeat {record.repeat}: {figure}; the file was damaged or"
                " edited; run the trial again"
            )
    return records


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None
