"""`zbench doctor --calibrate`: this machine's rates, as `machine:` of a sweep file takes them."""

from zbench.bench.calibration import calibrate
from zbench.cli import console
from zbench.errors import ExitCode
from zbench.spec.document import dump_yaml

_DIGITS = 4


def report_rates(world_size: int) -> ExitCode:
    """Measure, and print the rates as YAML (a document with --json)."""
    found = calibrate(world_size).model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    rates = {key: _rounded(value) for key, value in found.items()}
    if console.state.json:
        document = {"schema_version": 1, "world_size": world_size, "machine": rates, "exit_code": 0}
        console.document(document)
    else:
        console.result(f"# one rank's rates where {world_size} share this machine")
        console.result(dump_yaml({"machine": rates}).rstrip())
    return ExitCode.PASS


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
