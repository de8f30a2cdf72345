"""A request that creates, changes or deletes a topic is not checked against a state that another uncommitted one replaces."""

import pytest

from orderlymq_broker.core.effects import Propose
from orderlymq_broker.processors.send.batches import READ_COUNT_MAX
from orderlymq_broker.state.records import Commit, GroupSet, OffsetsReset, TopicSet
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.codes import RequestCode
from tests.broker.processors.driver import ALICE, TOOL, Shell
from tests.broker.processors.halves import COMMIT, begin, end, end_ext, found
from tests.broker.processors.requests import create, properties, send, send_ext
from tests.broker.processors.send.test_batches import many
from tests.broker.processors.topics.test_expansionraces import said

CREATE = RequestCode.UPDATE_AND_CREATE_TOPIC
DELETE = RequestCode.DELETE_TOPIC_IN_BROKER
AGAIN = (1, "topic[orders] is being changed; send it again")


def creation(queues: int) -> dict[str, str]:
    """Return an administrator's request."""
    fields = {"topic": "orders", "defaultTopic": "TBW102", "perm": "6", "order": "false"}
    fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
    return {**fields, "readQueueNums": str(queues), "writeQueueNums": str(queues)}


def create_now(shell: Shell, record: TopicSet) -> None:
    """Apply a change before work that was put off goes on."""
    shell.run([Propose([record])])
    shell.turn()


@pytest.fixture
def shell() -> Shell:
    return Shell().lead()


def test_an_administrator_waits_for_the_topic_that_a_send_makes(shell: Shell) -> None:
    """Law: while a send creates a topic, an administrator's change is refused;
    with fewer queues the message would be lost.
    """
    sent = shell.submit(310, send_ext("orders", e=3), b"paid")
    refused = shell.submit(CREATE, creation(2), caller=TOOL)
    shell.settle()

    assert said(shell, refused) == AGAIN
    assert said(shell, sent)[0] == 0
    topic = shell.state.topics.by_name["orders"]
    assert (topic.queue_count, topic.queues[3].next_offset) == (4, 1)
    again = shell.submit(CREATE, creation(8), caller=TOOL)
    shell.settle()
    assert said(shell, again)[0] == 0


def test_a_send_that_would_make_a_topic_goes_into_the_one_that_an_administrator_makes(
    shell: Shell,
) -> None:
    """Law: a send that waits for an administrator's topic is checked against that topic when it exists."""
    made = shell.submit(CREATE, creation(2), caller=TOOL)
    refused = shell.submit(310, send_ext("orders", e=3), b"paid")
    taken = shell.submit(310, send_ext("orders", e=1), b"paid")
    shell.settle()

    assert said(shell, made)[0] == 0
    assert said(shell, refused)[0] == 1
    assert said(shell, taken)[0] == 0
    assert shell.state.topics.by_name["orders"].queue_count == 2


@pytest.mark.parametrize("queue", [3, -1])
@pytest.mark.parametrize("order", [False, True])
def test_a_batch_that_is_being_read_goes_into_no_queue_that_is_taken_away(
    shell: Shell, queue: int, *, order: bool
) -> None:
    """Law: a batch that is being read, and the sends behind it, do not go to a queue that is removed meanwhile."""
    create(shell, TopicSet("orders", 4, 4, order=order))
    for _ in range(3):
        send(shell, e=-1)  # The broker chooses the last queue next.
    batch = shell.submit(320, send_ext("orders", e=queue, m="true"), many(3 * READ_COUNT_MAX))
    single = shell.submit(310, send_ext("orders", e=3), b"behind")
    create_now(shell, TopicSet("orders", 2, 2, order=order))
    shell.settle()

    assert (said(shell, batch)[0], said(shell, single)[0]) == (1, 1)
    assert sorted(shell.state.topics.by_name["orders"].queues) == [0, 1, 2]
    assert shell.core.context.entries.uncommitted == 0


@pytest.mark.parametrize("first", ["create", "delete", "switch"])
@pytest.mark.parametrize("second", ["create", "delete", "switch"])
def test_no_two_changes_of_a_topic_are_under_way_together(
    shell: Shell, first: str, second: str
) -> None:
    """Law: two changes of a topic (create, delete, expand) are never uncommitted at the same time."""
    create(shell, TopicSet("orders", 4, 4))
    requests = {
        "create": (CREATE, creation(8), TOOL),
        "delete": (DELETE, {"topic": "orders"}, TOOL),
        "switch": (
            RequestCode.ORDERLYMQ_CHANGE_QUEUES,
            {"action": "switch", "topic": "orders", "attempt": "1", "total": "8", "queues": "8"},
            ALICE,
        ),
    }
    code, ext, caller = requests[first]
    shell.submit(code, ext, caller=caller)
    code, ext, caller = requests[second]
    refused = shell.submit(code, ext, caller=caller)
    shell.settle()

    assert said(shell, refused) == AGAIN
    assert ("orders" in shell.state.topics.by_name) == (first != "delete")
    shell.submit(code, ext, caller=caller)
    shell.settle()
    assert not shell.core.context.entries.changing


