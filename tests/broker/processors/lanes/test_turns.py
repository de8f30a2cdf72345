"""One turn of the loop does bounded work for lanes, whatever the number of groups, topics and members."""

from collections.abc import Callable
from itertools import groupby

import pytest

from orderlymq_broker.core.effects import Effect
from orderlymq_broker.processors.fetch.read import SCAN_WORK_MAX
from orderlymq_broker.processors.fetch.sql import SqlFilter, compile_sql
from orderlymq_broker.processors.lanes import fetch, planner
from orderlymq_broker.state.lanes.lanerecords import LanesFetched
from orderlymq_broker.state.records import GroupSet, TopicSet
from orderlymq_protocol.body.lanes import LaneReport, LaneReports
from orderlymq_protocol.codes import RequestCode
from tests.broker.calls import calls_in
from tests.broker.processors.driver import Shell
from tests.broker.processors.lanes.member import (
    TOPIC,
    Member,
    caller_of,
    join,
    lanes,
    lead,
    produce,
)
from tests.broker.processors.lanes.test_rounds import hand_in, queue_of
from tests.broker.processors.requests import create, heartbeat_body, properties, send

GROUPS, MEMBERS, KEYS = 8, "abcd", 16
LANES, ROOM = 4, 12


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the work of a turn to little."""
    monkeypatch.setattr(fetch, "PLANNED_MAX", ROOM)


def lanes_of(records: list[LanesFetched]) -> int:
    """Return how many lanes the records hand out."""
    parts = [part for record in records for part in record.queues]
    return sum(len(each.hand_outs) + sum(found.take > 0 for found in each.found) for each in parts)


def planned(shell: Shell) -> list[LanesFetched]:
    """Return the plans that are not applied yet."""
    records = [record for each in shell.pending for record in each.records]
    return [record for record in records if isinstance(record, LanesFetched)]


def wait(shell: Shell, group: str, client: str) -> int:
    """Let a member of a group by key wait for lanes; return the opaque."""
    if group not in shell.state.groups.by_name:
        create(shell, GroupSet(group, concurrency="Key"))
    shell.call(34, {}, heartbeat_body(client, group, (TOPIC,)), caller=caller_of(client))
    ext = {"consumerGroup": group, "topic": TOPIC, "clientId": client, "sequence": "1"}
    ext |= {"maxLanes": str(LANES), "suspendTimeoutMillis": "20000"}
    return shell.submit(RequestCode.ORDERLYMQ_FETCH_LANES, ext, caller=caller_of(client))


def many_groups() -> tuple[Shell, dict[tuple[str, str], int]]:
    """Return a leader with many groups, in each of which members wait with a fetch."""
    shell = Shell().lead()
    create(shell, TopicSet(TOPIC, 1, 1, order=True))
    waiting = {}
    for number in range(GROUPS):
        for client in MEMBERS:
            group = f"group-{number}"
            waiting[group, client] = wait(shell, group, client)
            shell.settle()
    return shell, waiting


@pytest.mark.usefixtures("small")
def test_a_turn_plans_so_many_lanes_and_no_more() -> None:
    """Law: a turn plans a bounded number of lanes, even if one entry brings messages for all groups."""
    shell, waiting = many_groups()
    hand_in(shell, *[f"key-{number}" for number in range(KEYS)])
    turns: list[list[LanesFetched]] = []
    while shell.pending or shell.later:
        shell.turn()
        turns.append(planned(shell))
        shell.go_on()
        turns.append(planned(shell)[len(turns[-1]) :])

    assert 0 < max(map(lanes_of, turns)) < ROOM + LANES
    replies = [shell.reply_to(each) for each in waiting.values()]
    assert [len(lanes(each)) for each in replies if each] == [LANES] * GROUPS * len(MEMBERS)
    # Nobody gets a second plan before all have one.
    served = [group for records in turns for group, _ in groupby(each.group for each in records)]
    assert len(set(served[:GROUPS])) == GROUPS
    shell.replay()


@pytest.mark.usefixtures("small")
def test_members_that_may_have_nothing_keep_none_behind_them_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: members whose hands are full do not keep the ones behind them waiting."""
    monkeypatch.setattr(planner, "IN_HAND_MAX", 1)
    shell = lead()
    members = [Member(shell, client) for client in "abcdefghijklmnopqrstu"]
    for number, member in enumerate(members):
        join(shell, member.client)
        produce(shell, f"key-{number}")
    for member in members[:-1]:
        assert len(member.fetch()) == 1
    members[-1].done(*members[-1].fetch())
    waiting = [member.wait() for member in members]

    produce(shell, "new")

    replies = [shell.reply_to(each) for each in waiting]
    assert [len(lanes(each)) if each else 0 for each in replies] == [0] * 20 + [1]
    assert not shell.later


