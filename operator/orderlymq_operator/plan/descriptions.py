"""Actions in words; for progress, logs and dry runs."""

from orderlymq_operator.plan.actions import (
    AbortExpansion,
    Action,
    AddLearner,
    CreateTopic,
    DeleteGroup,
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
    SetGroup,
    SetUser,
    StartNameServer,
    StartReplica,
    StopReplica,
    SwitchTopic,
    TransferLeadership,
    UpdateTopic,
)
from orderlymq_protocol.plurals import counted


def describe(action: Action) -> str:  # noqa: C901, PLR0911, PLR0912 - one line per kind
    """Return a short imperative phrase."""
    match action:
        case StartNameServer(index):
            return f"start name server {index}"
        case RestartNameServer(index):
            return f"restart name server {index} with new settings"
        case StartReplica(group, node, join):
            return f"start replica {group}-{node}" + (" as a new member" if join else "")
        case RestartReplica(group, node):
            return f"restart replica {group}-{node} with new settings"
        case StopReplica(group, node):
            return f"stop replica {group}-{node} and set its data aside"
        case AddLearner(group, node):
            return f"let {group}-{node} receive the log"
        case PromoteReplica(group, node):
            return f"give {group}-{node} its vote"
        case RemoveReplica(group, node):
            return f"take {group}-{node} out of the membership"
        case TransferLeadership(group, target):
            return f"transfer the leadership of {group} to replica {target}"
        case PutOrderConfig(topic, value):
            return f"publish the queue list of {topic}: {value}"
        case DeleteOrderConfig(topic):
            return f"withdraw the queue list of {topic}"
        case CreateTopic(topic, group, config):
            return f"create topic {topic} with {counted(config.queues, 'queue')} on {group}"
        case UpdateTopic(topic, group, config):
            return f"change topic {topic} on {group}: {counted(config.queues, 'queue')}"
        case DeleteTopic(topic, group):
            return f"delete topic {topic} from {group}"
        case FenceTopic(topic, group, attempt, total):
            return f"fence writes to {topic} on {group}: expansion {attempt}, to {total} queues"
        case AbortExpansion(topic, group, attempt, reason):
            return f"let writes to {topic} in again on {group}, expansion {attempt} is aborted: {reason}"
        case SwitchTopic(topic, group, _, total, config):
            return f"switch {topic} to {total} queues, {config.queues} of them on {group}"
        case PublishTopic(topic, group, total):
            return f"notify {group} that {topic} is published with {total} queues"
        case SetGroup(consumer_group, group):
            return f"set consumer group {consumer_group} on {group}"
        case DeleteGroup(consumer_group, group):
            return f"delete consumer group {consumer_group} from {group}"
        case SetUser(_, access_key, group):
            return f"set account {access_key} on {group}"
        case DeleteUser(access_key, group):
            return f"delete account {access_key} from {group}"
        case ReportCondition(subject, condition):
            return f"{subject.kind} {subject.name}: {condition.message}"
        case Refuse():
            return f"refuse {action}"
