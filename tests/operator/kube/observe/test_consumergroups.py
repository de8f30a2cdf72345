from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_operator.brokers.answers import GroupMember, Lock
from orderlymq_operator.kube.observe.consumergroups import (
    coarse,
    group_conditions,
    group_facts,
    observe_consumer_group,
)
from orderlymq_operator.kube.reconcile.status import status_object
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.plan.actions import ConditionReport, Observed, ObservedGroup, TopicConfig
from orderlymq_operator.resources.kinds import ConsumerGroup
from orderlymq_protocol.body.lanes import QueueLanes
from tests.operator.examples import group
from tests.operator.kube.samples import item

BILLING = group(topics=[{"name": "orders"}])
FOUR = Observed(groups={"demo-0": ObservedGroup(1, {}, {"orders": TopicConfig(4, 6, True)}, {})})
QUIET = QueueLanes("orders", "demo-1", 0, 9, 6, 3, 0, 3, 0, 0)
RETRIES = {"%RETRY%billing": "*"}
SYNCED = ConditionReport("True", "Synced", "effective in every raft group")


def _member(name: str, expression: str = "*") -> GroupMember:
    return GroupMember(name, f"{name}:1", {"orders": expression, **RETRIES})


def _reasons(owners: list[str], *members: GroupMember, of: ConsumerGroup = BILLING) -> list[str]:
    locks = [Lock("billing", "orders", queue, owner) for queue, owner in enumerate(owners) if owner]
    seen = observe_consumer_group({"demo-0": list(members)}, {"demo-0": locks}, [0])
    found = group_conditions(of, seen, FOUR)
    return [found[kind].reason for kind in ("Balanced", "ConsistentSubscription") if kind in found]


def test_every_queue_with_one_owner_and_even_shares_is_balanced() -> None:
    """Law: queues are balanced if each has one owner and shares differ by at most one."""
    a, b, c = _member("a"), _member("b"), _member("c")

    assert _reasons(["a", "a", "b", "b"], a, b) == ["Balanced", "SameSubscription"]
    assert _reasons(["a", "a", "b", "c"], a, b, c) == ["Balanced", "SameSubscription"]


def test_queues_without_an_owner_and_idle_members_are_named() -> None:
    """Law: queues without owners and uneven shares are named; a member without a queue counts."""
    a, b = _member("a"), _member("b")

    assert _reasons(["a", "", "b", "b"], a, b)[0] == "QueuesWithoutOwner"
    assert _reasons(["a", "a", "a", "a"], a, b)[0] == "UnevenShares"


def test_more_members_than_queues_are_balanced_and_the_idle_ones_counted() -> None:
    """Law: more members than queues are balanced; the idle members are counted."""
    five = [_member(name) for name in "abcde"]

    assert _reasons(["a", "b", "c", "d"], *five)[0] == "MembersIdle"


def test_a_queue_that_a_member_was_refused_is_contended_and_both_are_named() -> None:
    """Law: a queue that one member holds and another one wants is contended, and both are named; non-members do not count."""
    a, b = _member("a"), _member("b")
    locks = [
        Lock("billing", "orders", 0, "a", wanted_by="b"),
        Lock("billing", "orders", 1, "a", wanted_by="gone"),
        *(Lock("billing", "orders", number, "b") for number in (2, 3)),
    ]
    seen = observe_consumer_group({"demo-0": [a, b]}, {"demo-0": locks}, [0])

    found = group_conditions(BILLING, seen, FOUR)["Balanced"]

    assert (found.status, found.reason) == ("False", "QueuesContended")
    assert found.message == "orders@demo-0-0 of a, wanted by b"
    assert group_facts(BILLING, seen, FOUR)["locks"] == {"held": 4, "free": 0, "contended": 1}


