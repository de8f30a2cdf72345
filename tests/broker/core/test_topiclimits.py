"""The limit on topics: as many as name servers take in one registration."""

from orderlymq_broker.core.effects import Propose
from orderlymq_broker.core.entrybuilder import ROWS_SIZE_MAX, ROWS_SIZE_RESERVED
from orderlymq_broker.server.registration import body_pieces
from orderlymq_broker.state.records import TopicDeleted, TopicSet
from orderlymq_protocol.frame import codec
from tests.broker.processors.driver import Shell
from tests.broker.processors.requests import create


def test_dead_letters_and_the_broker_itself_have_room_above_the_limit_of_names(
    shell: Shell,
) -> None:
    """Law: dead-letter topics and the broker's own topics may exceed the limit,
    so that no message is lost and a leader can start.
    """
    entries = shell.core.context.entries
    entries.names_max = len(shell.state.topics.by_name)
    asked = [
        Propose([TopicSet(name, 1, 1)], lost=lambda refusal: [])
        for name in ("new", "TBW102", "%DLQ%billing")
    ]
    ours = Propose([TopicSet("rmq_sys_new", 1, 1)])

    assert [entries.admit(each) is None for each in (*asked, ours)] == [False, True, True, True]


def test_the_topics_of_a_group_fit_into_one_registration(shell: Shell) -> None:
    """Law: for any topic names, all topics of a broker group fit into one registration frame."""

    def size() -> int:
        return len(b"".join(body_pieces(shell.state)))

    def make(name: str) -> Propose:
        topic = TopicSet(name, 65_535, 65_535, sys_flag=-(2**31))
        return Propose([topic], lost=lambda refusal: [])

    entries = shell.core.context.entries
    entries.rows_size_max = size() + 100_000
    names = [f"%RETRY%{number}".ljust(262, "x") for number in range(200)]
    for number, name in enumerate(names):
        shell.run([make(name)])
        if number % 10 == 0:
            shell.settle()
    shell.settle()

    assert 0.9 * entries.rows_size_max < size() <= entries.rows_size_max
    assert not entries.has_room(1)
    assert entries.admit(make("%DLQ%billing")) is None
    refusal = entries.admit(make(names[-1]))
    assert refusal is not None
    assert "topics in a registration" in refusal.remark
    create(shell, *map(TopicDeleted, names[:5]))
    assert entries.admit(make(names[-1])) is None
    shell.state.topics.check()
    # The rest of the frame holds a header and the names of cluster and broker group.
    assert ROWS_SIZE_MAX + ROWS_SIZE_RESERVED < codec.FRAME_SIZE_MAX - 100_000
