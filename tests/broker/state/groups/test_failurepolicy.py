"""One policy for messages that have failed too often, for consumer groups by queue and by key."""

import pytest

from orderlymq_broker.state.groups.failurepolicy import (
    POLICIES,
    DeadPolicy,
    after_death,
    backoff_ms,
    dead_policy,
    is_dead,
)
from tests.broker.processors.groups.test_parkedkeys import ask, lock
from tests.broker.processors.groups.test_parkedkeys import lead as by_queue
from tests.broker.processors.lanes.member import Member, produce
from tests.broker.processors.lanes.member import lead as by_key

# The answer to a member of a group by queue, and to one of a group by key in the same case.
_SAID = {"continue": "dead", "held": "held", "stop": "parked"}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("key", ["", "k"])
def test_both_modes_do_the_same_with_a_dead_message(policy: str, key: str) -> None:
    """Law: a dead message has the same effect in both modes; the mode only decides who gets which key."""
    queue, lanes = by_queue(policy), by_key(on_dead_letter=policy, retry_max_times=1)
    lock(queue, "one")
    produce(lanes, key)
    member = Member(lanes)

    verdict = ask(queue, key=key).ext["verdict"]

    assert member.say("retry", *member.fetch()).verdict == _SAID[verdict]


def test_a_held_key_stays_held_whatever_the_policy_is_by_now() -> None:
    """Law: a held key stays held under any later policy; only an administrator releases it."""
    for policy in DeadPolicy:
        assert after_death(policy, "k", is_held=True) == DeadPolicy.HOLD


def test_a_negative_maximum_is_none() -> None:
    """Law: a message is dead after as many tries as the maximum; a negative maximum means no limit."""
    assert [is_dead(tries, 2) for tries in (1, 2, 3)] == [False, True, True]
    assert not is_dead(2**31, -1)
    assert is_dead(0, 0)


def test_each_failure_doubles_the_pause_up_to_the_longest_of_the_group() -> None:
    """Law: each failure doubles the pause, from the first pause up to the group's longest; further tries do not change it."""
    pauses = [backoff_ms(1_000, 300_000, tries) for tries in (1, 2, 3, 9, 10, 20, 21, 22, 1_000)]

    assert pauses == [1_000, 2_000, 4_000, 256_000, *[300_000] * 5]


def test_a_name_that_no_policy_has_lets_later_messages_go_on() -> None:
    """Law: without a policy, as in consumer groups of older versions, later messages go on, as in RocketMQ."""
    assert dead_policy("") is DeadPolicy.CONTINUE
    assert [dead_policy(name) for name in POLICIES] == list(DeadPolicy)


@pytest.mark.parametrize("key", ["", None, "k"])
def test_a_message_without_a_key_holds_nothing(key: str | None) -> None:
    """Law: a dead message without a key holds nothing, so HoldKey acts like Continue."""
    follows = [after_death(policy, key) for policy in DeadPolicy]

    held = DeadPolicy.HOLD if key else DeadPolicy.CONTINUE
    assert follows == [DeadPolicy.CONTINUE, held, DeadPolicy.STOP]
