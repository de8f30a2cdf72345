"""Checks that a forecast named each change; the tests of forecasts share it."""

from typing import TypeAlias

from orderlymq_operator.plan.forecast.effects import Effect, Forecast
from orderlymq_operator.resources.kinds import Desired

Fact: TypeAlias = tuple[str, str, str]
"""A difference: its kind, its object, its place."""


def allows(said: Forecast, wanted: Desired, fact: Fact) -> bool:
    """Return whether the forecast's effects allow *fact* to change."""
    kind, what, where = fact
    match kind:
        case "server":
            return what in said.targets("Adds")
        case "replica" | "revision" | "member":
            replicas = {
                target
                for each in ("Adds", "Removes", "Restarts", "Changes")
                for target in said.targets(each)
            }
            return bool({what, what.partition("/")[0]} & replicas)
        case "lead":
            return what in said.targets("MovesLeadership")
    names = {
        "topic": {t.topic_name: t.metadata.name for t in wanted.topics},
        "group": {g.group_name: g.metadata.name for g in wanted.consumer_groups},
        "user": {u.access_key: u.metadata.name for u in wanted.users},
    }
    of = "topic" if kind in ("fence", "list") else kind
    effects = _about(said, of, names[of].get(what, what))
    kinds = {each.kind for each in effects}
    if kind == "fence":
        return bool(kinds & {"PausesWrites", "Creates", "DeletesData"})
    if kind == "list":
        lists = any("name servers" in each.targets for each in effects)
        return lists or bool(kinds & {"PausesWrites", "Creates", "DeletesData"})
    return "PausesWrites" in kinds or any(where in each.targets for each in effects)


def _about(said: Forecast, kind: str, name: str) -> list[Effect]:
    called = {"topic": "Topic", "group": "ConsumerGroup", "user": "User"}[kind]
    return [
        effect
        for each in said.resources
        if (each.subject.kind, each.subject.name) == (called, name)
        for effect in each.effects
    ]
