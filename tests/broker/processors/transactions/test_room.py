"""The limits of transactions that have not ended: per producer group and topic, and in total."""

from orderlymq_broker.state.records import TopicSet
from orderlymq_broker.state.transactions.halfrecords import HalfOpened
from orderlymq_broker.state.transactions.halves import OPEN_MAX, OPEN_OF_GROUP_MAX, Half
from tests.broker.processors.driver import Shell
from tests.broker.processors.halves import GROUP, begin, half_properties, with_orders
from tests.broker.processors.requests import create, properties, send


def test_no_producer_group_takes_the_memory_or_the_room_of_the_others() -> None:
    """Law: one producer group cannot use all room; given-up half messages count too, repeats do not."""
    orders = with_orders(Shell().lead())
    first = begin(orders, key="U0")
    table = orders.state.transactions
    for offset in range(OPEN_OF_GROUP_MAX):
        record = HalfOpened(1_000_000 + offset, 0, GROUP, "orders", "U", 0)
        table._add(Half(record, given_up=offset % 2 == 0))

    refused = send(orders, "orders", b"half", half_properties(), a=GROUP, f=4)

    assert refused.code == 2
    assert f"transactions of producer group {GROUP} have not ended in" in (refused.remark or "")
    assert begin(orders, key="U0") == first
    props = properties(TRAN_MSG="true", UNIQ_KEY="V", PGROUP="others")
    assert send(orders, "orders", b"half", props, a="others", f=4).code == 0


def test_who_writes_one_topic_leaves_room_for_the_transactions_of_others() -> None:
    """Law: the writers of one topic leave room for other topics, with any producer groups that they name."""
    orders = with_orders(Shell().lead())
    create(orders, TopicSet("greedy", 1, 1))
    table = orders.state.transactions

    def asks(topic: str, key: str, group: str = GROUP) -> tuple[int, str]:
        props = properties(TRAN_MSG="true", UNIQ_KEY=key, PGROUP=group)
        reply = send(orders, topic, b"half", props, a=group, f=4)
        return reply.code, reply.remark or ""

    for offset in range(OPEN_OF_GROUP_MAX):
        table._add(Half(HalfOpened(1_000_000 + offset, 0, GROUP, "greedy", "U", 0)))
    assert asks("greedy", "U1")[0] == 2
    assert asks("orders", "U1")[0] == 0
    assert asks("greedy", "U2", "more")[0] == 0
    table.room.take("greedy", OPEN_MAX // 4)

    code, remark = asks("greedy", "U3", "more")

    assert code == 2
    assert "in topic[greedy]" in remark
    assert asks("orders", "U2")[0] == 0
