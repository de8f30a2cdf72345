"""What the leaders found that needs a look, in sentences for people: what it is, what to do, where to look."""

from collections.abc import Iterator

from orderlymq_console.links import group_link, key_link, topic_link
from orderlymq_console.models import Trouble
from orderlymq_console.status import StatusTold, WatchTold

DISK_NEARLY_FULL = 0.85


def of_watch(watch: WatchTold, group: str | None = None) -> Iterator[Trouble]:
    """Yield what one leader found, about *group* alone if one is given; queues that stand still are `blocked.py`'s."""
    for row in watch.expiring:
        if group in (None, row.group):
            yield Trouble(
                severity="warning",
                text=f"The lock of queue {row.queue} of {row.topic} in group {row.group} ends in "
                f"{row.left_millis / 1000:.0f} s: {row.holder} has missed renewals.",
                todo="Look whether the holder hangs. Another member takes the queue over when the lease ends.",
                link=group_link(row.group),
            )
    for failing in watch.failing:
        if group in (None, failing.group):
            dead = " It is a dead letter." if failing.dead else ""
            yield Trouble(
                severity="warning",
                text=f"Message {failing.message_id} of {failing.topic}, key {failing.key or 'none'}, failed "
                f"{failing.tries} times in group {failing.group}.{dead}",
                todo=f"orderlymq message show {failing.message_id} --topic {failing.topic}",
                link=key_link(failing.topic, failing.key)
                if failing.key
                else group_link(failing.group),
            )
    for disagreeing in watch.disagreeing:
        if group in (None, disagreeing.group):
            yield Trouble(
                severity="warning",
                text=f"Members of group {disagreeing.group} disagree: {' and '.join(disagreeing.members)} "
                f"differ in {disagreeing.difference}.",
                todo="Give all members the same subscriptions and settings, or groups of their own.",
                link=group_link(disagreeing.group),
            )
    for double in watch.duplicates:
        if group is None or group in double.groups:
            yield Trouble(
                severity="warning",
                text=f"Two clients have the id {double.client_id}: {' and '.join(double.addresses)}.",
                todo="Give each process another instance name; both consume the same queues now.",
                link=group_link(double.groups[0]) if double.groups else "",
            )
    yield from _of_policy(watch, group)


def _of_policy(watch: WatchTold, group: str | None) -> Iterator[Trouble]:
    for row in watch.not_holding:
        if group in (None, row.group):
            yield Trouble(
                severity="warning",
                text=f"Group {row.group} says onDeadLetter HoldKey, and a member does not hold keys.",
                todo="Consume with the Python SDK, or choose StopQueue, which all clients obey.",
                link=group_link(row.group),
            )
    for row in watch.holds_full:
        if group in (None, row.group):
            yield Trouble(
                severity="critical",
                text=f"Group {row.group} has parked {row.keys} keys, the most there may be: its next dead "
                "letter stops a queue.",
                todo="Repair what fails and release keys.",
                link=group_link(row.group),
            )
    if group is not None:
        return
    for queue in watch.hot_queues:
        yield Trouble(
            severity="warning",
            text=f"Queue {queue.queue_id} of {queue.topic} got {queue.share:.0%} of the topic's messages in a minute.",
            todo="Look for a key that is too coarse.",
            link=topic_link(queue.topic),
        )
    for key in watch.hot_keys:
        yield Trouble(
            severity="warning",
            text=f"Key {key.key} has about {key.share:.0%} of the messages of {key.topic}.",
            todo="Choose a finer key if the order allows it: one key is consumed one message after the other.",
            link=key_link(key.topic, key.key),
        )


def of_broker_group(name: str, status: StatusTold) -> Iterator[Trouble]:
    """Yield what is wrong with a raft group: replicas that are away, a disk that is full."""
    away = [node for node, replica in status.replicas.items() if not replica.active]
    voters = len(status.voters)
    if away:
        left = voters - len([node for node in away if int(node) in status.voters])
        majority = voters // 2 + 1
        yield Trouble(
            severity="critical" if left <= majority else "warning",
            text=f"{name}: {_replicas(away)} not active; {left} of {voters} voters are, and a majority needs {majority}.",
            todo="Look at the logs of these replicas. The group serves while a majority is active.",
            link="/raft",
        )
    if status.diskFull:
        yield Trouble(
            severity="critical",
            text=f"{name}: the leader's disk is full. Sends are refused with code 14; reads go on.",
            todo="Make room or shorten the retention; the broker recovers by itself.",
            link="/raft",
        )
    elif status.disk.ratio is not None and status.disk.ratio >= DISK_NEARLY_FULL:
        yield Trouble(
            severity="warning",
            text=f"{name}: the leader's disk is {status.disk.ratio:.0%} full.",
            todo="Make room before sends are refused.",
            link="/raft",
        )


def _replicas(nodes: list[str]) -> str:
    names = " and ".join(sorted(nodes))
    return f"replica {names} is" if len(nodes) == 1 else f"replicas {names} are"
