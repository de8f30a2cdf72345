"""The first page: the health of the cluster in one sentence, what needs attention, rates and lag; and the raft page."""

from orderlymq_console.cluster import NAME_SERVERS, Answers, ClusterReader, add
from orderlymq_console.models import (
    BrokerGroup,
    Figure,
    Overview,
    RaftPage,
    Replica,
    Snapshot,
    Trouble,
)
from orderlymq_console.pages import changes, findings, pipelines
from orderlymq_console.pages.blocked import cure
from orderlymq_console.pages.lags import lag_rows, lag_total, oldest
from orderlymq_console.parameters import Parameters
from orderlymq_console.status import SnapshotReport, StatusReport
from orderlymq_protocol.plurals import counted

LAGS_SHOWN = 10
TROUBLES_SHOWN = 50


async def overview(reader: ClusterReader, _: Parameters) -> Overview:
    """Return the first page."""
    statuses = await reader.statuses()
    groups = broker_groups(reader, statuses)
    of_pipelines, asked = await pipelines.troubles(reader)
    troubles = _troubles(reader, statuses, of_pipelines)
    # A waiting lane does not stop its queue, unless the queue is blocked, too; then both count.
    blocked = statuses.total(
        lambda status: len(status.blocked),
        missing=lambda status: status.blocked_unknown or status.cut,
    )
    held = statuses.total(_held, lambda status: status.unexamined or status.cut)
    lags = lag_rows(statuses)
    critical = sum(each.severity == "critical" for each in troubles)
    standing = [
        Trouble(
            severity="critical",
            text=f"Queue {row.queue} of {row.topic} makes no progress in group {row.group}"
            + (f": {row.listener}." if row.listener else "."),
            todo=cure(row),
            link="/blocked",
        )
        for _, status in statuses.known()
        for row in status.blocked
    ]
    shown, left_out = changes.last_hour(reader.journal)
    state, sentence = _health(groups, blocked, held, critical, len(troubles))

    return Overview(
        sources=(*reader.sources(statuses), *asked),
        state=state,
        sentence=sentence,
        troubles=tuple([*troubles[:critical], *standing, *troubles[critical:]][:TROUBLES_SHOWN]),
        broker_groups=groups,
        messages_in=add([each.messages_in for each in groups]) if groups else _none(statuses),
        messages_out=add([each.messages_out for each in groups]) if groups else _none(statuses),
        bytes_in=add([each.bytes_in for each in groups]) if groups else _none(statuses),
        bytes_out=add([each.bytes_out for each in groups]) if groups else _none(statuses),
        lag=lag_total(statuses),
        oldest_seconds=oldest(statuses),
        blocked=add([blocked, held]),
        members=statuses.total(lambda status: status.members, lambda status: status.unreported),
        lags=lags[:LAGS_SHOWN],
        changes=shown,
        changes_left_out=left_out,
        changes_since_ms=reader.journal.whole_since_ms,
    )


async def raft(reader: ClusterReader, _: Parameters) -> RaftPage:
    """Return terms, leaders, replicas and commit indexes of all raft groups."""
    statuses = await reader.statuses()

    return RaftPage(
        sources=reader.sources(statuses),
        troubles=tuple(raft_troubles(reader, statuses)),
        broker_groups=broker_groups(reader, statuses),
    )


def raft_troubles(reader: ClusterReader, statuses: Answers[StatusReport]) -> list[Trouble]:
    """Return what is wrong with raft groups and their disks, including raft groups that do not answer."""
    found = [
        findings.of_silence(name, reading.unknown, reader.last_status(name))
        if name != NAME_SERVERS
        else _no_name_server(reading.unknown)
        for name, reading in statuses.readings.items()
        if reading.value is None
    ]
    for name, status in statuses.known():
        found += findings.of_broker_group(name, status)

    return found


def _no_name_server(reason: str) -> Trouble:
    return Trouble(
        severity="critical",
        text=f"The name servers do not report the brokers: {reason}.",
        todo="Check whether the name servers run, and whether the console has their addresses.",
    )


