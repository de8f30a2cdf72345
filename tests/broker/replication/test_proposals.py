"""A proposal is answered when its outcome is certain, and not before."""

from collections.abc import Callable

from orderlymq_broker.core.effects import Effect, Propose, Refusal
from orderlymq_broker.core.messagedraft import MessageDraft, Properties
from orderlymq_broker.replication.proposals import Committed, PendingProposals, WaitingProposals
from orderlymq_broker.state.records import TopicSet
from orderlymq_protocol.message.record import pack_host
from tests.broker.replication.simulation import Proposal, SimulatedGroup

A, B, C = Propose([]), Propose([]), Propose([])


def test_an_entry_of_the_same_term_is_the_proposal() -> None:
    """Law: index and term identify an entry, so an applied entry of the same term is the proposal."""
    pending = PendingProposals()
    pending.add(5, 2, [A, B], 1.5)

    assert pending.settle(4, 2) == (None, ())
    assert pending.settle(5, 2) == (Committed((A, B), 1.5), ())
    assert len(pending) == 0


def test_an_entry_of_another_term_means_that_the_proposal_is_lost() -> None:
    """Law: if an entry of another term is applied at its index, the proposal is lost for certain."""
    pending = PendingProposals()
    pending.add(5, 2, [A])
    pending.add(6, 2, [B])

    assert pending.settle(5, 3) == (None, (A,))
    assert len(pending) == 1
    assert pending.settle(6, 3) == (None, (B,))


def test_proposals_of_two_terms_may_wait_at_one_index() -> None:
    """Law: two proposals of different terms may wait at one index; one applied entry decides both."""
    pending = PendingProposals()
    pending.add(5, 2, [A])
    pending.add(6, 2, [B])
    pending.add(5, 4, [C])

    committed, lost = pending.settle(5, 4)
    assert (committed, lost) == (Committed((C,), 0.0), (A,))
    assert pending.settle(6, 2) == (Committed((B,), 0.0), ())


def test_what_a_snapshot_passes_stays_unknown() -> None:
    """Law: the outcome of proposals that a snapshot skips stays unknown; neither success nor failure is reported."""
    pending = PendingProposals()
    pending.add(5, 2, [A, B])

    assert pending.abandon() == 2
    assert pending.settle(5, 3) == (None, ())


def test_copies_that_do_not_follow_are_refused_alone() -> None:
    """Law: refused copies do not affect other proposals of their entry; an entry of refused copies alone is not made."""
    group = SimulatedGroup()
    leader = group.elect()
    leader.loop.submit([Propose([TopicSet("orders", 1, 1)])])
    group.run()
    topic = leader.state.topics.by_name["orders"]
    told: list[str] = []

    def copy(offset: int) -> Propose:
        draft = MessageDraft(topic, 0, b"x", Properties(""), 0, 0, 1, pack_host("192.0.2.7", 4711))

        def applied(*_: object) -> list[Effect]:
            told.append(f"{offset} stored")
            return []

        def lost(refusal: Refusal | None) -> list[Effect]:
            assert refusal is not None
            told.append(f"{offset} {refusal.remark}")
            return []

        return Propose([draft], applied, lost, first_at=(topic.queue(0), offset), begins=True)

    beside = Proposal("beside")
    leader.loop.submit([copy(7), beside.effect, copy(7), copy(8)])
    group.run()
    index = leader.node.last_index
    leader.loop.submit([copy(8)])
    group.run()

    refused = "the next offset of the queue is {}, but the copies begin at {}; nothing was stored"
    assert set(told) == {
        "7 stored",
        f"7 {refused.format(8, 7)}",
        "8 stored",
        f"8 {refused.format(9, 8)}",
    }
    assert beside.fate == "applied"
    assert leader.node.last_index == index
    assert leader.core.context.entries.uncommitted == 0
    group.check()


def test_the_linger_that_ends_first_wakes_the_loop() -> None:
    """Law: a waiting time that ends earlier than the first one wakes the loop,
    because an entry may be answered sooner than expected.
    """
    now, timers, woken = [0.0], dict[float, Callable[[], None]](), list[float]()
    waiting = WaitingProposals(
        lambda: now[0],
        lambda seconds, call: timers.update({now[0] + seconds: call}),
        lambda: woken.append(now[0]),
    )
    for _ in range(60):
        waiting.group_commit.began()
        now[0] += 0.0005
        waiting.group_commit.ended(0.0005, 2)
        now[0] += 0.0001
        waiting.add(A)
        waiting.add(B)
        waiting.take_all()
    waiting.group_commit.began()
    waiting.add(C)
    assert waiting.linger(on_its_way=True)
    now[0] += 0.0005
    waiting.group_commit.ended(0.0005, 2)
    assert waiting.linger(on_its_way=False)

    now[0] = min(timers)
    timers[now[0]]()

    assert woken == [now[0]]
    assert not waiting.linger(on_its_way=False)
    assert len(timers) == 2
