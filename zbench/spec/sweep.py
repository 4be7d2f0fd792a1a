"""SweepSpec: the content of a sweep file, before its axes become trials; and the file's JSON Schema."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, PrivateAttr, Tag, WithJsonSchema, field_validator, model_validator
from pydantic.json_schema import GenerateJsonSchema

from zbench.spec.base import NotBoolean, Seconds, SpecModel
from zbench.spec.document import dump_yaml
from zbench.spec.engine import EngineSpec
from zbench.spec.keys import field_of, known_paths, short_name
from zbench.spec.machine import Machine
from zbench.spec.metrics import METRICS, Constraint, Goal, metric_named
from zbench.spec.run import RunSpec, VerifySpec
from zbench.spec.workload import WorkloadSpec

Number = Annotated[int | float | str, NotBoolean]


class AxisSpec(SpecModel):
    """An axis with a condition or a range: `values`, or `low` and `high`; `when` is the condition."""

    values: list[Any] | None = Field(None, description="The values, one by one.")
    low: Number | None = Field(None, description="Lowest value of a range for a search, included.")
    high: Number | None = Field(None, description="Highest value of the range, included.")
    log: bool = Field(False, description="Draw evenly on a logarithmic scale.")
    when: dict[str, Any] = Field(
        {}, description="Earlier axis -> value or values where this axis varies; it is fixed elsewhere."
    )

    @model_validator(mode="after")
    def _values_or_range(self) -> Self:
        ends = sum(end is not None for end in (self.low, self.high))
        if ends == 1 or (ends == 2) == (self.values is not None):
            raise ValueError("expected either `values: [...]` or both `low` and `high`; give one of them")
        if self.values is not None and self.log:
            raise ValueError("`log` belongs to a range; remove it, or give `low` and `high`")
        return self


def _axis_form(value: object) -> str | None:
    if isinstance(value, list | tuple):
        return "<list>"
    return "<mapping>" if isinstance(value, dict | AxisSpec) else None


AxisValues = Annotated[
    Annotated[list[Any], Tag("<list>")] | Annotated[AxisSpec, Tag("<mapping>")], Discriminator(_axis_form)
]


class SearchSpec(SpecModel):
    """How points are chosen. `grid` runs all of them, `covering` a few that cover all pairs of values."""

    method: Literal["grid", "covering", "random", "tpe", "nsga2"] = Field(
        "grid", description="Method that chooses the points."
    )
    strength: int = Field(
        2, ge=1, le=4, description="`covering` covers all combinations of this many axes; 2 is pairwise."
    )
    trials: int = Field(40, ge=1, description="Points tried by random, tpe and nsga2.")
    seed: int = Field(0, ge=0, description="Seed of the search; the same seed draws the same points.")
    budget: Seconds | None = Field(None, description="Start no new point after this time, such as `20min`.")
    patience: int | None = Field(
        None, ge=1, description="Stop after this many points in a row without a gain of `min_gain`."
    )
    min_gain: float = Field(0.01, ge=0, description="Relative gain that `patience` counts as progress.")
    prune_slower_than: float | None = Field(
        None, gt=1, description="End a trial whose first steps are this many times slower than the best's."
    )

    @property
    def is_listed(self) -> bool:
        """Return whether the points are known before the first run; otherwise a search draws them."""
        return self.method in ("grid", "covering")


_RANKABLE = {"enum": [name for name, metric in METRICS.items() if metric.better is not None]}
MetricNames = Annotated[
    list[str], WithJsonSchema({"anyOf": [_RANKABLE, {"type": "array", "items": _RANKABLE}]})
]


class ObjectiveSpec(SpecModel):
    """How the best trial is chosen: metrics to maximize or minimize, and constraints that it must meet."""

    maximize: MetricNames = Field([], description="Metrics to maximize, one or a list.")
    minimize: MetricNames = Field([], description="Metrics to minimize, one or a list.")
    subject_to: dict[str, str] = Field(
        {}, description='Metric -> bound, such as `peak_device_bytes: "<= 2Gi"`, `verdict: ">= equivalent"`.'
    )

    @field_validator("maximize", "minimize", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @field_validator("maximize", "minimize")
    @classmethod
    def _rankable(cls, names: list[str]) -> list[str]:
        for name in names:
            if metric_named(name).better is None:
                raise ValueError(
                    f"{name} has no direction; use it in subject_to, such as `{name}: '>= equivalent'`"
                )
        return names

    @field_validator("subject_to", mode="before")
    @classmethod
    def _readable(cls, bounds: object) -> object:
        for metric, text in bounds.items() if isinstance(bounds, dict) else ():
            try:
                Constraint.parse(metric, text)
            except ValueError as error:
                raise ValueError(f"{metric}: {error}; correct this bound") from None
        return bounds

    @model_validator(mode="before")
    @classmethod
    def _is_mapping(cls, value: object) -> object:
        if isinstance(value, str):
            raise ValueError(
                f"no direction: expected `maximize: {value}` or `minimize: {value}`, got {value!r}; add it"
            )
        return value

    @model_validator(mode="after")
    def _has_direction(self) -> Self:
        names = [*self.maximize, *self.minimize]
        if not names:
            raise ValueError("no direction: expected `maximize: METRIC` or `minimize: METRIC`; add one")
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated:
            raise ValueError(f"{repeated} is named twice; name each metric once")
        return self

    @property
    def goals(self) -> tuple[Goal, ...]:
        """Return the goals; those to maximize are first."""
        up = tuple(Goal(name, "maximize") for name in self.maximize)
        return up + tuple(Goal(name, "minimize") for name in self.minimize)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """Return the constraints in the order of the file."""
        return tuple(Constraint.parse(metric, text) for metric, text in self.subject_to.items())


class SweepSpec(SpecModel):
    """A sweep: the base configuration, the axes that vary it, and how trials are chosen and ranked."""

    schema_version: Annotated[Literal[1], NotBoolean] = Field(1, description="Version of the file's format.")
    name: str = Field(
        "sweep", pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$", description="Name of the results directory."
    )
    workload: WorkloadSpec = Field(WorkloadSpec(), description="The model and its data.")
    run: RunSpec = Field(RunSpec(), description="How a trial runs and is timed.")
    engine: EngineSpec = Field(EngineSpec(), description="The configuration that axes vary.")
    axes: dict[str, AxisValues] = Field(
        {}, description="Key of workload, run or engine -> its values, or a range for a search."
    )
    exclude: list[dict[str, Any]] = Field([], description="Partial points to remove from the product.")
    include: list[dict[str, Any]] = Field([], description="Points added to the product.")
    search: SearchSpec = Field(SearchSpec(), description="How points are chosen.")
    objective: ObjectiveSpec = Field(
        ObjectiveSpec(maximize=["tokens_per_s"]), description="What makes a trial the best."
    )
    verify: VerifySpec = Field(VerifySpec(), description="How every trial is verified.")
    environments: str | None = Field(
        None, min_length=1, description="Directory of the Python environments that `engine_python` names."
    )
    machine: Machine | None = Field(
        None, description="Rates to estimate a step's time from: a mapping, a GPU such as H100, or a file."
    )
    _place: Path | None = PrivateAttr(None)

    @property
    def place(self) -> Path | None:
        """Return the base of the file's relative paths; None: do not check the files that they name."""
        return self._place

    def placed(self, place: Path) -> Self:
        """Return a copy whose relative paths start at `place`."""
        copy = self.model_copy()
        copy._place = place.absolute()
        return copy


