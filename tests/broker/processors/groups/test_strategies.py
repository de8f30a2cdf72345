"""Assignment by the broker: the same division that RocketMQ's clients compute themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_broker.processors.groups.strategies import (
    AssignmentError,
    AssignmentRequest,
    assign,
    assignment_body,
)
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.messagequeue import MessageQueue

QUEUES = [MessageQueue("orders", group, number) for group in ("b", "a") for number in range(4)]


def asked(
    client: str = "c1", strategy: str = "AVG", model: str = "CLUSTERING"
) -> AssignmentRequest:
    return AssignmentRequest("orders", "billing", client, strategy, model)


def numbers(queues: list[MessageQueue] | None) -> list[str]:
    return [f"{queue.broker_name}{queue.queue_id}" for queue in queues or ()]


def test_shares_are_contiguous_and_the_first_members_get_one_more() -> None:
    """Law: AVG gives contiguous shares; the first members get one queue more (eight over three: 3, 3, 2)."""
    members = {"c2": 0, "c3": 0, "c1": 0}

    assert [numbers(assign(asked(client), QUEUES, members)) for client in ("c1", "c2", "c3")] == [
        ["a0", "a1", "a2"],
        ["a3", "b0", "b1"],
        ["b2", "b3"],
    ]


def test_by_circle_deals_the_queues_out() -> None:
    """Law: AVG_BY_CIRCLE deals the queues out in turn."""
    got = assign(asked("c2", "AVG_BY_CIRCLE"), QUEUES, {"c1": 0, "c2": 0, "c3": 0})

    assert numbers(got) == ["a1", "b0", "b3"]


@given(st.integers(0, 20), st.integers(1, 9), st.sampled_from(["AVG", "AVG_BY_CIRCLE"]))
def test_every_queue_has_one_member_and_shares_differ_by_one(
    queues: int, members: int, strategy: str
) -> None:
    """Law: each queue has one member, and shares differ by at most one."""
    all_queues = [MessageQueue("orders", "a", number) for number in range(queues)]
    names = {f"c{number}": 0 for number in range(members)}

    shares = [assign(asked(name, strategy), all_queues, names) or [] for name in names]

    assert sorted(queue for share in shares for queue in share) == all_queues
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_broadcasting_members_get_every_queue() -> None:
    """Law: a broadcasting member gets every queue, known or not."""
    assert assign(asked(model="BROADCASTING"), QUEUES, {}) == sorted(QUEUES)


def test_who_is_no_member_yet_gets_no_result() -> None:
    """Law: a client that is no member gets no result (not an empty share) and asks again."""
    for decided in (None, {("a", 0): "c1"}):
        assert assign(asked("c9"), QUEUES, {"c1": 0}, decided) is None
    assert assign(asked("c2"), QUEUES[:1], {"c1": 0, "c2": 0}) == []


def test_an_unknown_strategy_is_refused_with_those_that_are_known() -> None:
    """Law: an unknown strategy is refused with the known ones; the client keeps its queues."""
    with pytest.raises(AssignmentError, match="AVG, AVG_BY_CIRCLE"):
        assign(asked(strategy="CONSISTENT_HASH"), QUEUES, {"c1": 0})


def test_the_body_is_that_of_rocketmq_5() -> None:
    """Law: the body has RocketMQ 5's form, with mode PULL for each queue."""
    assert fastjson.loads(assignment_body([MessageQueue("orders", "a", 1)])) == {
        "messageQueueAssignments": [
            {
                "attachments": None,
                "messageQueue": {"brokerName": "a", "queueId": 1, "topic": "orders"},
                "mode": "PULL",
            }
        ]
    }
