"""JUnit XML, one test case a configuration: what continuous integration shows as tests."""

import xml.etree.ElementTree as ET

from zbench.analysis.compare import Comparison
from zbench.analysis.rows import Row
from zbench.report.exports import texts
from zbench.report.text import label, xml_text

_KINDS = {"incorrect": "failure", "regression": "failure", "failed": "error"}


def render(comparison: Comparison) -> str:
    """Return one suite. Incorrect and slower rows are failures, crashed ones errors, undecided ones skipped.

    An undecided row is a failure where `--fail-on` names `inconclusive`; a missing trial is an error.
    """
    suite = ET.Element(
        "testsuite", name=xml_text(f"zbench compare {comparison.base.name} {comparison.head.name}")
    )
    for row in comparison.rows:
        case = _case(suite, label(row.base), row.head.number("mean_step_s"))
        kind = _KINDS.get(row.answer, "skipped")
        doubts = {row.answer, "inconclusive"} & comparison.settings.fail_on
        if kind == "skipped" and row.answer != "unmeasured" and doubts:
            kind = "failure"
        if row.answer != "pass":
            ET.SubElement(case, kind, message=xml_text(_message(row)), type=row.answer)
    for trial in comparison.missing:
        ET.SubElement(_case(suite, label(trial), None), "error", message="missing in head", type="missing")
    counted = {"tests": "", "failures": "/failure", "errors": "/error", "skipped": "/skipped"}
    for name, path in counted.items():
        suite.set(name, str(len(suite.findall(f"testcase{path}"))))
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True)


def _case(suite: ET.Element, name: str, seconds: float | None) -> ET.Element:
    return ET.SubElement(
        suite, "testcase", classname="zbench", name=xml_text(name), time=f"{seconds or 0:.6f}"
    )


def _message(row: Row) -> str:
    change = f"step time {texts.interval(row.step_time)}" if row.step_time else ""
    return "; ".join(text for text in (change, *texts.reasons(row)) if text)
