"""Findings of the leaders in sentences for people: what is wrong, what to do, and where to look."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from orderlymq.admin.client import QueueLock
from orderlymq_console.links import WAITING, group_link, key_link, topic_link
from orderlymq_console.models import Model, Trouble
from orderlymq_console.status import (
    DisagreeingReport,
    ExpiringReport,
    FailingReport,
    GroupReport,
    StatusReport,
    WatchReport,
)
from orderlymq_protocol.findings import words
from orderlymq_protocol.plurals import counted

DISK_NEARLY_FULL: Final = 0.85
# A broker asks about a transaction each minute. An older one was asked about at least once, and no producer knew the answer.
UNDECIDED_S: Final = 120.0


def of_watch(watch: WatchReport, group: str | None = None) -> Iterator[Trouble]:
    """Yield the findings of one leader, only those about *group* if one is given; `blocked.py` handles queues that stand still."""
    of_groups: list[
        tuple[str, FailingReport | ExpiringReport | DisagreeingReport | GroupReport]
    ] = [
        *(("expiring", row) for row in watch.expiring),
        *(("failing", row) for row in watch.failing),
        *(("disagreeing", row) for row in watch.disagreeing),
        *(("notHolding", row) for row in watch.not_holding),
        *(("holdsFull", row) for row in watch.holds_full),
    ]
    for kind, row in of_groups:
        if group in (None, row.group):
            link = group_link(row.group)
            if isinstance(row, FailingReport) and row.key:
                link = key_link(row.topic, row.key)
            yield _trouble(kind, row, link)
    for double in watch.duplicates:
        if group is None or group in double.groups:
            link = group_link(double.groups[0]) if double.groups else ""
            yield _trouble("duplicates", double, link)
    if group is None:
        for queue in watch.hot_queues:
            yield _trouble("hotQueues", queue, topic_link(queue.topic))
        for key in watch.hot_keys:
            yield _trouble("hotKeys", key, topic_link(key.topic))


def of_held(watch: WatchReport) -> Iterator[Trouble]:
    """Yield, for each consumer group, how many of its keys wait for a release."""
    for group, count in sorted(held_keys(watch).items()):
        yield Trouble(
            severity="warning",
            text=f"{counted(count, 'key waits', 'keys wait')} for a release in group {group}.",
            todo="Repair the cause, then release the keys.",
            link="/blocked",
        )


def held_keys(watch: WatchReport) -> Counter[str]:
    """Return how many keys of each consumer group wait: parked keys, and lanes that are held or get their dead letter."""
    found: Counter[str] = Counter()
    for keys in watch.parked_keys:
        found[keys.group] += keys.keys
    for lanes in watch.lanes:
        if lanes.state in ("held", "deadLettering"):
            found[lanes.group] += lanes.lanes
    return +found


def _trouble(kind: str, row: Model, link: str) -> Trouble:
    # A leader writes `queue_id` of a hot queue, and every other member in camelCase.
    text, cure = words(kind, {**row.model_dump(), **row.model_dump(by_alias=True)})
    return Trouble(
        severity="critical" if kind == "holdsFull" else "warning",
        text=text,
        todo=cure.strip("`"),
        link=link,
    )


def of_locks(group: str, locks: Iterable[QueueLock]) -> Iterator[Trouble]:
    """Yield what is wrong with the locks of one consumer group: holders that are not connected, and locks that another member wants."""
    away: dict[str, list[QueueLock]] = {}
    wanted: dict[tuple[str, str], list[QueueLock]] = {}
    for lock in locks:
        if lock.is_connected is False:
            away.setdefault(lock.client_id, []).append(lock)
        if lock.wanted_by:
            wanted.setdefault((lock.client_id, lock.wanted_by), []).append(lock)
    for holder, held in away.items():
        lease_s = max(lock.lease_ms for lock in held) / 1000
        yield Trouble(
            severity="warning",
            text=f"{holder} holds {_queues(held)} in group {group} and is not connected. Nothing proves that it is dead.",
            todo=until_lease_ends(lease_s),
            link=group_link(group),
        )
    for (holder, other), held in wanted.items():
        if holder not in away:
            yield Trouble(
                severity="warning",
                text=f"Two members of group {group} want the lock of {_queues(held)}: {holder} holds it, and {other} "
                "was refused in the last 30 s.",
                todo="A rebalance ends within seconds. If this lasts longer, the members see different members or use different "
                "strategies: compare versions, allocation strategies and client ids, and stop the member that is not needed.",
                link=group_link(group),
            )


def until_lease_ends(lease_s: float) -> str:
    """Return what to do about a holder that is not connected."""
    return (
        f"Wait: another member takes over when the lease of {lease_s:.0f} s ends. Check the process: if it "
        "hangs, kill it. On Kubernetes and on this machine its death is then proven, and the lock is free immediately."
    )


def of_silence(name: str, reason: str, last: StatusReport | None) -> Trouble:
    """Return what is known of a broker group whose leader does not answer; *last* is its last status."""
    voters = () if last is None else last.voters
    known = ""
    if last is not None and voters:
        away = [node for node, replica in last.replicas.items() if not replica.active]
        known = (
            f" Its replicas are {', '.join(map(str, voters))}; {len(voters) // 2 + 1} of them must run to elect a leader."
            + (f" At the last reading {_replicas(away)} not active." if away else "")
        )
    return Trouble(
        severity="critical",
        text=f"{name} has no leader that answers: {reason}.{known}",
        todo="Start replicas until a majority of them runs and they reach each other; then a leader is elected within "
        "a second. Keep the disks: they hold the acknowledged messages. See the guide Recover from a lost majority. "
        "Until then, the figures of this broker group are unknown.",
        link="/raft",
    )


def of_transactions(name: str, status: StatusReport) -> Iterator[Trouble]:
    """Yield the transactions that no producer decides."""
    counts = status.transactions
    if counts is None:
        return
    groups = [group for group, each in sorted(counts.groups.items()) if each.open or each.given_up]
    whose = f" of the producer groups {', '.join(groups[:3])}" if groups else ""
    age_s = 0.0 if counts.oldest_millis is None else time.time() - counts.oldest_millis / 1000
    if counts.given_up:
        yield Trouble(
            severity="warning",
            text=f"{name}: given up: {counted(counts.given_up, 'half message')}{whose}, which no producer decided.",
            todo=DECIDE,
            link=WAITING,
        )
    elif counts.open and age_s >= UNDECIDED_S:
        yield Trouble(
            severity="warning",
            text=f"{name}: {counted(counts.open, 'half message')}{whose} without a decision, the oldest since {age_s / 60:.0f} minutes.",
            todo=DECIDE,
            link=WAITING,
        )


DECIDE: Final = (
    "Run a producer of the group whose check answers COMMIT or ROLLBACK. Then make the broker ask it again: "
    "orderlymq message check-transaction MESSAGE_ID. Until then, consumers do not receive the message."
)


def _queues(locks: list[QueueLock]) -> str:
    first = locks[0].queue
    named = f"queue {first.broker_name}:{first.queue_id} of {first.topic}"
    return named if len(locks) == 1 else f"{named} and {len(locks) - 1} more"


def of_broker_group(name: str, status: StatusReport) -> Iterator[Trouble]:
    """Yield what is wrong with a raft group: replicas that are not active, a disk that is full."""
    away = [node for node, replica in status.replicas.items() if not replica.active]
    voters = len(status.voters)
    if away:
        left = voters - len([node for node in away if int(node) in status.voters])
        majority = voters // 2 + 1
        yield Trouble(
            severity="critical" if left <= majority else "warning",
            text=f"{name}: {_replicas(away)} not active; {left} of {voters} voters are, and a majority needs {majority}.",
            todo="Check the logs of these replicas. The group serves while a majority is active.",
            link="/raft",
        )
    if status.disk_full:
        yield Trouble(
            severity="critical",
            text=f"{name}: the leader's disk is full. Sends are refused with code 14; reads still work.",
            todo="Free disk space or shorten the retention; then the broker recovers by itself.",
            link="/raft",
        )
    elif status.disk.ratio is not None and status.disk.ratio >= DISK_NEARLY_FULL:
        yield Trouble(
            severity="warning",
            text=f"{name}: the leader's disk is {status.disk.ratio:.0%} full.",
            todo="Free disk space before sends are refused.",
            link="/raft",
        )


def _replicas(nodes: list[str]) -> str:
    names = " and ".join(sorted(nodes))
    return f"replica {names} is" if len(nodes) == 1 else f"replicas {names} are"
