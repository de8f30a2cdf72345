"""How long a lane waits before the next try of its message: its group's settings decide."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_broker.state.records import GroupSet
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.lanes import DELAY_MS_MAX, RETRY_PAUSE_MAX_MS, RETRY_PAUSE_MS
from tests.broker.processors.driver import Shell
from tests.broker.processors.lanes.member import GROUP, Member, change, lead, produce

DEFAULT = GroupSet(GROUP)
PAUSES = st.integers(1, DELAY_MS_MAX)


@given(PAUSES, PAUSES)
def test_a_pause_begins_as_the_group_says_doubles_and_has_an_end(one: int, other: int) -> None:
    """Law: pauses begin at the group's first one, double, and end at its longest, for any number of tries."""
    first, most = sorted((one, other))
    group = GroupSet(GROUP, retry_pause_ms=first, retry_pause_max_ms=most)
    pauses = [group.pause_ms(tries) for tries in range(1, 40)]

    assert pauses[0] == first
    assert pauses[-1] == group.pause_ms(2**31) == most
    assert all(later == min(most, 2 * earlier) for earlier, later in pairwise(pauses))


def test_a_group_that_says_nothing_waits_a_second_and_five_minutes_at_most() -> None:
    assert (DEFAULT.retry_pause_ms, DEFAULT.retry_pause_max_ms) == (
        RETRY_PAUSE_MS,
        RETRY_PAUSE_MAX_MS,
    )
    assert [DEFAULT.pause_ms(tries) for tries in (1, 2, 3)] == [1_000, 2_000, 4_000]
    assert DEFAULT.pause_ms(10) == DEFAULT.pause_ms(2**31) == 300_000


def pauses_of_failures(shell: Shell) -> list[int]:
    """Let the first message fail three times; return the pauses."""
    a = Member(shell)
    found = []
    for _ in range(3):
        (lane,) = a.fetch()
        pause_ms = a.say("retry", lane).due_millis - shell.wall_ms
        shell.pass_time(pause_ms + 100)
        found.append(pause_ms)
    return found


def pauses_of_deaths(shell: Shell) -> list[int]:
    """Let the lease of the first message end four times; return the pauses from the second time on."""
    a = Member(shell)
    found = []
    for number in range(4):
        assert len(a.fetch(leaseMillis=1_000)) == 1
        shell.pass_time(1_100)
        (lane,) = [lane for queue in shell.state.lanes.all() for lane in queue.lanes.values()]
        if number:
            found.append(lane.due_ms - lane.since_ms)
            shell.pass_time(lane.due_ms - shell.wall_ms + 100)
    return found


@pytest.mark.parametrize("pauses", [pauses_of_failures, pauses_of_deaths])
def test_a_message_waits_as_its_group_says(pauses: object) -> None:
    """Law: the group's pauses also hold for attempts that end without a report, on every replica."""
    shell = lead(retry_max_times=-1, retry_pause_ms=200, retry_pause_max_ms=500)
    produce(shell, "x")

    found = pauses_of_failures(shell) if pauses is pauses_of_failures else pauses_of_deaths(shell)

    assert found == [200, 400, 500]
    shell.replay()


def test_an_administrator_says_how_long_messages_wait() -> None:
    """Law: an administrator's change of the pauses counts from the next failure on;
    tools that do not know them leave them.
    """
    shell = lead()
    assert change(shell, retryPauseMillis=250, retryPauseMaxMillis=900).code == 0
    tool = fastjson.dumps({"groupName": GROUP, "retryMaxTimes": -1})
    assert shell.call(200, {}, tool).code == 0
    produce(shell, "x")

    assert pauses_of_failures(shell) == [250, 500, 900]
    shown = fastjson.loads(shell.call(352, {"group": GROUP}).body)
    assert (shown["retryPauseMillis"], shown["retryPauseMaxMillis"]) == (250, 900)


@pytest.mark.parametrize(("pause", "most"), [(0, 5), (-1, 5), (6, 5), (1, DELAY_MS_MAX + 1)])
def test_pauses_that_mean_nothing_are_refused(pause: int, most: int) -> None:
    """Law: a pause of 0, or a first one longer than the longest, is refused."""
    shell = lead()

    reply = change(shell, retryPauseMillis=pause, retryPauseMaxMillis=most)

    assert reply.code == 1
    assert "retryPauseMillis" in (reply.remark or "")
    assert shell.state.groups.by_name[GROUP].retry_pause_ms == RETRY_PAUSE_MS


def test_one_pause_that_is_changed_alone_is_judged_with_the_other() -> None:
    """Law: a change of one pause is checked together with the other's present value."""
    shell = lead(retry_pause_ms=2_000, retry_pause_max_ms=4_000)

    assert change(shell, retryPauseMaxMillis=1_000).code == 1
    assert change(shell, retryPauseMillis=4_000).code == 0
