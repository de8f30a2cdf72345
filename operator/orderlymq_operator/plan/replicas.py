"""
The planner of replicas: start, add, remove and restart them, one of a raft group at a time.

Rules: only a leader knows the members, so without a leader only missing processes are started. A replica is changed
only while all other voters are healthy. A learner gets its vote after it has caught up (raft dissertation, section
4.2.1). Followers are restarted before the leader, and the leader transfers leadership first. Of the raft groups that
have one replica, only one is restarted at a time. `liveness` decides which processes are lost; a single observation
without an answer only makes the planner wait.
"""

from collections.abc import Collection, Mapping, Sequence

from orderlymq_operator.plan.actions import (
    Action,
    AddLearner,
    ObservedGroup,
    ObservedNameServer,
    PromoteReplica,
    RemoveReplica,
    RestartReplica,
    StartReplica,
    StopReplica,
    TransferLeadership,
)
from orderlymq_operator.plan.settings import revision
from orderlymq_operator.resources.cluster.cluster import Cluster


def replica_actions(cluster: Cluster, groups: Mapping[str, ObservedGroup]) -> list[Action]:
    """Return the next step of every raft group."""
    current = revision(cluster)
    nodes = range(1, cluster.spec.replicas_per_group + 1)
    work: list[Action] = []
    for name in cluster.group_names:
        found = groups.get(name)
        if found is None:
            work += [StartReplica(name, node, join=False) for node in nodes]
        else:
            work += _next_step(name, nodes, found, current)
    return _one_group_at_a_time(work, groups)


def group_problem(cluster: Cluster, found: ObservedGroup | None) -> str | None:
    """Return why a raft group is not as desired; None if it is."""
    nodes = range(1, cluster.spec.replicas_per_group + 1)
    if found is None:
        return "not started"
    if found.leader is None:
        return "no leader"
    voters = {node for node, replica in found.replicas.items() if replica.member == "voter"}
    if voters != set(nodes):
        return f"its voters are {sorted(voters)}"
    if set(found.replicas) != set(nodes):
        return "a removed replica still runs"
    unhealthy = sorted(node for node, replica in found.replicas.items() if not replica.healthy)
    if unhealthy:
        return f"replica {unhealthy[0]} does not answer"
    if found.topics is None or found.consumer_groups is None:
        return found.refused or "its address does not answer"
    current = revision(cluster)
    if any(replica.revision != current for replica in found.replicas.values()):
        return "a replica runs with previous settings"
    return None


def stale_name_server(
    stale: Collection[int],
    servers: Mapping[int, ObservedNameServer],
    leading: Collection[str] = (),
) -> int | None:
    """Return the name server of a previous form to replace now; None while one is being replaced or unhealthy.

    A failing one goes first, because the previous form may be the cause. No other one goes before every replaced name
    server knows the *leading* raft groups: it may be the last that knows them.
    """
    if any(server.leaving for server in servers.values()):
        return None
    silent = {index for index, server in servers.items() if server.order_config is None}
    if any(index not in stale or not servers[index].failing for index in silent):
        return None
    heard = [each.brokers for index, each in servers.items() if index not in stale]
    if not silent and any(each is not None and not each.issuperset(leading) for each in heard):
        return None
    return min(silent or stale, default=None)


def _next_step(name: str, nodes: range, found: ObservedGroup, current: str) -> list[Action]:
    stopped = [node for node, replica in sorted(found.replicas.items()) if not replica.running]
    if stopped:
        return [StartReplica(name, node, found.replicas[node].join) for node in stopped]
    if found.leader is None:
        return _replace_dead(name, found, current)

    cure = _replace_failing(name, nodes, found, current)
    if cure:
        return cure
    surplus = sorted(set(found.replicas) - set(nodes))
    if surplus:
        return _remove_one(name, surplus, nodes, found)
    pending = [node for node in sorted(found.replicas) if found.replicas[node].member != "voter"]
    missing = sorted(set(nodes) - set(found.replicas))
    if pending or missing:
        return _add_one(name, pending, missing, found)
    stale = [node for node in sorted(nodes) if found.replicas[node].revision != current]
    return _restart_one(name, stale, found) if stale else []


def _one_group_at_a_time(
    work: Sequence[Action], groups: Mapping[str, ObservedGroup]
) -> list[Action]:
    """Leave out restarts that would stop a second raft group.

    A raft group of one replica serves nothing while that replica restarts.
    """
    alone = {name for name, found in groups.items() if len(found.replicas) == 1}
    stopped = {
        name
        for name in alone
        if groups[name].leader is None or any(r.leaving for r in groups[name].replicas.values())
    }
    stops = [
        action
        for action in work
        if isinstance(action, RestartReplica) and action.group in alone - stopped
    ]
    kept = stops[: 0 if stopped else 1]
    return [action for action in work if action in kept or action not in stops]


