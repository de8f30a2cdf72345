"""
The forecast: the planner's steps towards a desired state, on an ideal cluster, until no step is left.

Pure. It uses the planner itself and has no rules of its own. Rule: the forecast contains everything that a backend
will do because of a plan. Faults that cannot be foreseen may make the planner wait, or move a leader once more.
"""

from dataclasses import replace
from typing import Final

from orderlymq_operator.plan.actions import Action, Observed, Refuse, ReportCondition
from orderlymq_operator.plan.forecast.consequences import consequences
from orderlymq_operator.plan.forecast.effects import Forecast
from orderlymq_operator.plan.forecast.ideal import IdealCluster
from orderlymq_operator.plan.planner import plan, plan_accepted
from orderlymq_operator.plan.refusals import of_change
from orderlymq_operator.resources.kinds import Desired

# Enough for a cluster of GROUPS_MAX raft groups of one replica, which restart one after the other.
PASSES_MAX: Final = 300


def forecast(desired: Desired, observed: Observed, *, whole: bool = True) -> Forecast:
    """Return what the change from *observed* to *desired* will do.

    Args:
        desired: the desired state.
        observed: the observed state, with the desired state that was accepted before.
        whole: whether one refusal of a changed object refuses the whole change; otherwise only its object is left
            alone.
    """
    _, refused = plan_accepted(desired, observed)
    told = of_change(refused, desired, observed.accepted) if whole else refused
    if told and (whole or any(refusal.kind == "Cluster" for refusal in told)):
        return Forecast(refusals=tuple(told))
    out = {(refusal.kind, refusal.name) for refusal in refused}
    kept = replace(
        desired,
        topics=tuple(t for t in desired.topics if ("Topic", t.metadata.name) not in out),
        consumer_groups=tuple(
            g for g in desired.consumer_groups if ("ConsumerGroup", g.metadata.name) not in out
        ),
    )
    ideal = IdealCluster(kept, observed)
    before = replace(ideal.observed(), conditions=observed.conditions, accepted=observed.accepted)
    steps, complete = _run(kept, ideal)
    return Forecast(
        resources=tuple(consequences(kept, before, steps)),
        steps=tuple(steps),
        refusals=tuple(told),
        complete=complete,
    )


def _run(desired: Desired, ideal: IdealCluster) -> tuple[list[Action], bool]:
    """Run the planner until it plans nothing on a settled cluster; return the steps, and whether it got there."""
    steps: list[Action] = []
    settled = False
    for _ in range(PASSES_MAX):
        found = plan(desired, ideal.observed())
        work = [item for item in found if not isinstance(item, ReportCondition | Refuse)]
        if not work and settled:
            return steps, True
        for action in work:
            ideal.perform(action)
        steps += work
        ideal.settle()
        settled = not work
    return steps, False
