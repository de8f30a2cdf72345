from dataclasses import fields
from typing import Any, get_args

import pytest

from orderlymq_operator.plan.actions import (
    Action,
    ConditionReport,
    CreateTopic,
    StartReplica,
    Subject,
    TopicConfig,
)
from orderlymq_operator.plan.descriptions import describe


@pytest.mark.parametrize("kind", get_args(Action), ids=lambda kind: kind.__name__)
def test_every_action_has_a_phrase(kind: Any) -> None:
    """Law: each action has a description that can be shown."""
    parts = {
        "config": TopicConfig(3, 6, order=True),
        "subject": Subject("Topic", "orders"),
        "condition": ConditionReport("True", "Synced", "effective in every raft group"),
    }
    action = kind(**{each.name: parts.get(each.name, "some") for each in fields(kind)})

    assert describe(action)


def test_phrases_say_what_an_action_has() -> None:
    """Law: a description has the action's numbers and names; braces in a name have no meaning."""
    assert (
        describe(StartReplica("demo-0", 4, join=True)) == "start replica demo-0-4 as a new member"
    )
    assert describe(StartReplica("demo-0", 1, join=False)) == "start replica demo-0-1"
    made = CreateTopic("{0}", "demo-0", TopicConfig(1, 6, order=True))
    assert describe(made) == "create topic {0} with 1 queue on demo-0"
