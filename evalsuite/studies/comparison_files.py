"""A comparison of two runs leaves a page, exact numbers as JSON, and gates as JUnit's XML."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from evalsuite.report import write_content
from evalsuite.studies.comparing import LEVEL, Line
from evalsuite.studies.gates import FAILS, UNMEASURED, Judgement
from evalsuite.studies.pairing import Pair, Refused


def write_comparison(
    pair: Pair,
    lines: Sequence[Line],
    judgements: Sequence[Judgement],
    runs: tuple[Path, Path],
    out: Path,
) -> Path:
    """Write all into `out`, which is made; the path of the page. The same runs and gates give the
    same bytes.

    Raises:
        Refused: `out` is a run's folder, whose own report this would replace.
    """
    if (out / "results.parquet").exists():
        raise Refused(
            f"{out}: is a run's folder, whose report would be overwritten; name another with --out"
        )
    out.mkdir(parents=True, exist_ok=True)
    # The page for readers, JSON for programs, and JUnit's XML for what shows gates as tests.
    page = write_content(pair.content, out)[0]
    document = {
        "first": str(runs[0]),
        "second": str(runs[1]),
        "warnings": list(pair.warnings),
        "level": LEVEL,
        "measurements": [line.entry() for line in lines],
        "gates": [
            {
                "gate": judgement.gate.model_dump(),
                "measurement": judgement.line.name if judgement.line else None,
                "outcome": judgement.outcome,
                "text": judgement.text,
            }
            for judgement in judgements
        ],
    }
    (out / "compare.json").write_text(
        json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    (out / "junit.xml").write_bytes(_junit(judgements))
    return page


def _junit(judgements: Sequence[Judgement]) -> bytes:
    """A test case for each gate and measurement; one that was not measured is skipped."""
    counts = {
        "tests": len(judgements),
        "failures": sum(judgement.outcome == FAILS for judgement in judgements),
        "skipped": sum(judgement.outcome == UNMEASURED for judgement in judgements),
        "errors": 0,
    }
    described = {"name": "evalsuite compare", **{key: str(n) for key, n in counts.items()}}
    suite = ElementTree.Element("testsuite", described)
    for judgement in judgements:
        name = judgement.line.name if judgement.line else "no measurement"
        case = ElementTree.SubElement(suite, "testcase", classname=judgement.gate.name, name=name)
        if judgement.outcome in (FAILS, UNMEASURED):
            kind = "failure" if judgement.outcome == FAILS else "skipped"
            ElementTree.SubElement(case, kind, message=judgement.text)
    ElementTree.indent(suite)
    text: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return text + b"\n"
