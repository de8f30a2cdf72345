"""What a leader puts into its log: copies that do not follow stay out of it."""

from orderlymq_broker.core.effects import Effect, Propose, Refusal
from orderlymq_broker.core.messagedraft import Draft
from orderlymq_broker.core.properties import Properties
from orderlymq_broker.state.records import TopicSet
from orderlymq_protocol.message.record import pack_host
from tests.broker.replication.simulation import Proposal, SimulatedGroup


def test_copies_that_do_not_follow_are_refused_alone() -> None:
    """What shares their entry is stored; an entry of nothing else is not made at all."""
    group = SimulatedGroup()
    leader = group.elect()
    leader.loop.submit([Propose([TopicSet("orders", 1, 1)])])
    group.run()
    topic = leader.state.topics.by_name["orders"]
    told: list[str] = []

    def copy(offset: int) -> Propose:
        draft = Draft(topic, 0, b"x", Properties(""), 0, 0, 1, pack_host("192.0.2.7", 4711))

        def applied(*_: object) -> list[Effect]:
            told.append(f"{offset} stored")
            return []

        def lost(refusal: Refusal | None) -> list[Effect]:
            assert refusal is not None
            told.append(f"{offset} {refusal.remark}")
            return []

        return Propose([draft], applied, lost, first_at=(topic.queue(0), offset))

    beside = Proposal("beside")
    leader.loop.submit([copy(7), beside.effect, copy(7), copy(8)])
    group.run()
    index = leader.node.last_index
    leader.loop.submit([copy(8)])
    group.run()

    refused = "the queue goes on at {}, the copies at {}; nothing was stored"
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
