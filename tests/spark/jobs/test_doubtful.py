"""Dead letters without a matching message in their topic, which a client may have made up."""

from dataclasses import replace
from typing import Any

import pytest

from orderlymq.consumer.group.requests import copy_to_retry
from orderlymq_protocol.codes import RequestCode
from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.jobs import deadletters
from orderlymq_spark.jobs.redrive import make_plan
from orderlymq_spark.options import Connect
from tests.spark.jobs.test_redrive import letter, make_dead_letters
from tests.spark.topics import Topics


@pytest.mark.parametrize(
    ("how", "decided"), [("hold-key", "hold"), ("skip", "skip"), ("send", "send")]
)
def test_a_letter_that_its_topic_does_not_know_is_sent_when_that_is_said(
    how: Any, decided: str
) -> None:
    """Law: a redrive must not lend its own rights to clients that make up letters, unless the user names a target."""
    made_up, known = letter(0, "", 5), letter(1, "", 6)
    made_up.is_doubtful = True
    for each in (made_up, known):
        del each.message.properties["__SHARDINGKEY"]

    def decisions(target: str | None) -> list[str]:
        plan = make_plan(
            *("p", "g", [made_up, known]),
            target=target,
            on_overtaken="send",
            on_doubtful=how,
            redrives_max=3,
        )
        return [each.decision for each in plan.items]

    assert decisions(None) == [decided, "send"]
    assert decisions("trial") == ["send", "send"]


@pytest.mark.cluster
@pytest.mark.timeout(120)
def test_a_letter_that_says_something_else_than_its_origin_is_doubtful(topics: Topics) -> None:
    """Law: every reader of a message knows its id, so the id alone does not make a letter a copy of it."""
    topic = topics.make(queues=1)
    group = f"made-up-{topic}"
    topics.numbered(topic, 1, keys=1)
    make_dead_letters(topics, topic, group, {"key-0"})
    access = access_to(Connect(topics.bootstrap))
    (message,) = next(iter(topics.read(topic).values()))
    forged = replace(message, body=b"mine")
    copy = copy_to_retry(forged, group, times=1, maximum=1, delay_level=0, born_ms=1)
    access.queues([topic])
    address = access.instance.routes.address("g")
    assert address is not None
    access.wait(lambda: access.instance.call(address, RequestCode(copy.code), copy.ext, copy.body))

    letters = deadletters.dead_letters(access, group)

    assert [(each.is_doubtful, each.origin is None) for each in letters] == [
        (False, False),
        (True, True),
    ]
