"""Messages that clients return (36) to a group by key: what its lanes owe becomes neither a retry nor a dead letter."""

import pytest

from orderlymq_broker.state.records import GroupSet, TopicSet
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.names import dlq_topic, retry_topic
from tests.broker.processors.driver import Shell
from tests.broker.processors.lanes.member import GROUP, TOPIC, caller_of, lead, produce
from tests.broker.processors.requests import create, properties, send


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("has_letters", [False, True])
def test_what_lanes_owe_is_not_handed_back(*, dead: bool, has_letters: bool) -> None:
    """Law: a message that a lane owes cannot be returned, because only consumers by queue get retries."""
    shell = lead()
    produce(shell, "x")
    if has_letters:
        create(shell, TopicSet(dlq_topic(GROUP), 1, 1))
    ext = {"group": GROUP, "offset": "0", "delayLevel": "-1" if dead else "1"}
    end = shell.state.physical_end

    answers = [
        shell.call(36, ext, caller=caller_of("a")),
        send(shell, retry_topic(GROUP), b"x", j=16 if dead else 1, l=16),
    ]

    assert [each.code for each in answers] == 2 * [ResponseCode.NO_PERMISSION]
    assert shell.state.physical_end == end
    assert (dlq_topic(GROUP) in shell.state.topics.by_name) is has_letters


def test_a_dead_letter_of_before_is_confirmed_once_more() -> None:
    """Law: a repeated return of a stored dead letter is confirmed, even if the group has changed to keys since."""
    shell = Shell().lead()
    create(shell, TopicSet(TOPIC, 1, 1), GroupSet(GROUP))
    send(shell, TOPIC, props=properties(UNIQ_KEY="U1"), e=0)
    ext = {"group": GROUP, "offset": "0", "delayLevel": "-1"}
    first = shell.call(36, ext, caller=caller_of("a"))
    create(shell, GroupSet(GROUP, concurrency="Key"))
    end = shell.state.physical_end

    again = shell.call(36, ext, caller=caller_of("a"))

    assert (first.code, again.code, shell.state.physical_end) == (0, 0, end)
