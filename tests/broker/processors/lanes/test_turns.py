"""What one turn of the loop does for lanes has a bound, whatever the number of groups, topics and members."""

from itertools import groupby

import pytest

from orderlymq_broker.processors.lanes import fetch, planner
from orderlymq_broker.state.lanes.lanerecords import LanesFetched
from orderlymq_broker.state.records import GroupSet, TopicSet
from orderlymq_protocol.codes import RequestCode
from tests.broker.processors.driver import Shell
from tests.broker.processors.lanes.member import (
    TOPIC,
    Member,
    join,
    lanes,
    lead,
    peer_of,
    produce,
)
from tests.broker.processors.lanes.test_rounds import hand_in
from tests.broker.processors.requests import create, heartbeat_body

GROUPS, MEMBERS, KEYS = 8, "abcd", 16
LANES, ROOM = 4, 12


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a turn little room."""
    monkeypatch.setattr(fetch, "PLANNED_MAX", ROOM)


def lanes_of(records: list[LanesFetched]) -> int:
    """Return how many lanes records hand out."""
    parts = [part for record in records for part in record.queues]
    return sum(len(each.hand_outs) + sum(found.take > 0 for found in each.found) for each in parts)


def planned(shell: Shell) -> list[LanesFetched]:
    """Return what was planned and is not applied yet."""
    records = [record for each in shell.pending for record in each.records]
    return [record for record in records if isinstance(record, LanesFetched)]


def many_groups() -> tuple[Shell, dict[tuple[str, str], int]]:
    """Return a leader of which the members of many groups wait with a fetch each."""
    shell = Shell().lead()
    create(shell, TopicSet(TOPIC, 1, 1, order=True))
    waiting = {}
    for number in range(GROUPS):
        group = f"group-{number}"
        create(shell, GroupSet(group, concurrency="Key"))
        for client in MEMBERS:
            shell.call(34, {}, heartbeat_body(client, group, (TOPIC,)), peer=peer_of(client))
            ext = {"consumerGroup": group, "topic": TOPIC, "clientId": client, "sequence": "1"}
            ext |= {"maxLanes": str(LANES), "suspendTimeoutMillis": "20000"}
            code = RequestCode.ORDERLYMQ_FETCH_LANES
            waiting[group, client] = shell.submit(code, ext, peer=peer_of(client))
            shell.settle()
    return shell, waiting


@pytest.mark.usefixtures("small")
def test_a_turn_plans_so_many_lanes_and_no_more() -> None:
    """Though one entry brings messages for all groups, and the next one ends the plans of many of them."""
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
    # Nobody has a second plan before all have one.
    served = [group for records in turns for group, _ in groupby(each.group for each in records)]
    assert len(set(served[:GROUPS])) == GROUPS
    shell.replay()


@pytest.mark.usefixtures("small")
def test_members_that_may_have_nothing_keep_none_behind_them_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More of them than one turn looks at have their hands full; the last to come has not."""
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
    """All learn that there is nothing, in turns, when their time is over."""
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