def test_who_waits_behind_many_that_wait_in_vain_is_answered_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: many waiting fetches are answered "nothing" in several turns when their time is over."""
    monkeypatch.setattr(fetch, "PLANNED_MAX", 2)
    shell = lead()
    members = [Member(shell, client) for client in "abcdefgh"]
    for member in members:
        join(shell, member.client)
    waiting = [member.wait(suspendTimeoutMillis=1_000) for member in members]

    shell.pass_time(1_000)

    replies = [shell.reply_to(each) for each in waiting]
    assert [None if each is None else each.code for each in replies] == [19] * len(members)
    assert shell.core.lanes.fetcher.waiting_count == 0


def compared_in(step: Callable[[], object]) -> int:
    """Return how many messages a step compares with an expression."""
    return calls_in(step, SqlFilter.matches.__code__)


def test_a_turn_compares_no_more_than_a_pull_does() -> None:
    """Law: a turn compares no more messages than a pull does; the next turns go on until one matches."""
    shell = lead()
    expression = " OR ".join(f"n = {number}" for number in range(240))
    join(shell, "a", tags=expression, kind="SQL92", sub_version=2)
    for number in [7_777] * 200 + [239]:
        send(shell, TOPIC, b"", properties(n=str(number), __SHARDINGKEY="x"), e=0)
    member, cost = Member(shell), compile_sql(expression).cost
    waiting: list[int] = []
    scanned: list[int] = []

    steps = [compared_in(lambda: waiting.append(member.submit()))]
    while shell.pending or shell.later:
        steps.append(compared_in(shell.go_on))
        if shell.pending:
            steps.append(compared_in(shell.turn))
            scanned.append(queue_of(shell).scanned)

    assert 0 < max(steps) * cost <= SCAN_WORK_MAX + cost
    assert scanned == sorted(scanned)
    assert len(set(scanned)) > 200 * cost // (2 * SCAN_WORK_MAX)
    reply = shell.reply_to(waiting[0])
    assert reply is not None
    assert [each.offsets for each in lanes(reply)] == [(200,)]


def calls_in_a_tick(shell: Shell) -> int:
    """Return how many functions a tick of the lanes calls."""
    effects: list[Effect] = []
    count = calls_in(lambda: effects.extend(shell.core.lanes.tick(shell.now)))
    shell.run(effects)
    shell.settle()
    return count


def test_a_tick_looks_at_nothing_that_is_idle_or_has_time_to_wait() -> None:
    """Law: a tick does not look at idle queues or waiting members, of which there may be ten thousand."""
    shell, _ = many_groups()
    shell.pass_time(200)
    few = calls_in_a_tick(shell)
    for number in range(GROUPS, 5 * GROUPS):
        wait(shell, f"group-{number}", "a")
        shell.settle()
    queues = shell.state.lanes.queues_of(f"group-{GROUPS}", TOPIC)
    assert [len(each.lanes) for each in queues.values()] == [0]
    shell.pass_time(200)

    assert calls_in_a_tick(shell) == few


def test_a_parked_lane_goes_on_when_it_is_due_among_many_that_wait() -> None:
    """Law: a parked lane goes on when it is due, and waiting fetches end in time, among many others."""
    shell, waiting = many_groups()
    produce(shell, "x")
    given = {member: reply for member, each in waiting.items() if (reply := shell.reply_to(each))}
    assert len(given) == GROUPS
    for (group, client), reply in given.items():
        (lane,) = lanes(reply)
        report = LaneReport(lane.queue_id, lane.lane, lane.attempt, "retry", delay_millis=3_000)
        ext = {"consumerGroup": group, "topic": TOPIC, "clientId": client}
        body = LaneReports((report,)).to_json()
        code = RequestCode.ORDERLYMQ_COMPLETE_LANES
        assert shell.call(code, ext, body, caller=caller_of(client)).code == 0

    shell.pass_time(2_900)
    assert sum(shell.reply_to(each) is not None for each in waiting.values()) == GROUPS
    shell.pass_time(200)
    assert sum(shell.reply_to(each) is not None for each in waiting.values()) == 2 * GROUPS
    shell.pass_time(20_000)
    assert all(shell.reply_to(each) is not None for each in waiting.values())