def test_raft_groups_that_know_other_members_are_named() -> None:
    """Law: broker groups that know different members are named, because those would assign queues differently."""
    a, b = _member("a"), _member("b")
    locks = [Lock("billing", "orders", number, "ab"[number // 2]) for number in range(4)]
    seen = observe_consumer_group({"demo-0": [a, b], "demo-1": [a]}, {"demo-0": locks}, [0, 0])
    empty = {"orders": TopicConfig(0, 6, True)}
    both = Observed(groups={**FOUR.groups, "demo-1": ObservedGroup(1, {}, empty, {})})

    found = group_conditions(BILLING, seen, both)["Balanced"]

    assert (found.status, found.reason) == ("False", "MembersDiffer")
    assert found.message == "other members are known to demo-1"


def test_a_raft_group_without_a_topic_of_the_group_need_not_know_its_members() -> None:
    """Law: a broker group without a topic of the group need not know its members."""
    a, b = _member("a"), _member("b")
    locks = [Lock("billing", "orders", number, "ab"[number // 2]) for number in range(4)]
    seen = observe_consumer_group({"demo-0": [a, b], "demo-1": []}, {"demo-0": locks}, [0, 0])
    other = ObservedGroup(1, {}, {"fees": TopicConfig(4, 6, True)}, {})

    found = group_conditions(BILLING, seen, Observed(groups={**FOUR.groups, "demo-1": other}))

    assert found["Balanced"].reason == "Balanced"


def test_members_that_subscribe_differently_are_named() -> None:
    """Law: members with different subscriptions are named, because they miss each other's messages."""
    a, b, odd = _member("a"), _member("b"), _member("odd", "red")
    seen = observe_consumer_group({"demo-0": [a, b, odd]}, {}, [])

    found = group_conditions(BILLING, seen, FOUR)["ConsistentSubscription"]

    assert found.reason == "DifferentSubscriptions"
    assert found.message == "odd: orders red; a and 1 more: orders *"


def test_nobody_online_is_unknown_and_no_alarm() -> None:
    """Law: a group without members is Unknown and no alarm."""
    assert _reasons([]) == ["NoMembers", "NoMembers"]
    assert _reasons([], of=group(ordering="Concurrent")) == ["NoMembers"]


def test_a_group_by_key_is_reported_by_its_lanes() -> None:
    """Law: a group by key is reported by its lanes, summed over broker groups; no queue lacks an owner."""
    keyed = group(topics=[{"name": "orders"}], concurrency="Key")
    lanes = [[QueueLanes("orders", "demo-0", 0, 9, 2, 7, 1, 0, 2, 1, 1)], [QUIET]]
    seen = observe_consumer_group({"demo-0": [_member("a")]}, {}, [9], lanes=lanes)

    facts = group_facts(keyed, seen, FOUR)

    assert _reasons([], _member("a"), of=keyed) == ["SameSubscription"]
    assert "LanesFlowing" not in group_conditions(BILLING, seen, FOUR)
    assert _reasons([], of=keyed) == ["NoMembers"]
    assert facts["assignment"] == []
    assert "locks" not in facts
    assert facts["lanes"] == {"inHand": 1, "ready": 3, "parked": 2, "held": 1, "owed": 10}
    assert "lanes" not in group_facts(BILLING, seen, FOUR)


@pytest.mark.parametrize(
    ("before", "after"), [("Queue", "Key"), ("Key", "Queue")], ids=["to lanes", "to locks"]
)
def test_a_group_that_consumes_otherwise_now_says_nothing_of_before(
    before: str, after: str
) -> None:
    """Law: when a group changes its mode, the other mode's condition is removed."""
    told = {"Queue": "Balanced", "Key": "LanesFlowing"}
    seen = observe_consumer_group({"demo-0": [_member("a")]}, {}, [9])

    def status(concurrency: str, former: Json) -> Json:
        """Return the status that the operator applies to an object with the status *former*."""
        made = group(topics=[{"name": "orders"}], concurrency=concurrency)
        reports = {"Ready": SYNCED, **group_conditions(made, seen, FOUR)}
        found = status_object(
            item("ConsumerGroup", "billing", status=former),
            reports,
            group_facts(made, seen, FOUR),
            "2026-01-01T10:00:00Z",
        )
        assert found is not None, "the former status stays"
        written: Json = found["status"]
        return written

    first = status(before, {})
    second = status(after, first)

    def kinds(written: Json) -> set[str]:
        return {each["type"] for each in written["conditions"]}

    assert kinds(first) == {"Ready", "ConsistentSubscription", told[before]}
    assert kinds(second) == {"Ready", "ConsistentSubscription", told[after]}


@pytest.mark.parametrize(
    ("queue", "reason", "text"),
    [
        (QUIET, "LanesFlowing", "3 ready, 0 being processed, 0 parked"),
        (replace(QUIET, parked=2), "LanesFlowing", "2 parked"),
        (replace(QUIET, limited="too many"), "LanesLimited", "orders@demo-1-0: too many"),
        (replace(QUIET, held=1, limited="too many"), "LanesHeld", "1 lane waits"),
        (replace(QUIET, held=2), "LanesHeld", "2 lanes wait for `orderlymq group release billing`"),
    ],
)
def test_lanes_that_do_not_go_on_by_themselves_are_reported_with_what_to_do(
    queue: QueueLanes, reason: str, text: str
) -> None:
    """Law: lanes that need a person are reported with what to do, also without members; parked lanes go on by themselves."""
    seen = observe_consumer_group({}, {}, [], lanes=[[queue]])

    found = group_conditions(group(concurrency="Key"), seen, FOUR)["LanesFlowing"]

    assert (found.status, found.reason) == (str(reason == "LanesFlowing"), reason)
    assert text in found.message


def test_facts_put_raft_groups_together() -> None:
    """Law: a member in two broker groups is one member, lag is summed, and retry topics' locks do not count."""
    seen = observe_consumer_group(
        {"demo-0": [_member("a")], "demo-1": [_member("a")]},
        {
            "demo-0": [
                Lock("billing", "orders", 0, "a"),
                Lock("billing", "%RETRY%billing", 0, "a"),
            ]
        },
        [100, 23],
        {"a:1": "west"}.__getitem__,
    )

    facts = group_facts(BILLING, seen, FOUR)

    assert (facts["members"], facts["lag"]) == (1, 120)
    assert facts["memberList"] == [{"clientId": "a", "address": "a:1", "zone": "west", "queues": 1}]
    assert facts["locks"] == {"held": 1, "free": 3, "contended": 0}
    assert [queue["clientId"] for queue in facts["assignment"]] == ["a", "", "", ""]


@given(st.integers(0, 10**12))
def test_lag_is_reported_in_two_digits(count: int) -> None:
    """Law: lag is shown with two digits, never above the real value and at most a tenth below."""
    told = coarse(count)

    assert told <= count
    assert count - told <= count / 10
    assert len(str(told).rstrip("0")) <= 2
