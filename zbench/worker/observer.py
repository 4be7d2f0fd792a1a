"""Observes a trial for its verdict between the timed steps, without an effect on any measured figure.

No rank keeps a copy of the model. Each takes sums over the elements that it has (`worker.state`), compares
its final state with the same elements in the file of the reference, and sums are added over the ranks.
"""

import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from zbench.engine.assembly.settings import DTYPES
from zbench.engine.protocols import StepInfo, TrainingEngine
from zbench.record.inputs import changed
from zbench.record.record import Correctness
from zbench.scratch import require_room, state_folder
from zbench.spec.trial import TrialSpec
from zbench.verify.buffers import BufferLog, judge_buffers
from zbench.verify.diagnosis import Finding
from zbench.verify.distance import SMALLEST, Distances
from zbench.verify.evidence import Witness, adam_of, judge_copies, judge_moments
from zbench.verify.files import StateFile
from zbench.verify.layout import OwnRun
from zbench.verify.replay import KINDS, Parts, Residual, replay, updates_so_far
from zbench.verify.slope import GradientSums
from zbench.verify.trajectory import Trajectory, digests_read, load_reference, reading, require_undamaged
from zbench.verify.verdict import FinalState, Judgement, judge, worse
from zbench.worker.state import EngineState, StepSums, added_up, from_all
from zbench.workloads.workload import derived_seed

_LOT = -2  # beside the seeds of steps, which are not negative, and of the model
_PIECE = 1 << 18
"""Elements of a run that are compared with the reference's at once."""
_UNREAD = "the engine has neither optimizer_parts() nor first_moments()"


