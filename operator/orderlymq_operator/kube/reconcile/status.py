"""
The status of each object: conditions and facts, from the findings of a reconcile.

Pure. Rules: a status is written only if it contains something new. The transition time of a condition is the time at
which its status changed. An unknown field is left out, because the schema refuses null. A condition that is only kept
keeps its generation, because clients that wait for a condition would otherwise believe that it is about the new
generation.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.cluster import Environment
from orderlymq_operator.kube.observe.capacity import ENOUGH
from orderlymq_operator.kube.observe.cluster import Live, outdated_pods
from orderlymq_operator.kube.observe.desired import MESSAGE_MAX
from orderlymq_operator.kube.observe.inventory import Item
from orderlymq_operator.kube.observe.listeners import OutsideView
from orderlymq_operator.kube.observe.pods import PodFacts, Trouble
from orderlymq_operator.kube.resources import TIME_FORMAT, TLS_ROUTES, Json
from orderlymq_operator.plan.actions import (
    Action,
    AddLearner,
    ConditionReport,
    Observed,
    ObservedReplica,
    PromoteReplica,
    RemoveReplica,
    RestartNameServer,
    RestartReplica,
    StartReplica,
    StopReplica,
    Subject,
    TransferLeadership,
)
from orderlymq_operator.plan.expansion import topic_expansion
from orderlymq_operator.plan.refusals import topic_layout
from orderlymq_operator.resources.conditions.table import BY_NAME
from orderlymq_operator.resources.kinds import Cluster, Desired, Topic, User
from orderlymq_protocol.plurals import counted

# The last second that RFC 3339 can express.
_LATEST_S: Final = 253_402_300_799
_NAMED_MAX: Final = 6  # pods in a message
_ROLES: Final = {"leader": "Leader", "follower": "Follower", "learner": "Learner"}


@dataclass(slots=True)
class Findings:
    """The findings of a reconcile in addition to the observed state of a Cluster.

    Attributes:
        scale_down: the condition ScaleDownBlocked.
        storage: the condition StorageReady.
        step: the current operation, as type and sentence; None if there is none.
        default_image: the operator's default image.
        tolerance: the condition FaultTolerant.
        certificates: the condition CertificatesCurrent.
        confirmation: the condition Confirmed.
        listeners: the condition ListenersReady.
        restored: the condition Restored; None for a Cluster that was not restored.
        order: the condition OrderVerified; None without a canary.
        capacity: the condition CapacitySufficient.
    """

    paused: bool = False
    scale_down: ConditionReport | None = None
    storage: ConditionReport | None = None
    step: tuple[str, str] | None = None
    draining: frozenset[str] = field(default_factory=frozenset)
    default_image: str = ""
    problem: ConditionReport | None = None
    tolerance: ConditionReport | None = None
    certificates: ConditionReport | None = None
    confirmation: ConditionReport | None = None
    listeners: ConditionReport | None = None
    restored: ConditionReport | None = None
    order: ConditionReport | None = None
    capacity: ConditionReport = ENOUGH


def status_object(
    item: Item, conditions: Mapping[str, ConditionReport], facts: Json, now: str
) -> Json | None:
    """Return the object with the status to apply; None if the status contains all that already."""
    status = {
        **facts,
        "observedGeneration": item.generation,
        "conditions": _conditions(item, conditions, now),
    }
    live = dict(item.status)
    order = {condition["type"]: condition for condition in live.get("conditions") or []}
    live["conditions"] = [
        order[condition["type"]] for condition in status["conditions"] if condition["type"] in order
    ]
    surplus = [value for key, value in live.items() if key not in status]
    same = {key: live.get(key) for key in status} == status
    if same and len(order) == len(status["conditions"]) and all(map(_is_empty, surplus)):
        return None
    return {
        "apiVersion": item.resource.api_version,
        "kind": item.kind,
        "metadata": {"name": item.name, "namespace": item.namespace},
        "status": status,
    }


def _conditions(item: Item, reports: Mapping[str, ConditionReport], now: str) -> list[Json]:
    previous = {condition["type"]: condition for condition in item.status.get("conditions") or []}
    made = []
    for kind, report in reports.items():
        assert report.reason in BY_NAME, f"reason {report.reason} is not in the table"
        before = previous.get(kind)
        kept = before is not None and before.get("status") == report.status
        made.append(
            {
                "type": kind,
                "status": report.status,
                "reason": report.reason,
                "message": report.message[:MESSAGE_MAX],
                "observedGeneration": report.generation or item.generation,
                "lastTransitionTime": before["lastTransitionTime"] if before and kept else now,
            }
        )
    return made


def _is_empty(value: Any) -> bool:
    """Return whether a value can only be a default that the API server filled in."""
    if isinstance(value, Mapping):
        return all(map(_is_empty, value.values()))
    return not value


def previous_facts(item: Item) -> Json:
    """Return the previous status without conditions; it stays until something newer is known."""
    said = {"conditions", "observedGeneration"}
    return {key: value for key, value in item.status.items() if key not in said}


def previous_conditions(item: Item) -> dict[str, ConditionReport]:
    """Return the previous conditions with their generations, except those with reasons of another operator version."""
    return {
        condition["type"]: ConditionReport(
            condition["status"],
            condition["reason"],
            condition.get("message", ""),
            condition.get("observedGeneration", 0),
        )
        for condition in item.status.get("conditions") or []
        if condition["reason"] in BY_NAME
    }


def account_facts(user: User, name: str, observed: Observed) -> Json:
    """Return the status of a User without conditions: its Secret, and the end of the former secret's validity."""
    facts = {"secretName": names.user_secret(name)} if user.spec.secret_from is None else {}
    accounts = [(group.users or {}).get(user.access_key) for group in observed.groups.values()]
    until_ms = max((account.former_until_ms for account in accounts if account), default=0)
    if until_ms:
        until = datetime.fromtimestamp(min(until_ms / 1000, _LATEST_S), UTC)
        facts["formerSecretUntil"] = until.strftime(TIME_FORMAT)

    return facts


