"""report.html: one file, no network, a content policy that admits only its own style and script."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any

from evalsuite.report.content import ANSWER_GUIDE, GUIDE, Content
from evalsuite.report.headlines import optional_metrics
from evalsuite.report.matrix import Reading
from evalsuite.report.record import NOT_RECORDED
from evalsuite.report.verdicts import VERDICTS

_DIRECTIONS = {"higher": "↑", "lower": "↓", "neutral": ""}
_DIRECTION_WORDS = {"higher": "higher is better", "lower": "lower is better", "neutral": "no direction"}


def _part(name: str) -> str:
    return (files("evalsuite.report") / "template" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """The source expression of the content policy for an inline element with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def content_policy(style: str, script: str) -> str:
    """What the page may load: its own style and script by digest, images from inside it, and nothing else."""
    return (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _data_uri(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def _provenance(content: Content) -> list[tuple[str, str]]:
    record = content.record
    jobs = record.table("jobs")
    return [
        ("Recipe", record.text("name")),
        ("Command", record.text("command")),
        ("Started", record.text("started")),
        ("Finished", record.text("finished")),
        ("Jobs", ", ".join(f"{value} {name}" for name, value in jobs.items()) or NOT_RECORDED),
        ("Job seconds", record.text("seconds")),
        ("Peak MiB", record.text("peak_mib")),
        ("Seeds", content.seeds_text),
        ("Baseline", content.baseline),
        ("Machine", ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in record.table("machine").items())
         or NOT_RECORDED),
        ("Versions", ", ".join(f"{name} {value}" for name, value in record.table("versions").items()) or NOT_RECORDED),
    ]  # fmt: skip


def _data(content: Content) -> list[dict[str, str]]:
    names = ("fingerprint", "train", "calibration", "validation", "test")
    return [
        {"workload": workload, **{name: content.record.text("data", workload, name) for name in names}}
        for workload in content.workloads
    ]


def _steps(content: Content) -> list[dict[str, str]]:
    names = ("name", "stage", "origin", "version", "help")
    return [
        {
            **{name: str(step.get(name) or NOT_RECORDED) for name in names},
            "after": content.record.after[str(step["name"])],
        }
        for step in content.record.steps
    ]


def render(content: Content) -> str:
    """The page as text, always the same for the same content."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, loader=None
    )
    style, script = _part("page.css"), _part("page.js")
    shown: dict[str, Any] = {
        "content": content,
        "question": content.question,
        "guide": GUIDE,
        "answer_guide": ANSWER_GUIDE.format(baseline=content.baseline),
        "tones": {Reading.HELPS: "better", Reading.COSTS: "worse", Reading.MIXED: "mixed"},
        "policy": content_policy(style, script),
        # Both come from this package; escaping them would change their digests.
        "style": Markup(style),
        "script": Markup(script),
        "arrows": _DIRECTIONS,
        "direction_words": _DIRECTION_WORDS,
        "uri": _data_uri,
        "optional": optional_metrics(),
        "verdict_names": VERDICTS,
        "verdicts": content.verdicts.to_dict("records"),
        "contradictions": content.contradictions.rows.to_dict("records"),
        "provenance": _provenance(content),
        "data": _data(content),
        "steps": _steps(content),
        "variants_help": content.record.table("variants_help"),
        "recipe": content.record.text("recipe_text"),
        "not_recorded": NOT_RECORDED,
    }
    return environment.from_string(_part("page.html.j2")).render(shown)