class Observer:
    """Notes losses, gradient norms and sums of the state of every step, the untimed last one too.

    Some steps are replayed: the first two, the last and a random one, drawn from the trial's seed; but none
    as long as this rank's parameters have the reference's bits. The state before such a step is kept in a
    file of the scratch folder.
    """

    def __init__(self, engine: TrainingEngine, model: nn.Module, trial: TrialSpec, reference: str) -> None:
        """reference: the path of its file."""
        self._model, self._trial = model, trial
        self._path = Path(reference)
        self.reference = load_reference(self._path)
        names = self.reference.plain.names
        self._adams = {name: adam_of(name, trial.engine) for name in names}
        self._state = EngineState(engine, model, self._adams)
        self._losses: list[list[float]] = []
        self._infos: list[StepInfo] = []
        self._found: list[Finding] = []  # in the state of this rank
        self._first_sums: dict[str, NDArray[np.float64]] = {}
        self._residuals: list[Residual] = []
        self._gradients: NDArray[np.float64] | None = None  # in numpy's memory: torch's is the trial's
        last = trial.run.warmup_steps + trial.run.steps
        self._last = last
        self._drawn = {2 + derived_seed(trial.run.seed, _LOT, last) % (last - 2)} if last > 2 else set()
        self._replayed = {0, 1, last} | self._drawn
        self._require_room()
        self._before = StateFile(state_folder())
        self._rows = {name: row for row, name in enumerate(self._state.names)}
        self._trained = [self._rows[name] for name in names]
        self._places = {name: place for place, name in enumerate(names)}  # in the reference
        self._equals_reference = True  # so far: this rank's parameters
        parts = self._state.parts()
        self._sums = [self._state.sums(parts)]
        self._buffers = BufferLog()
        self._buffers.note(model)
        self._before.put(self._replayable(parts))

    def _require_room(self) -> None:
        """UsageError if the state before a step of all ranks of this machine has no room in the scratch
        folder.
        """
        kinds = len(KINDS) if any(adam.amsgrad for adam in self._adams.values()) else len(KINDS) - 1
        elements = sum(own.run.length for own in self._state.trained())
        of_ranks = from_all((socket.gethostname(), elements * kinds * torch.float32.itemsize))
        require_room(sum(size for host, size in of_ranks if host == socket.gethostname()))

    @property
    def curve(self) -> list[float]:
        """This rank's mean loss of each step."""
        return [sum(losses) / len(losses) for losses in self._losses]

    def after_step(self, losses: list[float], info: StepInfo) -> None:
        """Note one step; every rank must call it."""
        self._losses.append(losses)
        self._infos.append(info)
        step = len(self._infos) - 1
        is_first = not info.skipped and sum(not info.skipped for info in self._infos) == 1
        parts = self._state.checked_parts() if is_first else self._state.parts()
        sums = self._state.sums(parts)
        self._sums.append(sums)
        self._buffers.note(self._model)
        expected = self.reference.plain.digests[step : step + 1].numpy()
        self._equals_reference &= bool((expected == sums.digests[self._trained]).all())
        if is_first:
            self._note_gradients(parts, sums)
            self._found += judge_moments(parts, DTYPES[self._trial.engine.optimizer.moments_dtype])
        if step in self._replayed and not info.skipped and not self._equals_reference:
            skipped = {at for at, past in enumerate(self._infos) if past.skipped}
            updates = updates_so_far(self.reference.active, skipped, step)
            counts = dict(zip(self._adams, updates, strict=True))
            before, mine, rank = self._before.take(), self._replayable(parts), dist.get_rank()
            self._residuals += replay(before, mine, self._adams, counts, rank=rank, step=step)
        if step + 1 in self._replayed:
            self._before.put(self._replayable(parts))
        if step in self._drawn or step == self._last:
            strays = self._state.stray_copies(parts, sums)
            self._found += judge_copies(strays, dist.get_rank())

    def _replayable(self, parts: Parts) -> Parts:
        """Return the parts that this rank replays: of runs that several ranks have, its share."""
        if self._state.unread is not None:
            return {}
        return {own.key: parts[own.key] for own in self._state.trained()}

    def _note_gradients(self, parts: Parts, sums: StepSums) -> None:
        """Add up the gradients of the first update beside the reference's, from the first moments."""
        names = self.reference.plain.names
        has_moments = any(from_all(any("exp_avg" in parts[own.key] for own in self._state.own)))
        if not has_moments:
            self._state.first_moments()  # says why
            self._state.unread = self._state.unread or (self._state.unread_moments or _UNREAD)
            return
        scales = {name: 1 / (1 - self._adams[name].beta1) for name in names}
        self._first_sums = {name: sums.moments[self._rows[name]] * scales[name] for name in names}
        reference = self.reference
        gradients = GradientSums.empty(len(names))
        with reading(self._path):
            for own in self._state.trained():
                name = own.run.name
                if name not in reference.gradients:
                    continue
                moment = parts[own.key].get("exp_avg")
                for here, there in _pieces(own):
                    plain = reference.gradients[name][there]
                    true = reference.true_gradients[name][there] if name in reference.true_gradients else None
                    ours = torch.zeros_like(plain) if moment is None else moment[here].cpu() * scales[name]
                    gradients.add(self._places[name], ours, plain, true)
        self._gradients = added_up(gradients.table()).numpy().copy()

    def _same_state(self) -> FinalState:
        """Return the final state of a run that had the reference's bits after every step."""
        parts, distances = self._state.parts(), Distances.empty(len(self._places))
        for own in self._state.trained():
            distances.add_same(self._places[own.run.name], parts[own.key]["param"])
        return FinalState(self._added(distances, differs=False))

    def _final_state(self, differs: bool) -> FinalState:
        """Return how far this rank's replica is from the reference. differs: whether ranks have other
        replicas, so that each rank compares all of its own.
        """
        reference, names = self.reference, self.reference.plain.names
        sizes = reference.travelled / torch.tensor([max(1, reference.elements(n)) for n in names]).sqrt()
        clipping = float(reference.clipping_error)
        both = [(Distances.empty(len(names)), "param", reference.parameters, reference.truth, sizes)]
        if reference.true_moments:
            sizes = reference.moment_sizes
            runs = (reference.moments, reference.true_moments)
            both.append((Distances.empty(len(names)), "exp_avg", *runs, sizes))
        parts = self._state.parts()
        mine = list(self._state.trained())
        if differs:
            mine += [own for own in self._state.whole_replicas() if not own.is_mine]
        with reading(self._path):
            for own in mine:
                name, row = own.run.name, self._places[own.run.name]
                weights = reference.weights.get(name)
                for here, there in _pieces(own):
                    weight = None if weights is None else weights[there]
                    for distances, kind, plain, true, size in both:
                        if kind in parts[own.key]:
                            value = parts[own.key][kind][here].cpu().float()
                            truth = true[name][there] if name in true else None
                            least = max(SMALLEST, clipping * float(size[row]))
                            distances.add(row, value, plain[name][there], truth, weight, least)
        tables = [self._added(distances, differs) for distances, *_ in both]
        shown = len(tables) > 1 and bool(tables[1].elements.any())
        return FinalState(tables[0], tables[1] if shown else None)

    def _added(self, distances: Distances, differs: bool) -> Distances:
        """Return the sums over ranks; if `differs`, with this rank's own replicas."""
        table = distances.table()
        added = Distances.reduced(added_up(table), added_up(table, dist.ReduceOp.MAX))
        if differs:
            own = [self._places[own.run.name] for own in self._state.whole_replicas()]
            table = added.table()
            table[:, own] = distances.table()[:, own]
            added = Distances(*table)
        return added

    def _trajectory(self) -> Trajectory:
        """Return what this rank saw, with the losses of all ranks."""
        norms = [float("nan") if info.grad_norm is None else info.grad_norm for info in self._infos]
        weights, moments = (
            torch.stack([torch.from_numpy(getattr(sums, kind)[self._trained]) for sums in self._sums])
            for kind in ("weights", "moments")
        )
        return Trajectory(
            names=self._state.names,
            losses=torch.tensor(from_all(self._losses), dtype=torch.float64).transpose(0, 1),
            grad_norms=torch.tensor(norms, dtype=torch.float64),
            digests=torch.stack([torch.from_numpy(sums.digests) for sums in self._sums[1:]]),
            sketches=torch.stack([weights, moments], dim=2),
            skipped=tuple(step for step, info in enumerate(self._infos) if info.skipped),
        )

    def verdict(self, inputs: Mapping[str, str]) -> Judgement:
        """Return the verdict. Every rank must call it.

        inputs: digests of the user's files that this trial read. If ranks have different parameters, the
        verdict is that of the worst rank.
        """
        trajectory = self._trajectory()
        first = self._first_disagreement(trajectory.digests)
        is_same = bool(added_up(torch.tensor(int(self._equals_reference)), dist.ReduceOp.MIN))
        final = self._same_state() if is_same else self._final_state(differs=first is not None)
        require_undamaged(self._path, from_all(digests_read(self.reference)))
        state = [
            *judge_buffers(self._model, self.reference, self._adams, dist.get_rank(), self._buffers),
            *self._found,
        ]
        every = from_all((self._residuals, self._state.unread or "", state))
        evidence = Witness(
            adams=self._adams,
            residuals=[one for residuals, _, _ in every for one in residuals],
            unread=next((why for _, why, _ in every if why), None),
            unread_moments=self._state.unread_moments,
            gradients=None if self._gradients is None else GradientSums(*torch.from_numpy(self._gradients)),
            first_sums={name: torch.from_numpy(value) for name, value in self._first_sums.items()},
            first={name: int(self._sums[0].digests[row]) for name, row in self._rows.items()},
            findings=[finding for _, _, findings in every for finding in findings],
            dtype=self._trial.engine.dtype,
        )
        judgement = Judgement(Correctness("unchecked"))
        if dist.get_rank() == 0 or first is not None:
            if names := changed(self.reference.inputs, inputs):
                warning = f"{', '.join(names)} changed after the reference was computed; start a new run"
                judgement = Judgement(Correctness("unchecked"), [warning])
            else:
                judgement = judge(trajectory, final, self.reference, evidence)
        if first is None:
            return judgement
        judgement = worse(from_all(judgement))
        warning = f"ranks have different parameters since step {first}; the verdict is that of the worst rank"
        return Judgement(judgement.correctness, [*judgement.warnings, warning])

    def _first_disagreement(self, digests: Tensor) -> int | None:
        """Return the first step (from 1) after which some rank's parameters differ from another's."""
        least, largest = (added_up(digests, kind) for kind in (dist.ReduceOp.MIN, dist.ReduceOp.MAX))
        differs = (least != largest).any(dim=1)
        return int(differs.nonzero()[0]) + 1 if bool(differs.any()) else None


def _pieces(own: OwnRun) -> Iterator[tuple[slice, slice]]:
    """Yield slices of a run's part, and the same elements' of the whole parameter."""
    run = own.run
    for first in range(0, run.length, _PIECE):
        stop = min(run.length, first + _PIECE)
        yield slice(first, stop), slice(run.start + first, run.start + stop)