def topic_facts(topic: Topic, desired: Desired, observed: Observed) -> Json:
    """Return the status of a topic without conditions; called only if every raft group answers."""
    layout = topic_layout(topic.topic_name, observed)
    expansion = topic_expansion(topic, desired, observed)
    facts = (
        {}
        if expansion is None or expansion.status is None
        else {
            "expansion": expansion.status.model_dump(mode="json", by_alias=True, exclude_none=True)
        }
    )
    return facts | {
        "topicName": topic.topic_name,
        "queueLayout": [
            {"group": group, "queues": config.queues} for group, config in sorted(layout.items())
        ],
    }


# -- the Cluster -------------------------------------------------------------------------------


def cluster_conditions(
    cluster: Cluster,
    reports: Mapping[Subject, ConditionReport],
    observed: Observed,
    live: Live,
    found: Findings,
    environment: Environment,
) -> dict[str, ConditionReport]:
    """Return every condition of a Cluster."""
    ready = reports.get(Subject("Cluster", cluster.metadata.name)) or ConditionReport(
        "False", "Progressing", "the first replicas are starting"
    )
    trouble = found.problem or _pod_trouble(live)
    if trouble is not None:
        storage = found.storage
        # The condition StorageReady is more exact: the scheduler does not name the missing class.
        better = storage is not None and trouble.reason == storage.reason == "VolumePending"
        ready = storage if storage is not None and better else trouble
    elif ready.status == "True" and found.step is not None:
        ready = ConditionReport("False", "Progressing", found.step[1])
    if found.step is None:
        progressing = ConditionReport("False", "Settled", "no change is being applied")
    else:
        progressing = ConditionReport("True", "Progressing", found.step[1])
    return {
        "Ready": ready,
        **health_conditions(cluster, observed),
        "Progressing": progressing,
        "StorageReady": found.storage or ConditionReport("True", "Bound", "every volume is bound"),
        "UpdateAvailable": _update(environment, found.default_image, cluster, live),
        "FaultTolerant": found.tolerance
        or ConditionReport("Unknown", "NotPlaced", "not checked yet"),
        "CertificatesCurrent": found.certificates
        or ConditionReport("True", "NoCertificates", "replicas use no certificates"),
        "ListenersReady": found.listeners
        or ConditionReport(
            "True", "NoListeners", "there are no listeners for clients in other networks"
        ),
        "CapacitySufficient": found.capacity,
        "ScaleDownBlocked": found.scale_down
        or ConditionReport("False", "NotBlocked", "no group is being removed"),
        **({} if found.order is None else {"OrderVerified": found.order}),
        "Confirmed": found.confirmation
        or ConditionReport("True", "NothingToConfirm", "no edit waits for a confirmation"),
        "Paused": _pause(live, environment)
        if found.paused
        else ConditionReport("False", "NotPaused", "changes are being applied"),
        **({} if found.restored is None else {"Restored": found.restored}),
    }


