"""The offsets that an expansion gives to the consumer groups that read its topic, and their limits."""

from typing import Any

import pytest

from orderlymq_broker.core.effects import Propose
from orderlymq_broker.processors.groups import offsets
from orderlymq_broker.processors.topics import expansionrequests
from orderlymq_broker.state.topics.expansionrecords import ExpansionSwitched
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.frame.command import RemotingCommand
from tests.broker.processors.driver import Shell
from tests.broker.processors.requests import send
from tests.broker.processors.topics.test_expansionrequests import CHANGE, change, commit, phase


def switched(shell: Shell, *groups: str, **ext: Any) -> RemotingCommand:
    """Switch a topic that groups read elsewhere."""
    fields = {"topic": "orders", "attempt": 1, "total": 8, "queues": 8, "operatorToken": 1, **ext}
    texts = {name: str(value) for name, value in fields.items()}
    body = fastjson.dumps({"groups": groups})
    return shell.call(CHANGE, {"action": "switch", **texts}, body)


def test_an_expansion_gives_no_more_offsets_than_there_may_be(
    topic: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: the limit of offsets is already checked at the fence, so that no sends wait in vain."""
    commit(topic, 0)
    count = topic.state.offsets.count
    monkeypatch.setattr(offsets, "OFFSETS_MAX", count + 11)

    refused = [change(topic, "fence", total=16, queues=16)]
    assert phase(topic) == "open"
    assert send(topic, e=0).code == 0
    commit(topic, 1)
    assert change(topic, "fence").code == 0
    refused += [
        switched(topic, "here", "there"),
        switched(topic, "there", topic="new", attempt=3, queues=12),
    ]
    assert [(each.code, "room for 11 more" in (each.remark or "")) for each in refused] == [
        (1, True)
    ] * 3
    assert switched(topic, "there").code == 0

    assert topic.state.offsets.count == count + 8
    assert not topic.core.context.entries.pending_rows


def test_one_switch_gives_only_so_many_offsets(
    topic: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: one switch stores a limited number of offsets, because a replica applies it without a pause.

    The refusal says what to do.
    """
    monkeypatch.setattr(expansionrequests, "SWITCH_OFFSETS_MAX", 8)
    commit(topic, 0)

    refused = [change(topic, "fence", total=13, queues=13)]
    assert phase(topic) == "open"
    assert change(topic, "fence").code == 0
    refused.append(switched(topic, "one", "two"))

    assert [(each.code, "add fewer queues" in (each.remark or "")) for each in refused] == [
        (1, True)
    ] * 2
    assert switched(topic, "one").code == 0


def test_a_switch_counts_the_offsets_that_it_gives() -> None:
    """Law: the offsets of a switch count as its changes, and for the limit while it is uncommitted."""
    entries = Shell().lead().core.context.entries
    groups = tuple(f"group-{number}" for number in range(100))
    proposal = Propose([ExpansionSwitched("orders", 1, 100, 100, groups)])

    assert entries.admit(proposal) is None

    assert proposal.changes_count >= 10_000
    assert entries.pending_rows == {("offsets",): 10_000}


@pytest.mark.parametrize("group", ["", "a\0b", "g" * 256])
def test_a_switch_names_groups_that_there_may_be(topic: Shell, group: str) -> None:
    """Law: a switch with an invalid group name, such as one with a zero byte, is refused."""
    change(topic, "fence")

    assert switched(topic, group).code == 1
    assert not any(type(record) is ExpansionSwitched for record in topic.proposed)
