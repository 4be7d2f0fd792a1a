"""The blocks of configurations: workload, run, engine, verify. Points share most; each is validated once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from zbench.spec.axes import Axis, Point
from zbench.spec.base import SpecModel
from zbench.spec.point import Exclude, configured, matches
from zbench.spec.trial import block_identity

M = TypeVar("M", bound=SpecModel)
Conflict = tuple[str, str]
"""The key to change, and the reason with its remedy."""

FindConflict = Callable[[M], Conflict | None]


@dataclass(frozen=True, eq=False)
class ValidBlock(Generic[M]):
    """A block as it is written, and its model. excluded_by: the `exclude` entries that it does not refute."""

    section: str
    written: dict[str, Any]
    excluded_by: frozenset[int]
    model: M
    find_conflict: FindConflict[M]

    @cached_property
    def values(self) -> dict[str, Any]:
        """The model as JSON values."""
        return self.model.model_dump(mode="json")

    @cached_property
    def identity(self) -> str:
        """What the block adds to a trial's ID."""
        return block_identity(self.section, self.values)

    @cached_property
    def conflict(self) -> Conflict | None:
        """What within the block cannot be together."""
        return self.find_conflict(self.model)


@dataclass(frozen=True, eq=False)
class InvalidBlock:
    """A block that validation refuses, and why; `key` is the first that it refuses."""

    section: str
    written: dict[str, Any]
    excluded_by: frozenset[int]
    reason: str


class BlockCache(Generic[M]):
    """The distinct blocks of one section of a sweep's configurations.

    own: the sweep's own block, which is `written` as JSON values. excludes: all entries of the sweep.
    """

    def __init__(
        self,
        name: str,
        own: M,
        written: dict[str, Any],
        axes: Sequence[Axis],
        excludes: Sequence[Exclude],
        find_conflict: FindConflict[M] = lambda _: None,
    ) -> None:
        self.name = name
        self._own, self._written, self._find_conflict = own, written, find_conflict
        self._paths = {axis.key: axis.path for axis in axes if axis.path[0] == name}
        self._excludes = [{p: v for p, v in entry.items() if p[0] == name} for entry in excludes]
        self._by_values: dict[str, ValidBlock[M] | InvalidBlock] = {}
        self._by_model: dict[int, ValidBlock[M]] = {}
        self._by_text: dict[str, ValidBlock[M] | InvalidBlock] = {}

    def at(self, point: Point) -> ValidBlock[M] | InvalidBlock:
        """Return the block of a point of the axes; `repr` tells 1 from True and from 1.0, as JSON does."""
        values = repr([point.get(key, ...) for key in self._paths]) if self._paths else ""
        block = self._by_values.get(values)
        if block is None:
            block = self._by_values[values] = self.of(self.written_at(point))
        return block

    def written_at(self, point: Point) -> dict[str, Any]:
        """Return the sweep's own block with this section's values of a point set."""
        values = {self._paths[key]: value for key, value in point.items() if key in self._paths}
        block: dict[str, Any] = configured({self.name: self._written}, values)[self.name]
        return block

    def of(self, written: dict[str, Any]) -> ValidBlock[M] | InvalidBlock:
        """Return the block that is written so."""
        text = repr(written)
        if text not in self._by_text:
            self._by_text[text] = self._validated(written)
        return self._by_text[text]

    def values_of(self, model: M) -> dict[str, Any]:
        """Return a block's model as JSON values."""
        known = self._by_model.get(id(model))
        return model.model_dump(mode="json") if known is None else known.values

    def _validated(self, written: dict[str, Any]) -> ValidBlock[M] | InvalidBlock:
        config = {self.name: written}
        excluded_by = frozenset(n for n, entry in enumerate(self._excludes) if matches(config, entry))
        try:
            model = self._own if written == self._written else type(self._own).model_validate(written)
        except ValidationError as error:
            return InvalidBlock(self.name, written, excluded_by, _reason(self.name, error))
        block = ValidBlock(self.name, written, excluded_by, model, self._find_conflict)
        self._by_model[id(model)] = block  # which keeps the model, so that its id stays its own
        return block


def _reason(section: str, error: ValidationError) -> str:
    detail = error.errors()[0]
    where = ".".join(str(part) for part in (section, *detail["loc"]))
    return f"{where}: {detail['msg'].removeprefix('Value error, ')}"
