"""Actions described in words, for progress output, logs and dry runs."""

from collections.abc import Mapping
from typing import Final

from orderlymq_operator.plan.actions import (
    AbortExpansion,
    Action,
    AddLearner,
    CreateTopic,
    DeleteConsumerGroup,
    DeleteOrderConfig,
    DeleteTopic,
    DeleteUser,
    FenceTopic,
    PromoteReplica,
    PublishTopic,
    PutOrderConfig,
    Refuse,
    RemoveReplica,
    ReportCondition,
    RestartNameServer,
    RestartReplica,
    SetConsumerGroup,
    SetUser,
    StartNameServer,
    StartReplica,
    StopReplica,
    SwitchTopic,
    TopicConfig,
    TransferLeadership,
    UpdateTopic,
)
from orderlymq_protocol.plurals import counted

# A short imperative phrase for each kind of action; the braces name its fields.
_PHRASES: Final[Mapping[type, str]] = {
    StartNameServer: "start name server {0.index}",
    RestartNameServer: "restart name server {0.index} with new settings",
    StartReplica: "start replica {0.group}-{0.node}{join}",
    RestartReplica: "restart replica {0.group}-{0.node} with new settings",
    StopReplica: "stop replica {0.group}-{0.node} and set its data aside",
    AddLearner: "let {0.group}-{0.node} receive the log",
    PromoteReplica: "give {0.group}-{0.node} its vote",
    RemoveReplica: "take {0.group}-{0.node} out of the membership",
    TransferLeadership: "transfer the leadership of {0.group} to replica {0.target}",
    PutOrderConfig: "publish the queue list of {0.topic}: {0.value}",
    DeleteOrderConfig: "withdraw the queue list of {0.topic}",
    CreateTopic: "create topic {0.topic} with {queues} on {0.group}",
    UpdateTopic: "change topic {0.topic} on {0.group}: {queues}",
    DeleteTopic: "delete topic {0.topic} from {0.group}",
    FenceTopic: "fence writes to {0.topic} on {0.group}: expansion {0.attempt}, to {0.total} queues",
    AbortExpansion: (
        "let writes to {0.topic} in again on {0.group}, expansion {0.attempt} is aborted: {0.reason}"
    ),
    SwitchTopic: "switch {0.topic} to {0.total} queues, {0.config.queues} of them on {0.group}",
    PublishTopic: "notify {0.group} that {0.topic} is published with {0.total} queues",
    SetConsumerGroup: "set consumer group {0.consumer_group} on {0.group}",
    DeleteConsumerGroup: "delete consumer group {0.consumer_group} from {0.group}",
    SetUser: "set account {0.access_key} on {0.group}",
    DeleteUser: "delete account {0.access_key} from {0.group}",
    ReportCondition: "{0.subject.kind} {0.subject.name}: {0.condition.message}",
    Refuse: "refuse {0}",
}


def describe(action: Action) -> str:
    """Return a short imperative phrase."""
    join = " as a new member" if isinstance(action, StartReplica) and action.join else ""
    config = getattr(action, "config", None)
    queues = counted(config.queues, "queue") if isinstance(config, TopicConfig) else ""
    return _PHRASES[type(action)].format(action, join=join, queues=queues)