def sweep_document(sweep: SweepSpec, *, defaults: bool = True) -> dict[str, Any]:
    """Return a sweep as plain JSON values; without `defaults`, only the keys that differ from them."""
    document: dict[str, Any] = sweep.model_dump(mode="json", exclude_defaults=not defaults)
    written = sweep.model_dump(mode="json", include={"axes"}, exclude_defaults=True)
    if defaults and "zero_stage" not in sweep.engine.model_fields_set:  # each engine has a stage of its own
        del document["engine"]["zero_stage"]
    return document | written


def dump_sweep(sweep: SweepSpec, *, defaults: bool = True) -> str:
    """Return a sweep as YAML text; without `defaults`, only the keys that differ from them."""
    return dump_yaml(sweep_document(sweep, defaults=defaults))


class _WithoutTitles(GenerateJsonSchema):
    """Omits the titles of fields, which only repeat the keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def sweep_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) with descriptions of all keys; it lists the keys that may be axes."""
    schema = SweepSpec.model_json_schema(schema_generator=_WithoutTitles)
    for model in (schema, *schema["$defs"].values()):
        model.pop("title", None)
    properties = schema["properties"]
    axis_forms = properties["axes"]["additionalProperties"]
    schema["$defs"]["AxisValues"] = axis_forms
    properties["axes"]["additionalProperties"] = {"$ref": "#/$defs/AxisValues"}
    properties["axes"]["properties"] = {
        short_name(path): {
            "description": f"{'.'.join(path)}: {field_of(path).description}",
            "$ref": "#/$defs/AxisValues",
        }
        for path in known_paths()
    }
    properties["extends"] = {"type": "string", "description": "Base sweep file, that this file overrides."}
    objective = schema["$defs"]["ObjectiveSpec"]["properties"]
    objective["subject_to"] |= {
        "additionalProperties": False,
        "properties": {
            name: {"type": "string", "pattern": "^(<=|>=|==|<|>)", "description": metric.description}
            for name, metric in METRICS.items()
        },
    }
    head = {"$schema": GenerateJsonSchema.schema_dialect, "$id": "urn:zbench:sweep-file:1"}
    return head | {"title": "zbench sweep file"} | schema
