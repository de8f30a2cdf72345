"""One policy decides about a message that has failed too often, for groups by queue and by key."""

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

# The answer to a member by queue, and to one by key in the same case.
_SAID = {"continue": "dead", "held": "held", "stop": "parked"}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("key", ["", "k"])
def test_both_modes_do_the_same_with_a_dead_message(policy: str, key: str) -> None:
    """Law: the mode of a group decides who has which key, and not what a failure costs."""
    queue, lanes = by_queue(policy), by_key(on_dead_letter=policy, retry_max_times=1)
    lock(queue, "one")
    produce(lanes, key)
    member = Member(lanes)

    verdict = ask(queue, key=key).ext["verdict"]

    assert member.say("retry", *member.fetch()).verdict == _SAID[verdict]


def test_a_held_key_stays_held_whatever_the_policy_is_by_now() -> None:
    """Law: only an administrator lets it go."""
    for policy in DeadPolicy:
        assert after_death(policy, "k", is_held=True) == DeadPolicy.HOLD


def test_a_negative_maximum_is_none() -> None:
    """A message is dead with as many tries as the maximum, not before."""
    assert [is_dead(tries, 2) for tries in (1, 2, 3)] == [False, True, True]
    assert not is_dead(2**31, -1)
    assert is_dead(0, 0)


def test_each_failure_doubles_the_pause_up_to_the_longest_of_the_group() -> None:
    """Law: from the first pause on, and no number of tries makes it longer, or shorter again."""
    pauses = [backoff_ms(1_000, 300_000, tries) for tries in (1, 2, 3, 9, 10, 20, 21, 22, 1_000)]

    assert pauses == [1_000, 2_000, 4_000, 256_000, *[300_000] * 5]


def test_a_name_that_no_policy_has_lets_later_messages_go_on() -> None:
    """Law: groups of before policies have none, and behave as RocketMQ's."""
    assert dead_policy("") is DeadPolicy.CONTINUE
    assert [dead_policy(name) for name in POLICIES] == list(DeadPolicy)


@pytest.mark.parametrize("key", ["", None, "k"])
def test_a_message_without_a_key_holds_nothing(key: str | None) -> None:
    """Law: its dead letter goes; what its group does else is what it says."""
    follows = [after_death(policy, key) for policy in DeadPolicy]

    held = DeadPolicy.HOLD if key else DeadPolicy.CONTINUE
    assert follows == [DeadPolicy.CONTINUE, held, DeadPolicy.STOP]