def test_what_is_lost_with_its_leader_keeps_no_change_waiting(shell: Shell) -> None:
    """Law: a change lost with its leader blocks no later one."""
    shell.submit(CREATE, creation(2), caller=TOOL)
    shell.lose_proposals()

    assert shell.call(CREATE, creation(2), caller=TOOL).code == 0


def test_a_retry_topic_is_not_changed_while_a_heartbeat_makes_it(shell: Shell) -> None:
    """Law: a retry topic is not changed while a heartbeat creates it."""
    create(shell, GroupSet("billing"))
    shell.submit(200, {}, b'{"groupName": "search", "retryQueueNums": 4}', caller=TOOL)
    refused = shell.submit(CREATE, {**creation(1), "topic": "%RETRY%search"}, caller=TOOL)
    shell.settle()

    assert said(shell, refused) == (1, "topic[%RETRY%search] is being changed; send it again")


def test_a_queue_stays_that_a_message_comes_into_before_it_would_go(shell: Shell) -> None:
    """Law: removing a queue is refused if a message enters it before that is applied."""
    create(shell, TopicSet("orders", 4, 4), GroupSet("billing"))
    create(shell, OffsetsReset(tuple(Commit("billing", "orders", queue, 0) for queue in range(4))))

    sent = shell.submit(310, send_ext("orders", e=3), b"paid")
    refused = shell.submit(CREATE, creation(2), caller=TOOL)
    shell.settle()

    assert said(shell, sent)[0] == 0
    code, remark = said(shell, refused)
    assert (code, "queue 3 of topic[orders] has messages that group" in (remark or "")) == (1, True)
    assert shell.state.topics.by_name["orders"].queue_count == 4
    shell.replay()


def test_a_list_that_is_refused_in_part_names_what_was_changed(shell: Shell) -> None:
    """Law: if a list of changes is refused in part, the remark names what was changed."""
    create(shell, TopicSet("orders", 4, 4), GroupSet("billing"))
    create(shell, OffsetsReset(tuple(Commit("billing", "orders", queue, 0) for queue in range(4))))
    wanted = [
        {"topicName": name, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
        for name in ("invoices", "orders")
    ]

    shell.submit(310, send_ext("orders", e=3), b"paid")
    body = fastjson.dumps({"topicConfigList": wanted})
    refused = shell.submit(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body, caller=TOOL)
    shell.settle()

    code, remark = said(shell, refused)
    assert (code, (remark or "").partition("; changed")[2]) == (1, " by this request: invoices")
    topics = shell.state.topics.by_name
    assert [topics[name].queue_count for name in ("invoices", "orders")] == [2, 4]


@pytest.mark.parametrize("queue", [1, 3])
def test_nothing_is_sent_to_a_topic_that_is_losing_queues(shell: Shell, queue: int) -> None:
    """Law: while a topic loses queues, sends to it are refused, because they would be stored behind the change."""
    create(shell, TopicSet("orders", 4, 4), GroupSet("billing"))

    made = shell.submit(CREATE, creation(2), caller=TOOL)
    sent = shell.submit(310, send_ext("orders", e=queue), b"paid")
    shell.settle()

    assert said(shell, made)[0] == 0
    code, remark = said(shell, sent)
    assert (code, "nothing was stored" in (remark or "")) == (14, True)
    again = shell.submit(310, send_ext("orders", e=1), b"paid")
    shell.settle()
    assert said(shell, again)[0] == 0


WAITS = {"level": {"DELAY": "1"}, "time": {"TIMER_DELAY_SEC": "1"}}


@pytest.mark.parametrize("wait", ["level", "time", "half"])
def test_what_has_waited_goes_to_no_queue_that_its_topic_is_losing(shell: Shell, wait: str) -> None:
    """Law: a delayed message goes to no queue that its topic is losing."""
    create(shell, TopicSet("orders", 4, 4), GroupSet("billing"))
    half = (0, 0)
    if wait == "half":
        half = begin(shell, queue=3)
    else:
        send(shell, props=properties(**WAITS[wait]), e=3)
        shell.pass_time(900)

    made = shell.submit(CREATE, creation(2), caller=TOOL)
    if wait == "half":
        shell.submit(37, end_ext(half, COMMIT))
    shell.wall_ms += 200
    shell.run(shell.core.tick(shell.now))
    shell.settle()
    if wait == "half":
        assert end(shell, half, COMMIT).code == 0
    shell.pass_time(200)

    assert said(shell, made)[0] == 0
    assert {number: found(shell, queue=number) for number in (0, 1)} == {0: [b"paid"], 1: []}
    assert 3 not in shell.state.topics.by_name["orders"].queues
    shell.replay()