def health_conditions(cluster: Cluster, observed: Observed) -> dict[str, ConditionReport]:
    """Return the conditions about the health of the raft groups."""
    return {
        "Available": _available(cluster, observed),
        "QuorumHealthy": _quorum(cluster, observed),
    }


def _pod_trouble(live: Live) -> ConditionReport | None:
    troubles: list[Trouble] = [
        pod.trouble for _, pod in sorted(live.pods.items()) if pod.trouble is not None
    ]
    if live.refused_pod:
        troubles.append(Trouble("ApiRefused", live.refused_pod))
    if not troubles:
        return None
    # Problems that a person must fix come before problems that may pass.
    order = ("ImageUnavailable", "VolumePending", "ApiRefused", "Unschedulable", "PodFailing")
    first = min(troubles, key=lambda trouble: order.index(trouble.reason))
    return ConditionReport("False", first.reason, first.text[:MESSAGE_MAX])


def _available(cluster: Cluster, observed: Observed) -> ConditionReport:
    for name in cluster.group_names:
        group = observed.groups.get(name)
        if group is None or group.leader is None:
            return ConditionReport("False", "GroupWithoutLeader", f"{name} has no leader")
    return ConditionReport("True", "AllGroupsLead", "every group has a leader")


def _quorum(cluster: Cluster, observed: Observed) -> ConditionReport:
    for name in cluster.group_names:
        group = observed.groups.get(name)
        replicas = {} if group is None else group.replicas
        for node in range(1, cluster.spec.replicas_per_group + 1):
            replica = replicas.get(node)
            if replica is None or not replica.healthy:
                text = (
                    f"replica {node} of {name} (pod {names.pod_name(name, node)}) does not answer"
                )
                return ConditionReport("False", "ReplicaMissing", text)
            if replica.member != "voter":
                text = f"replica {node} of {name} (pod {names.pod_name(name, node)}) is not a voter yet"
                return ConditionReport("False", "ReplicaMissing", text)
    return ConditionReport("True", "AllReplicasHealthy", "every replica answers and is a voter")


def _update(
    environment: Environment, default_image: str, cluster: Cluster, live: Live
) -> ConditionReport:
    images = sorted({pod.image for pod in live.pods.values() if pod.image}) or [environment.image]
    text = f"pods run {', '.join(images)}"
    if images != [environment.image]:
        text += f"; new ones get {environment.image}"
    if cluster.spec.image is None and default_image and environment.image != default_image:
        text += f", the operator's default is {default_image}"
        return ConditionReport("True", "NewDefaultImage", text)
    return ConditionReport("False", "UpToDate", text)


def _pause(live: Live, environment: Environment) -> ConditionReport:
    """Return the condition Paused, which names the pods that wait for the end of the pause."""
    waiting = [pod.name for pod in outdated_pods(live, environment)]
    text = "no pods are restarted"
    if waiting:
        more = len(waiting) - _NAMED_MAX
        text += f"; these wait: {', '.join(waiting[:_NAMED_MAX])}"
        text += f" and {more} more" if more > 0 else ""
    return ConditionReport("True", "Paused", text)


def cluster_facts(
    item: Item,
    cluster: Cluster,
    observed: Observed,
    live: Live,
    environment: Environment,
    found: Findings,
    now: str,
) -> Json:
    """Return the status of a Cluster without conditions."""
    chosen = names.selector(cluster, names.BROKER)
    name = names.name_server_set(cluster)
    facts: Json = {
        **health_facts(cluster, observed, live, found),
        "selector": ",".join(f"{key}={value}" for key, value in sorted(chosen.items())),
        "image": environment.image,
        "revision": environment.revision,
        "nameServerAddress": f"{name}.{item.namespace}.svc:{names.NAME_SERVER_PORT}",
    }
    if "restored" in item.status:
        facts["restored"] = item.status["restored"]
    if found.step is not None:
        before = item.status.get("operation") or {}
        same = before.get("type") == found.step[0]
        facts["operation"] = {
            "type": found.step[0],
            "step": found.step[1][:256],
            "startedAt": before["startedAt"] if same and "startedAt" in before else now,
        }
    return facts


