"""
The expansion of a topic as part of a cluster's plan.

From manifests and what is observed to the words of `expansion`, and from its answer back to actions.
"""

from collections.abc import Iterable

from orderlymq_operator.plan.actions import Action, Observed, PutOrderConfig
from orderlymq_operator.plan.expansion import (
    ExpansionPlan,
    ExpansionRequest,
    ExpansionState,
    PutQueueList,
    plan_expansion,
)
from orderlymq_operator.plan.placement import parse_order_text
from orderlymq_operator.plan.refusals import expands, published_layout
from orderlymq_operator.resources.kinds import Desired, Topic
from orderlymq_operator.resources.topic import PERMISSION_BITS


def expanding_topics(topics: Iterable[Topic]) -> list[str]:
    """Return the names of the topics whose expansion brokers have to be asked about."""
    return [
        topic.topic_name
        for topic in topics
        if topic.ordered and topic.spec.effective_queue_change_policy == "DrainAndSwitch"
    ]


def topic_expansion(topic: Topic, desired: Desired, observed: Observed) -> ExpansionPlan | None:
    """Return the plan of a topic's expansion; None when it does not grow.

    The caller has made sure that every raft group answers.
    """
    name = topic.topic_name
    under_way = expands(name, observed)
    published = published_layout(name, observed)
    if not topic.ordered or (not under_way and not published):
        return None
    if not under_way and topic.spec.effective_queue_change_policy != "DrainAndSwitch":
        return None
    groups = {
        group: observed.groups[group].expansion.get(name) for group in desired.cluster.group_names
    }
    if not any(groups.values()):
        return None  # it is still being created
    lists = []
    routes = []
    for index in range(desired.cluster.spec.name_servers.replicas):
        server = observed.name_servers.get(index)
        config = server.order_config if server is not None else None
        lists.append(None if config is None else _layout(config.get(name, "")))
        routes.append(None if server is None else server.routes.get(name))
    wish = ExpansionRequest(
        name,
        topic.spec.queues,
        PERMISSION_BITS[topic.spec.permission],
        topic.spec.drain_timeout.milliseconds,
        topic.spec.route_propagation_time.milliseconds,
    )
    plan = plan_expansion(wish, ExpansionState(groups, tuple(lists), tuple(routes)))
    return plan if plan.status is not None else None


def growth_actions(plan: ExpansionPlan) -> list[Action]:
    """Return what a plan of expansion asks of a backend."""
    return [
        PutOrderConfig(action.topic, action.value) if isinstance(action, PutQueueList) else action
        for action in plan.actions
    ]


def expansion_reason(plan: ExpansionPlan) -> str:
    """Return the reason of the condition Ready of a topic that expands."""
    return "Expanding" if plan.status is None else f"Expansion{plan.status.phase}"


def _layout(text: str) -> dict[str, int]:
    try:
        return parse_order_text(text)
    except ValueError:
        return {}  # written by somebody else's tool: it is replaced
