"""
The topics of a canary: each exists in one raft group only, with a published list as for any Ordered topic.

Pure. The canary itself may not publish lists: only the holder of the cluster's secret may change where clients send.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from orderlymq_operator.plan.actions import (
    Action,
    CreateTopic,
    Observed,
    PutOrderConfig,
    TopicConfig,
    UpdateTopic,
)
from orderlymq_operator.plan.placement import order_text
from orderlymq_operator.resources.cluster.canary import CANARY_QUEUES, canary_topic
from orderlymq_operator.resources.kinds import Desired
from orderlymq_operator.resources.topic import PERMISSION_BITS

CANARY_CONFIG: Final = TopicConfig(CANARY_QUEUES, PERMISSION_BITS["ReadWrite"], order=True)


def canary_actions(desired: Desired, observed: Observed) -> Iterator[Action]:
    """Yield the actions that the canary's topics need; skip raft groups that do not answer."""
    lists = [
        server.order_config
        for server in observed.name_servers.values()
        if server.order_config is not None
    ]
    for group in sorted(desired.canary_groups):
        found = observed.groups.get(group)
        if found is None or found.topics is None or not lists:
            continue
        name, text = canary_topic(group), order_text({group: CANARY_QUEUES})
        if any(each.get(name) != text for each in lists):
            yield PutOrderConfig(name, text)
        present = found.topics.get(name)
        if present is None:
            yield CreateTopic(name, group, CANARY_CONFIG)
        elif replace(present, attributes=()) != CANARY_CONFIG:
            yield UpdateTopic(name, group, CANARY_CONFIG)