def health_facts(cluster: Cluster, observed: Observed, live: Live, found: Findings) -> Json:
    """Return the part of a Cluster's status about its raft groups."""
    leaders = sum(
        observed.groups[name].leader is not None
        for name in cluster.group_names
        if name in observed.groups
    )
    voters = [
        sum(replica.member == "voter" for replica in group.replicas.values())
        for group in observed.groups.values()
    ]
    return {
        "leaders": f"{leaders}/{len(cluster.group_names)}",
        "replicas": min(voters, default=0),
        "groups": [
            _group(name, observed, live, found) for name in sorted(observed.groups, key=_index)
        ],
    }


def listener_facts(
    cluster: Cluster, outside: OutsideView, live: Live, before: Iterable[Json]
) -> Json:
    """Return the status of the listeners for clients of other networks; *before* is their previous status.

    A listener whose routes are not deleted yet stays in the status, because routes are only read if the status reports
    some.
    """
    made: dict[str, Json] = {}
    for listener in cluster.spec.listeners:
        facts = {"name": listener.name, "type": listener.type}
        if listener.name in outside.bootstrap:
            facts["bootstrap"] = outside.bootstrap[listener.name]
        made[listener.name] = facts
    routed: set[str] = {
        found["metadata"]["labels"][names.LABEL_LISTENER]
        for (kind, _), found in live.made.items()
        if kind == TLS_ROUTES.kind and names.LABEL_LISTENER in found["metadata"]["labels"]
    }
    if TLS_ROUTES.kind in live.unread:
        routed |= {each["name"] for each in before if each["type"] == TLS_ROUTES.kind}
    for name in sorted(routed):
        made[name] = {**made.get(name, {"name": name}), "type": TLS_ROUTES.kind}
    return {"listeners": list(made.values())} if made else {}


def _index(name: str) -> int:
    return int(name.rpartition("-")[2])


def _group(name: str, observed: Observed, live: Live, found: Findings) -> Json:
    group = observed.groups[name]
    pods = live.group_pods(name)
    leader = live.leader(name)
    facts: Json = {
        "name": name,
        "replicas": sum(replica.healthy for replica in group.replicas.values()),
        "members": [
            _replica(node, replica, pods.get(node), live)
            for node, replica in sorted(group.replicas.items())
        ],
        "draining": name in found.draining,
    }
    if group.leader is not None:
        facts["leader"] = group.leader
    if leader is not None:
        facts["term"] = live.statuses[leader.name].term
    return facts


def _replica(node: int, replica: ObservedReplica, pod: PodFacts | None, live: Live) -> Json:
    near = replica.caught_up or replica.keeps_up
    facts: Json = {"node": node, "role": "Unknown", "caughtUp": near}
    if pod is None:
        return facts
    facts |= {"pod": pod.name, "podUid": pod.uid}
    if revision := pod.annotations.get(names.ANNOTATION_REVISION):
        facts["revision"] = revision
    status = live.statuses.get(pod.name)
    if status is not None:
        # A candidate is reported as a follower, because that state lasts only for a moment.
        facts["role"] = (
            "Outside" if replica.member == "outside" else _ROLES.get(status.role, "Follower")
        )
    return facts


def step_of(actions: Sequence[Action], applied: int) -> tuple[str, str] | None:
    """Return the current operation as type and sentence, for people; None if a plan contains only reports."""
    for action in actions:
        match action:
            case RestartNameServer(index):
                return "RollingUpdate", f"replacing name server {index}"
            case RestartReplica(group, node):
                return "RollingUpdate", f"replacing replica {node} of {group}"
            case TransferLeadership(group, target, balances=False):
                return (
                    "RollingUpdate",
                    f"transferring the leadership of {group} to replica {target}",
                )
            case StartReplica(group, node, join):
                kind = "ChangeReplicas" if join else "AddGroup"
                return kind, f"starting replica {node} of {group}"
            case AddLearner(group, node) | PromoteReplica(group, node):
                return "ChangeReplicas", f"taking replica {node} into {group}"
            case RemoveReplica(group, node) | StopReplica(group, node):
                return "ChangeReplicas", f"taking replica {node} out of {group}"
            case _:
                continue
    return ("RollingUpdate", f"applying {counted(applied, 'object')}") if applied else None


def condition_of(status: Mapping[str, Any], kind: str) -> Json | None:
    """Return one condition of a status; None if the status lacks it."""
    said = status.get("conditions") or []
    found: Json | None = next((each for each in said if each["type"] == kind), None)
    return found
