"""
A forecast as JSON types, and that JSON as text for people.

Rule: the text says nothing that is not in the JSON, because a supervisor sends only the JSON.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from orderlymq_operator.plan.descriptions import describe
from orderlymq_operator.plan.forecast.effects import SERIOUS, Forecast

Report = dict[str, Any]

_UNFINISHED: Final = "The forecast does not cover all steps; run it again when these are done."


def report_of(forecast: Forecast) -> Report:
    """Return *forecast* as JSON types."""
    return {
        "changes": bool(forecast.effects),
        "complete": forecast.complete,
        "confirmations": list(forecast.targets("NeedsConfirmation")),
        "refusals": [
            {
                "kind": refusal.kind,
                "name": refusal.name,
                "field": refusal.field,
                "reason": refusal.reason,
                "advice": refusal.advice,
            }
            for refusal in forecast.refusals
        ],
        "resources": [
            {
                "kind": each.subject.kind,
                "name": each.subject.name,
                "note": each.note,
                "effects": [
                    {
                        "kind": effect.kind,
                        "serious": effect.kind in SERIOUS,
                        "text": effect.text,
                        "targets": list(effect.targets),
                    }
                    for effect in each.effects
                ],
            }
            for each in forecast.resources
        ],
        "steps": [describe(step) for step in forecast.steps],
    }


def text_of(report: Mapping[str, Any]) -> str:
    """Return a report as lines for people; serious effects are marked with `!`."""
    return "\n".join(_lines(report))


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    for refusal in report["refusals"]:
        yield f"{refusal['kind']} {refusal['name']} is refused, {refusal['field']}: {refusal['reason']}"
        yield f"    {refusal['advice']}"
    unchanged = []
    for each in report["resources"]:
        name = f"{each['kind']} {each['name']}"
        if each.get("note"):  # a supervisor of an earlier version does not send it
            yield f"{name}: {each['note']}"
        elif not each["effects"]:
            unchanged.append(name)
        else:
            yield name
        for effect in each["effects"]:
            yield f"  {'!' if effect['serious'] else ' '} {effect['kind']}: {effect['text']}"
    if unchanged and report["changes"]:
        yield f"Nothing happens to {', '.join(unchanged)}."
    if not report["complete"]:
        yield _UNFINISHED
    if not report["changes"] and not report["refusals"]:
        yield "Nothing to change."