def _replace_dead(name: str, found: ObservedGroup, current: str) -> list[Action]:
    """Restart, in a raft group without a leader, a replica with previous settings whose process does not run.

    Such a replica gives its raft group nothing. The previous settings may be the cause, such as an image that does
    not exist.
    """
    if any(replica.leaving for replica in found.replicas.values()):
        return []
    dead = [
        node
        for node, replica in sorted(found.replicas.items())
        if replica.ended and replica.revision not in (None, current)
    ]
    return [RestartReplica(name, dead[0])] if dead else []


def _replace_failing(name: str, nodes: range, found: ObservedGroup, current: str) -> list[Action]:
    """Restart replicas that fail with previous settings before members change.

    The settings may be the cause, and a change of members waits for these replicas.
    """
    failing = [
        node
        for node in nodes
        if (replica := found.replicas.get(node)) is not None
        and replica.failing
        and not replica.leaving
        and replica.revision not in (None, current)
    ]
    pending = [node for node in failing if found.replicas[node].member != "voter"]
    if pending:
        return [RestartReplica(name, pending[0])]  # a restart is safe, because it has no vote
    return _restart_one(name, failing, found) if failing else []


def _add_one(
    name: str, pending: list[int], missing: list[int], found: ObservedGroup
) -> list[Action]:
    if _unhealthy_voters(found):
        return []  # with one voter down, a further voter would cost the majority
    if not pending:
        return [StartReplica(name, missing[0], join=True)]
    node = pending[0]
    replica = found.replicas[node]
    if not replica.healthy:
        return []
    if replica.member == "outside":
        return [AddLearner(name, node)]
    return [PromoteReplica(name, node)] if replica.caught_up else []


def _remove_one(name: str, surplus: list[int], nodes: range, found: ObservedGroup) -> list[Action]:
    """Remove the highest replica, because StatefulSets have no gaps; a leader first transfers its leadership."""
    node = surplus[-1]
    replica = found.replicas[node]
    if replica.member == "outside":
        return [StopReplica(name, node)]
    unhealthy = _unhealthy_voters(found)
    if unhealthy - {node} and not (replica.failing and _majority_without(node, found)):
        return []
    if node == found.leader:
        return _hand_over(name, [target for target in nodes if target in found.replicas], found)
    return [RemoveReplica(name, node)]


def _restart_one(name: str, stale: list[int], found: ObservedGroup) -> list[Action]:
    """Restart one replica: first one that is already down, then followers, the leader last.

    The other replicas must be healthy and have the whole log: while one still catches up, nothing could be committed.
    """
    if any(replica.leaving for replica in found.replicas.values()):
        return []
    unhealthy = _unhealthy_voters(found)
    known = {node for node in unhealthy & set(stale) if found.replicas[node].failing}
    if len(unhealthy) > 1 or unhealthy != known:
        return []
    followers = [node for node in stale if node != found.leader]
    order = [*sorted(unhealthy & set(followers)), *followers]
    if order:
        waits = not unhealthy and _lagging_voters(found) - {order[0]}
        return [] if waits else [RestartReplica(name, order[0])]
    if len(found.replicas) == 1:
        return [RestartReplica(name, stale[0])]
    return _hand_over(name, [node for node in found.replicas if node != found.leader], found)


def _hand_over(name: str, targets: list[int], found: ObservedGroup) -> list[Action]:
    """Transfer leadership to the first replica that could lead immediately; wait if there is none."""
    for node in sorted(targets):
        replica = found.replicas[node]
        if (
            node != found.leader
            and replica.member == "voter"
            and replica.healthy
            and replica.caught_up
        ):
            return [TransferLeadership(name, node)]
    return []


def _unhealthy_voters(found: ObservedGroup) -> set[int]:
    return {
        node
        for node, replica in found.replicas.items()
        if replica.member == "voter" and not replica.healthy
    }


def _lagging_voters(found: ObservedGroup) -> set[int]:
    return {
        node
        for node, replica in found.replicas.items()
        if replica.member == "voter" and not replica.caught_up
    }


def _majority_without(node: int, found: ObservedGroup) -> bool:
    rest = [
        replica
        for other, replica in found.replicas.items()
        if other != node and replica.member == "voter"
    ]
    return sum(replica.healthy for replica in rest) > len(rest) // 2
