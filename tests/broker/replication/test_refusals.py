"""A proposal that cannot be stored is refused alone and ends no replica."""

from collections.abc import Sequence

import pytest

from orderlymq_broker.core.effects import Effect, Now, Propose, Refusal
from orderlymq_broker.core.entrybuilder import Built
from orderlymq_broker.core.messagedraft import MessageDraft, Properties
from orderlymq_broker.state.records import Append as MessageAppended
from orderlymq_broker.state.records import MemberSeen, Outcome, TopicSet
from orderlymq_protocol.message.record import pack_host
from orderlymq_raft import (
    Append,
    Index,
    ProposalRefused,
    ProtocolViolation,
    Term,
)
from tests.broker.replication.simulation import Proposal, SimulatedGroup, others, outcomes, propose


def test_what_cannot_be_stored_is_refused_alone(
    group: SimulatedGroup, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: only the bad proposal is refused; others are stored, the leader stays, and the log names the reason."""
    leader = group.elect()
    told: list[Refusal | None] = []

    def lost(refusal: Refusal | None) -> list[Effect]:
        told.append(refusal)
        return []

    bad = Propose([MemberSeen("g", "c", "a", version=10**30)], lost=lost)
    before, after = Proposal("before"), Proposal("after")
    leader.loop.submit([before.effect, bad, after.effect])
    group.run()

    assert outcomes([before, after]) == ["applied"] * 2
    assert [refusal.code for refusal in told if refusal is not None] == [1]
    assert leader.loop.serving
    assert leader.core.context.counters["proposals_refused"] == 1
    assert "a proposal of MemberSeen is refused" in caplog.text


def test_who_is_refused_again_and_again_does_not_fill_the_log(
    group: SimulatedGroup, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: repeated refusals write one log line a second, which counts the others."""
    leader = group.elect()

    for _ in range(2):
        for _ in range(50):
            leader.loop.submit([Propose([MemberSeen("g", "c", "a", version=10**30)])])
        group.run()
        group.pass_time(1.1)

    lines = [text for text in caplog.messages if "is refused" in text]
    assert len(lines) == 2
    assert lines[1].endswith("; 49 other proposals were refused, too")
    assert leader.core.context.counters["proposals_refused"] == 100


@pytest.mark.interpreted
def test_an_entry_that_cannot_be_built_ends_nothing(
    group: SimulatedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: if an entry cannot be built, its proposals are refused, and the next entry follows the last one in the log."""
    leader = group.elect()
    entries = leader.core.context.entries

    def broken(*_: object) -> Built:
        raise RuntimeError("planted")

    with monkeypatch.context() as planted:
        planted.setattr(entries, "build", broken)
        lost = propose(leader, "a", "b")
        group.run()
    stored = propose(leader, "c")
    group.run()

    assert outcomes([*lost, *stored]) == ["lost", "lost", "applied"]
    assert entries.uncommitted == 0


@pytest.mark.interpreted
def test_sends_keep_their_order_when_the_log_refuses_an_entry(
    group: SimulatedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: when the log refuses an entry, its messages keep their order before later ones, with offsets without a gap."""
    leader = group.elect()
    leader.loop.submit([Propose([TopicSet("orders", 1, 1)])])
    group.run()
    stored: list[tuple[bytes, int]] = []

    def submit(body: bytes) -> None:
        topic = leader.state.topics.by_name["orders"]
        draft = MessageDraft(topic, 0, body, Properties(""), 0, 0, 1, pack_host("192.0.2.7", 4711))

        def applied(outcomes: Sequence[Outcome], _: Now) -> list[Effect]:
            (record,) = outcomes
            assert isinstance(record, MessageAppended)
            stored.append((body, record.queue_offset))
            return []

        leader.loop.submit([Propose([draft], applied)])

    def full(_: bytes) -> tuple[Term, Index]:
        raise ProposalRefused("planted")

    with monkeypatch.context() as planted:
        planted.setattr(leader.node, "propose", full)
        submit(b"1")
        submit(b"2")
        group.run()
    submit(b"3")
    group.run()

    assert stored == [(b"1", 0), (b"2", 1), (b"3", 2)]


def test_a_message_that_breaks_the_rules_ends_no_process(group: SimulatedGroup) -> None:
    """Law: if raft refuses a peer's message, messages before it count and the leader goes on."""
    leader = group.elect()
    other = others(group, leader)[0]
    lie = Append(other.id, leader.id, leader.node.term, Index(0), Term(0), Index(0))

    with pytest.raises(ProtocolViolation):
        leader.loop.receive([lie])
    proposals = propose(leader, "a")
    group.run()

    assert outcomes(proposals) == ["applied"]
    assert not [event for event in leader.events if event.startswith("failed")]
