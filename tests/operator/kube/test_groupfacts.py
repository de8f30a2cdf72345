from hypothesis import given
from hypothesis import strategies as st

from orderlymq_operator.actions import Observed, ObservedGroup, TopicConfig
from orderlymq_operator.brokeradmin import GroupMember, Lock
from orderlymq_operator.kube.groupfacts import coarse, group_conditions, group_facts, sight_of
from orderlymq_operator.models import ConsumerGroup
from tests.operator.examples import group

BILLING = group(topics=[{"name": "orders"}])
FOUR = Observed(groups={"demo-0": ObservedGroup(1, {}, {"orders": TopicConfig(4, 6, True)}, {})})
RETRIES = {"%RETRY%billing": "*"}


def _member(name: str, expression: str = "*") -> GroupMember:
    return GroupMember(name, f"{name}:1", {"orders": expression, **RETRIES})


def _reasons(owners: list[str], *members: GroupMember, of: ConsumerGroup = BILLING) -> list[str]:
    locks = [Lock("billing", "orders", queue, owner) for queue, owner in enumerate(owners) if owner]
    sight = sight_of("billing", [list(members)], {"demo-0": locks}, [0])
    found = group_conditions(of, sight, FOUR)
    return [found[kind].reason for kind in ("Balanced", "ConsistentSubscription") if kind in found]


def test_every_queue_with_one_owner_and_even_shares_is_balanced() -> None:
    """Shares may differ by one."""
    a, b, c = _member("a"), _member("b"), _member("c")

    assert _reasons(["a", "a", "b", "b"], a, b) == ["Balanced", "SameSubscription"]
    assert _reasons(["a", "a", "b", "c"], a, b, c) == ["Balanced", "SameSubscription"]


def test_queues_without_an_owner_and_idle_members_are_named() -> None:
    """A member without a queue counts, and so does a queue without a member."""
    a, b = _member("a"), _member("b")

    assert _reasons(["a", "", "b", "b"], a, b)[0] == "QueuesWithoutOwner"
    assert _reasons(["a", "a", "a", "a"], a, b)[0] == "UnevenShares"


def test_members_that_subscribe_differently_are_named() -> None:
    """They take messages from each other: the queue of one holds what the other wants."""
    a, b, odd = _member("a"), _member("b"), _member("odd", "red")
    sight = sight_of("billing", [[a, b, odd]], {}, [])

    found = group_conditions(BILLING, sight, FOUR)["ConsistentSubscription"]

    assert found.reason == "DifferentSubscriptions"
    assert found.message == "odd: orders red; a and 1 more: orders *"


def test_nobody_online_is_unknown_and_no_alarm() -> None:
    """A group that is scaled to zero is neither balanced nor not."""
    assert _reasons([]) == ["NoMembers", "NoMembers"]
    assert _reasons([], of=group(ordering="Concurrent")) == ["NoMembers"]


def test_facts_put_raft_groups_together() -> None:
    """A member that two raft groups know is one member, lag is the sum, locks of others do not count."""
    sight = sight_of(
        "billing",
        [[_member("a")], [_member("a")]],
        {
            "demo-0": [
                Lock("billing", "orders", 0, "a"),
                Lock("billing", "%RETRY%billing", 0, "a"),
                Lock("audit", "orders", 1, "x"),
            ]
        },
        [100, 23],
    )

    facts = group_facts(BILLING, sight, FOUR)

    assert (facts["members"], facts["lag"]) == (1, 120)
    assert facts["locks"] == {"held": 1, "free": 3, "contended": 0}
    assert [queue["clientId"] for queue in facts["assignment"]] == ["a", "", "", ""]


@given(st.integers(0, 10**12))
def test_lag_is_told_in_two_digits(count: int) -> None:
    """Never above the truth, never more than a tenth below it."""
    told = coarse(count)

    assert told <= count
    assert count - told <= count / 10
    assert len(str(told).rstrip("0")) <= 2
