"""The processes of one task, from their start to the verdict on how they ended, and what starts them."""

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from zbench.errors import TrialsFailedError
from zbench.job.messages import RankStart, Ready
from zbench.job.progress import ProgressTail, Watch
from zbench.job.turns import Turns
from zbench.launch.disturbance import DisturbanceMeter
from zbench.launch.executor import MODULES, Attempt, TaskFiles
from zbench.launch.process.client import KeeperLostError, RankGroup, ServerLostError, WarmServer
from zbench.launch.process.outcome import classify, kernel_oom_kills
from zbench.launch.turns import Participant, TurnGate
from zbench.record.record import Failure
from zbench.record.secrets import mask_files
from zbench.scratch import scratch_folder


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """What the processes of a task do.

    target: what each calls with its start. log_name: the log directory, for the record. deadline: seconds.
    first: the first one's rank.
    """

    target: str
    starts: Sequence[RankStart]
    files: TaskFiles
    log_name: str
    deadline: float
    watch: Watch | None = None
    memory_limit: int | None = None
    first: int = 0


class Launcher(AbstractContextManager["Launcher"]):
    """Keeps one trial server alive, and a scratch directory for its groups. A context manager."""

    def __init__(
        self,
        modules: tuple[str, ...] = MODULES,
        python: Path | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """python: the interpreter of server and groups, if not the running one. tell: of failed imports."""
        self._tell, self._has_told = tell, False
        self._oom_kills = kernel_oom_kills()
        self.scratch = scratch_folder()
        self._modules, self._python = modules, python
        self._server = WarmServer(modules, self.scratch, python)

    def ready_server(self) -> WarmServer:
        """Return the server, when it has imported everything."""
        self.wait_until_ready()
        return self._server

    def wait_until_ready(self) -> Ready:
        """Return when the server has imported everything: how long it took, and what failed.

        TrialsFailedError if it is killed a second time.
        """
        for _ in range(2):
            with suppress(ServerLostError):
                ready = self._server.wait_until_ready()
                for problem in () if self._has_told else ready.problems:
                    self._tell(f"cannot import {problem}")
                self._has_told = True
                return ready
            self.replace_server(self._server)
        cause = "by a signal from outside, as a memory limit does"
        if kernel_oom_kills() > self._oom_kills:
            cause = "by the kernel: the machine, or a memory limit, has too little memory"
        raise TrialsFailedError(
            f"the trial server was killed twice while it started, {cause}; free some memory, or raise the"
            " limit of the container or the job"
        )

    def close(self) -> None:
        """End the server and remove the scratch directory."""
        self._server.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def __exit__(self, *_: object) -> None:
        self.close()

    def replace_server(self, lost: WarmServer) -> str:
        """Start another server for one that was lost, unless that was done; all that it had started is gone.

        Returns why the lost one had ended by itself, if it had.
        """
        reason = lost.kill()
        if lost is self._server:
            self._server = WarmServer(self._modules, self.scratch, self._python)
        return reason


class Processes(Participant):
    """The processes of one task: started, waited for, in turns if need be, and judged.

    gate: where they wait for their turns, if they take any.
    """

    def __init__(
        self, launcher: Launcher, plan: ProcessPlan, gate: TurnGate | None = None, pair: Turns | None = None
    ) -> None:
        """pair: where they ask for their turns with another sweep; they then wait in `advance`."""
        self.plan, self.gate, self._pair = plan, gate, pair
        self._launcher = launcher
        tail = ProgressTail(plan.files.progress)
        watch = plan.watch
        stop_when = partial(tail.feed, watch) if watch is not None else lambda: None
        self._group = RankGroup(len(plan.starts), plan.deadline, stop_when)
        self._server: WarmServer | None = None
        self._lost = ""
        self._meter = DisturbanceMeter()
        self._oom_kills = 0
        self._launcher_cpu_seconds = 0.0
        self.seconds = 0.0

    def advance(self) -> None:
        """Start the processes, or let them go on; return when they wait at their gate, or are gone.

        If the server is killed meanwhile, another is started and the processes count as killed.
        """
        self._go_on()
        while self._pair is not None and self.waits:
            self._pair.wait() if self.asks else self._pair.over()
            self._go_on()

    def _go_on(self) -> None:
        kills = kernel_oom_kills()
        cpu_seconds = time.process_time()
        began = time.monotonic()
        ran_before = self._group.seconds
        self._meter.begin()
        try:
            if self._server is None:
                self._server = self._launcher.ready_server()
                self._server.start_group(self._group, self.plan.target, self.plan.starts)
            elif self.gate is not None:
                self.gate.go()
            self.seconds += time.monotonic() - began
            self._group.advance(self.gate)
        except KeeperLostError as error:
            self._lost = str(error)
        except ServerLostError as error:
            assert self._server is not None
            reason = self._launcher.replace_server(self._server)
            self._lost = str(error) or reason or "the trial server was killed from outside"
        self._meter.end()
        self._oom_kills += kernel_oom_kills() - kills
        self._launcher_cpu_seconds += time.process_time() - cpu_seconds
        self.seconds += self._group.seconds - ran_before

    def attempt(self) -> Attempt:
        """Return how the processes ended."""
        if self._lost:
            return Attempt("crashed", Failure("killed", self._lost, f"{self.plan.log_name}/rank0.log"))
        logs, end, first = self.plan.files.logs, self._group.end, self.plan.first
        outcome, error = classify(
            replace(end, ranks=first + end.ranks, exits={first + r: code for r, code in end.exits.items()}),
            result_path=str(self.plan.files.result),
            deadline=self.plan.deadline,
            kernel_oom_kills=self._oom_kills,
            log=self.plan.log_name,
            memory_limit=self.plan.memory_limit,
        )
        if error is None and not any(log.stat().st_size for log in logs.iterdir()):
            shutil.rmtree(logs)
        else:
            mask_files(logs)
        disturbance = self._meter.disturbance(end.cpu_seconds + self._launcher_cpu_seconds)
        return Attempt(outcome, error, disturbance=disturbance, peak_rss_bytes=end.peak_rss_bytes)

    def __exit__(self, *_: object) -> None:
        """Leave nothing of them."""
        self._group.close()
