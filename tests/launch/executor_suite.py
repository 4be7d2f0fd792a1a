"""What every executor promises (`zbench.launch.executor.Executor`), as tests that each one inherits.

A subclass provides the fixture `executor`. What the processes do is in `workload.options` (`fake_worker`).
"""

from pathlib import Path

import pytest

from tests.world import run
from zbench.launch.executor import Batch, Executor, ReferenceTask, RepeatTask

from .conftest import make_trial


class ExecutorSuite:
    """Conformance tests of one executor."""

    @pytest.fixture
    def run_dir(self, tmp_path: Path) -> Path:
        """Return an empty run directory."""
        path = tmp_path / "run-1"
        path.mkdir()
        return path

    @pytest.fixture
    def reference(self, run_dir: Path) -> Path:
        """Return where a reference is to be saved."""
        return run_dir / "references" / "key.safetensors"

    def test_repeat_that_ends_well_has_what_rank_0_reported(self, executor: Executor) -> None:
        attempt = run(executor, RepeatTask(make_trial(), repeat=1))
        assert (attempt.outcome, attempt.error) == ("ok", None)
        assert attempt.result is not None
        assert attempt.result["timing"]["median_step_s"] == 0.01
        assert attempt.result["correctness"]["verdict"] == "unchecked"

    def test_reference_is_saved_and_then_judges_a_repeat(self, executor: Executor, reference: Path) -> None:
        assert run(executor, ReferenceTask(make_trial(), reference)).outcome == "ok"
        assert reference.exists()
        attempt = run(executor, RepeatTask(make_trial(), 0, reference))
        assert attempt.result is not None
        assert attempt.result["correctness"]["verdict"] == "identical"

    @pytest.mark.parametrize(
        ("do", "outcome", "kind", "message"),
        [
            ("crash", "crashed", "crashed", "the model fell over"),
            ("allocate", "oom", "oom", "cannot allocate 7 GiB"),
            ("disk_full", "crashed", "storage", "No space left on device"),
        ],
    )
    def test_failure_of_a_repeat_is_named(
        self, executor: Executor, do: str, outcome: str, kind: str, message: str
    ) -> None:
        attempt = run(executor, RepeatTask(make_trial(do=do)))
        assert attempt.outcome == outcome
        assert attempt.error is not None
        assert attempt.error.kind == kind
        assert message in attempt.error.message
        assert attempt.error.log is not None
        assert attempt.result is None

    def test_ranks_that_leave_no_result_crashed(self, executor: Executor) -> None:
        attempt = run(executor, RepeatTask(make_trial(do="no_result")))
        assert attempt.outcome == "crashed"
        assert attempt.result is None

    @pytest.mark.parametrize(
        ("how", "kind"),
        [("fails", "crashed"), ("bad_input", "usage"), ("disk_full", "storage"), ("no_file", "crashed")],
    )
    def test_failure_of_a_reference_is_named(
        self, executor: Executor, reference: Path, how: str, kind: str
    ) -> None:
        attempt = run(executor, ReferenceTask(make_trial(reference=how), reference))
        assert attempt.error is not None
        assert attempt.error.kind == kind
        assert not reference.exists()

    def test_nothing_of_an_earlier_run_of_a_task_is_read(self, executor: Executor, reference: Path) -> None:
        for how in ("fails", None):
            attempt = run(executor, ReferenceTask(make_trial(reference=how), reference))
        assert attempt.outcome == "ok"
        task = RepeatTask(make_trial(do="crash_once", world_size=1))
        assert [run(executor, task).outcome for _ in range(2)] == ["crashed", "ok"]

    def test_watcher_sees_steps_and_can_end_a_repeat(self, executor: Executor) -> None:
        seen: list[int] = []

        def watch(_: object, line: dict[str, int]) -> str | None:
            seen.append(line["step"])
            return "too slow" if line["step"] == 2 else None

        for _ in range(2):
            seen.clear()
            attempt = run(executor, RepeatTask(make_trial(do="step_on", world_size=1)), watch)
            assert seen == [1, 2], "each run is watched from its first line"
            assert attempt.outcome == "timeout"
            assert attempt.error is not None
            assert (attempt.error.kind, attempt.error.message) == ("pruned", "too slow")

    def test_each_batch_ends_once_and_what_has_not_begun_can_be_withdrawn(self, executor: Executor) -> None:
        tasks = [RepeatTask(make_trial(world_size=1), repeat) for repeat in range(3)]
        handles = [executor.submit(Batch((task,)), lambda *_: None) for task in tasks]
        withdrawn = executor.withdraw(handles[2])
        by_handle = dict(zip(handles, tasks, strict=True))
        if withdrawn:
            del by_handle[handles[2]]
        ended = {handle: task.name for handle, task, _ in (executor.next_ended() for _ in by_handle)}
        assert ended == {handle: task.name for handle, task in by_handle.items()}

    def test_closing_twice_does_no_harm(self, executor: Executor) -> None:
        executor.close()
        executor.close()


class ProcessSuite(ExecutorSuite):
    """Conformance tests of an executor whose tasks are processes that write files."""

    def test_what_a_repeat_traces_is_in_the_run_directory(self, executor: Executor, run_dir: Path) -> None:
        trial = make_trial()
        assert run(executor, RepeatTask(trial, trace=True)).outcome == "ok"
        assert (run_dir / "traces" / f"{trial.trial_id}.trace.json").exists()

    def test_watcher_sees_what_a_repeat_tells_last(self, executor: Executor) -> None:
        seen: list[int] = []
        task = RepeatTask(make_trial(do="step_last", world_size=1))
        assert run(executor, task, lambda _, line: seen.append(line["step"])).outcome == "ok"
        assert seen == [7]