def broker_groups(
    reader: ClusterReader, statuses: Answers[StatusReport]
) -> tuple[BrokerGroup, ...]:
    """Return a row for every broker group, including those that do not answer."""
    brokers = statuses.readings.items()
    return tuple(
        BrokerGroup(name=name, unknown=reading.unknown)
        if reading.value is None
        else _broker_group(reader, name, reading.value)
        for name, reading in brokers
        if name != NAME_SERVERS
    )


def _broker_group(reader: ClusterReader, name: str, status: StatusReport) -> BrokerGroup:
    now_s = reader.collector.now_s()
    rates = {
        field: reader.rates.per_second(name, field, now_s)
        for field in ("messages_in", "messages_out", "bytes_in", "bytes_out")
    }
    return BrokerGroup(
        name=name,
        leader=status.leader,
        term=status.term,
        commit=status.commit,
        applied=status.applied,
        first_index=status.first_index,
        last_index=status.last_index,
        voters=status.voters,
        learners=status.learners,
        replicas=tuple(
            Replica(
                node=node,
                role=_role(node, status),
                match=replica.match,
                lag=replica.lag,
                active=replica.active,
                state=replica.state,
                snapshot=_snapshot(replica.snapshot),
            )
            for node, replica in sorted(status.replicas.items())
        ),
        disk_ratio=status.disk.ratio,
        disk_bytes=status.disk.bytes,
        disk_full=status.disk_full,
        uptime_seconds=None if status.uptime_ms is None else status.uptime_ms / 1000,
        connections=status.connections,
        **rates,
    )


def _snapshot(report: SnapshotReport | None) -> Snapshot | None:
    if report is None:
        return None
    return Snapshot(index=report.index, size_bytes=report.bytes, age_seconds=report.age_ms / 1000)


def _role(node: str, status: StatusReport) -> str:
    if node == str(status.leader):
        return "leader"
    return "learner" if node in {str(each) for each in status.learners} else "follower"


def _none(statuses: Answers[StatusReport]) -> Figure:
    return Figure(unknown=statuses.unknown or "no broker group is registered")


def _held(status: StatusReport) -> int | None:
    return None if status.examined is None else findings.held_keys(status.examined).total()


def _troubles(
    reader: ClusterReader, statuses: Answers[StatusReport], of_pipelines: list[Trouble]
) -> list[Trouble]:
    found = [*raft_troubles(reader, statuses), *of_pipelines]
    for name, status in statuses.known():
        found += findings.of_transactions(name, status)
        if status.examined is not None:
            found += findings.of_watch(status.examined)
            found += findings.of_held(status.examined)

    return sorted(found, key=lambda each: each.severity != "critical")


def _health(
    groups: tuple[BrokerGroup, ...], blocked: Figure, held: Figure, critical: int, troubles: int
) -> tuple[str, str]:
    silent = [group.name for group in groups if group.unknown]
    if not groups or len(silent) == len(groups):
        return "unknown", "The state of the cluster is unknown: no broker group answers."
    parts = []
    if silent:
        parts.append(f"{counted(len(silent), 'broker group does', 'broker groups do')} not answer")
    if blocked.value:
        parts.append(f"{counted(int(blocked.value), 'queue is', 'queues are')} blocked")
    if held.value:
        parts.append(f"{counted(int(held.value), 'key waits', 'keys wait')} for a release")
    rest = critical - len(silent)
    if rest > 0:
        parts.append(f"{counted(rest, 'more thing is', 'more things are')} critical")
    known = [each for each in (blocked, held) if each.value is not None and not each.at_least]
    # If a broker group does not answer, the first part says so.
    if len(known) < 2 and not silent:
        what = "what else" if blocked.value or held.value else "what"
        parts.append(f"{what} is blocked is unknown")
    if parts:
        text = ", and ".join(parts)
        text = f"{text[0].upper()}{text[1:]}"
        if troubles or blocked.value or held.value:
            return "troubled", f"{text}."
        return "unknown", f"{text}: {blocked.unknown or held.unknown}."
    leaders = counted(len(groups), "broker group has", "broker groups have")
    if troubles:
        return (
            "troubled",
            f"{leaders} a leader; {counted(troubles, 'warning needs', 'warnings need')} attention.",
        )

    return "healthy", f"The cluster is healthy: {leaders} a leader, and nothing is blocked."
