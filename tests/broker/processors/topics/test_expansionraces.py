"""A change of a topic and a step of its expansion are never uncommitted at the same time."""

from typing import Any

import pytest

from orderlymq_protocol.codes import RequestCode
from tests.broker.processors.driver import Shell
from tests.broker.processors.requests import (
    send,
)
from tests.broker.processors.topics.test_expansionrequests import (
    CHANGE,
    change,
    phase,
)


def submit_change(shell: Shell, action: str, **ext: Any) -> int:
    """Send a step without waiting until it is applied."""
    fields = {"topic": "orders", "attempt": 1, "total": 8, "queues": 8, "limitMillis": 10_000}
    fields |= {"settleMillis": 5_000, "operatorToken": 1, **ext}
    return shell.submit(
        CHANGE, {"action": action, **{name: str(value) for name, value in fields.items()}}
    )


def submit_topic(shell: Shell, read: int, write: int) -> int:
    """Send a change of the topic that keeps the numbers of queues which an administrator knows."""
    fields = {
        "topic": "orders",
        "defaultTopic": "TBW102",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
    }
    fields |= {"readQueueNums": str(read), "writeQueueNums": str(write), "topicSysFlag": "0"}
    return shell.submit(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        {**fields, "order": "true", "attributes": "+duplicate.window=true"},
    )


def said(shell: Shell, opaque: int) -> tuple[int, str | None]:
    """Return code and remark of the answer."""
    reply = shell.reply_to(opaque)
    assert reply is not None
    return reply.code, reply.remark


STEPS = ("fence", "switch", "publish")


@pytest.mark.parametrize("step", [*STEPS, "abort"])
@pytest.mark.parametrize("topic_first", [True, False])
def test_a_change_of_a_topic_is_not_judged_beside_a_step_of_its_expansion(
    topic: Shell,
    step: str,
    topic_first: bool,
) -> None:
    """Law: while a step is uncommitted, a change of the topic is refused; it would undo the step."""
    before = STEPS[: STEPS.index(step)] if step in STEPS else ("fence",)
    for each in before:
        assert change(topic, each).code == 0
    present = topic.state.topics.by_name["orders"].config
    counts = (present.read_queues, present.write_queues)

    if topic_first:
        taken, refused = submit_topic(topic, *counts), submit_change(topic, step)
    else:
        taken, refused = submit_change(topic, step), submit_topic(topic, *counts)
    topic.settle()

    assert said(topic, taken)[0] == 0
    assert said(topic, refused) == (1, "topic[orders] is being changed; send it again")
    if topic_first:
        assert change(topic, step).code == 0
    now = topic.state.topics.by_name["orders"].config
    assert (now.read_queues, now.write_queues) == {
        "fence": (8, 4),
        "switch": (8, 8),
        "publish": (8, 8),
        "abort": (4, 4),
    }[step]
    again = submit_topic(topic, now.read_queues, now.write_queues)
    topic.settle()
    assert said(topic, again)[0] == 0, "nothing is under way any more"


def test_a_change_of_a_topic_is_not_judged_beside_the_leaders_own_abort(topic: Shell) -> None:
    """Law: this holds for the leader's own abort too."""
    send(topic, e=3)
    change(topic, "fence", limitMillis=3_000)
    topic.run(topic.core.tick(topic.now))
    topic.settle()
    topic.wall_ms += 3_000
    topic.run(topic.core.tick(topic.now))

    refused = submit_topic(topic, 8, 4)
    topic.settle()

    assert said(topic, refused)[0] == 1
    assert topic.state.topics.by_name["orders"].config.read_queues == 4
    assert phase(topic) == "open"


def test_a_step_of_a_lost_leadership_ends_nothing_of_the_next_one(topic: Shell) -> None:
    """Law: a late loss of a former leadership's step does not release the present one's."""
    submit_topic(topic, 4, 4)
    submit_change(topic, "fence", topic="others")
    former, topic.pending = topic.pending, []
    topic.run(topic.core.become_follower(leader_known=True))
    topic.core.proposals_lost()
    topic.lead()
    submit_topic(topic, 4, 4)
    for proposal in former:
        if proposal.lost is not None:
            topic.run(proposal.lost(None))

    second = submit_topic(topic, 4, 4)

    assert said(topic, second)[0] == 1
