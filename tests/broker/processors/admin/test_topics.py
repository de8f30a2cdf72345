"""Administration of topics: what may be changed, what is stored, what is answered."""

from pathlib import Path
from typing import Any

import pytest

from orderlymq_broker.server.registration import body_pieces, registration
from orderlymq_broker.settings import AccessSettings, Address
from orderlymq_broker.state.records import Commit as OffsetCommit
from orderlymq_broker.state.records import GroupSet, OffsetsReset, TopicDeleted, TopicSet
from orderlymq_nameserver.processor import NameServerCore
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.frame.command import RemotingCommand
from tests.broker.processors.adminshell import AdminShell, create_topic
from tests.broker.processors.driver import START_MS, settings
from tests.broker.processors.requests import create, heartbeat, lock, offset_of, send
from tests.nameserver.registrations import core, queues_of_go


def test_a_created_topic_is_one_record_and_answered_when_it_is_applied(admin: AdminShell) -> None:
    """Law: 17 proposes one record with the whole configuration, answers when it is applied, and raises the version."""
    version = admin.state.topics_version
    before = len(admin.proposed)
    ext = {
        "topic": "orders",
        "defaultTopic": "TBW102",
        "readQueueNums": "8",
        "writeQueueNums": "8",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "true",
    }

    opaque = admin.submit(17, ext)
    assert admin.reply_to(opaque) is None
    admin.settle()

    reply = admin.reply_to(opaque)
    assert reply is not None
    assert reply.code == 0
    assert admin.proposed[before:] == [TopicSet("orders", 8, 8, order=True)]
    assert admin.state.topics_version == version + 1


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("", "empty"),
        ("../etc/passwd", "characters"),
        ("zu lang" * 40, "characters"),
        ("TBW102", "system topic"),
        ("SCHEDULE_TOPIC_XXXX", "system topic"),
        ("shop", "system topic"),
        ("broker-a", "system topic"),
    ],
)
def test_a_name_that_is_not_allowed_is_refused(admin: AdminShell, name: str, part: str) -> None:
    """Law: invalid names and names of the broker's own topics are refused with 1 and change nothing."""
    before = admin.state.digest()

    reply = create_topic(admin, name)

    assert reply.code == 1
    assert part in (reply.remark or "")
    assert admin.state.digest() == before


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ({"queues": 0}, "between 1"),
        ({"queues": -1}, "between 1"),
        ({"queues": 1_000_000}, "between 1"),
        ({"queues": 2, "write": 4}, "less than writeQueueNums"),
        ({"perm": 64}, "perm 64"),
        ({"topicSysFlag": -1}, "topicSysFlag -1"),
        ({"topicSysFlag": 4}, "topicSysFlag 4"),
        ({"topicFilterType": "x" * 900_000}, "MULTI_TAG"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(
    admin: AdminShell, more: dict[str, Any], part: str
) -> None:
    """Law: a topic needs queues, no more write than read queues, a perm of three bits and a system flag of two."""
    reply = create_topic(admin, **more)

    assert reply.code == 1
    assert part in (reply.remark or "")
    assert admin.state.topics.get("orders") is None


def test_the_operator_begins_auto_creation() -> None:
    """Law: where an operator exists, topics are created automatically only after it has created the template TBW102,
    and only if the settings allow it.
    """
    access = AccessSettings(operator_key="operator", operator_secret_file=Path("operator.secret"))
    admin = AdminShell(settings(access=access))
    admin.lead()
    assert send(admin, "fresh").code == 17

    assert create_topic(admin, "TBW102", queues=8, perm=7).code == 0

    assert send(admin, "fresh").code == 0
    assert create_topic(admin, "TBW102", queues=16, perm=7).code == 1
    strict = AdminShell(settings(access=access, auto_create_topic=False))
    strict.lead()
    # A manifest that allows it now takes effect when the leader restarts.
    assert create_topic(strict, "TBW102", queues=8, perm=7).code == 0
    assert send(strict, "fresh").code == 17


def test_auto_creation_that_an_administrator_began_needs_no_operator() -> None:
    """Law: if an administrator turns automatic creation on, the leader creates the template itself."""
    access = AccessSettings(operator_key="operator", operator_secret_file=Path("operator.secret"))
    admin = AdminShell(settings(access=access, auto_create_topic=False))
    admin.lead()

    assert admin.tool(25, b"autoCreateTopicEnable=true\n").code == 0

    assert send(admin, "fresh").code == 0


def test_auto_creation_begins_with_the_settings_file_that_wants_it() -> None:
    """Law: a settings file that turns automatic creation on takes effect without a new leader."""
    admin = AdminShell(settings(auto_create_topic=False))
    admin.lead()
    assert send(admin, "fresh").code == 17

    admin.run(admin.core.follow(settings(auto_create_topic=True)))
    admin.settle()

    assert send(admin, "fresh").code == 0


def test_an_ordered_topic_keeps_its_queues(admin: AdminShell) -> None:
    """Law: the number of queues of an ordered topic cannot be changed, because keys would move;
    the refusal says what to do.
    """
    create_topic(admin, queues=4, order=True)

    for queues in (3, 5):
        reply = create_topic(admin, queues=queues, order=True)
        assert reply.code == 1
        assert "keeps its 4 queues" in (reply.remark or "")
        assert "create a new topic" in (reply.remark or "")

    topic = admin.state.topics.by_name["orders"]
    assert topic.config == TopicSet("orders", 4, 4, order=True)


def test_an_ordered_topic_that_is_read_only_refuses_sends_and_keeps_its_list(
    admin: AdminShell,
) -> None:
    """Law: an ordered topic with permission 4 refuses sends with 16, and Go's list of its queues stays the same."""
    names = core()
    create_topic(admin, queues=4, order=True)
    register_at(names, admin)
    before = queues_of_go(names, "orders")

    assert create_topic(admin, queues=4, perm=4).code == 0
    register_at(names, admin)
    reply = send(admin, "orders", e=1)

    assert queues_of_go(names, "orders") == before
    assert len(before) == 4
    assert (reply.code, reply.remark) == (
        16,
        "the broker[broker-a] sending message is forbidden: topic[orders] has no write permission",
    )
    assert not admin.state.topics.by_name["orders"].queues
    assert create_topic(admin, queues=4, perm=6).code == 0
    assert send(admin, "orders", e=1).code == 0


def register_at(names: NameServerCore, shell: AdminShell) -> None:
    """Register the topics at a name server, as the broker's registration does."""
    command = registration(
        b"".join(body_pieces(shell.state)),
        cluster="shop",
        group="broker-a",
        address=Address("10.0.0.1", 10911),
    )
    assert names.handle(command, 1, 0).code == 0


def test_an_ordered_topic_stays_ordered_when_a_tool_changes_its_permission(
    admin: AdminShell,
) -> None:
    """Law: updateTopicPerm, which always sends order=false, changes the permission but not the order."""
    create_topic(admin, queues=4, order=True)

    assert create_topic(admin, queues=4, perm=4).code == 0

    topic = admin.state.topics.by_name["orders"]
    assert topic.config == TopicSet("orders", 4, 4, perm=4, order=True)


def test_two_changes_of_one_topic_are_judged_one_after_the_other(admin: AdminShell) -> None:
    """Law: a second change of a topic is refused while the first is uncommitted."""
    ext = {
        "topic": "orders",
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "true",
    }

    first = admin.submit(17, ext)
    second = admin.submit(17, {**ext, "readQueueNums": "8", "writeQueueNums": "8"})
    admin.settle()

    replies = [admin.reply_to(first), admin.reply_to(second)]
    assert [reply.code for reply in replies if reply is not None] == [0, 1]
    assert admin.state.topics.by_name["orders"].queue_count == 4


def test_a_normal_topic_grows_and_its_queues_shrink_when_they_are_empty(admin: AdminShell) -> None:
    """Law: a normal topic can get more queues, and lose empty ones."""
    create_topic(admin, queues=4)

    assert create_topic(admin, queues=8).code == 0
    assert create_topic(admin, queues=2).code == 0

    assert admin.state.topics.by_name["orders"].config == TopicSet("orders", 2, 2)


def test_a_queue_stays_until_every_group_has_consumed_it(admin: AdminShell) -> None:
    """Law: a queue is removed in two steps: first no writes, then, when every group has consumed it, no reads."""
    create_topic(admin, queues=4)
    assert send(admin, e=3).code == 0
    create(admin, GroupSet("billing"), OffsetsReset((OffsetCommit("billing", "orders", 3, 0),)))

    refused = create_topic(admin, queues=2)
    assert refused.code == 1
    assert "queue 3 of topic[orders]" in (refused.remark or "")
    assert "group billing" in (refused.remark or "")
    assert create_topic(admin, queues=4, write=2).code == 0
    create(admin, OffsetsReset((OffsetCommit("billing", "orders", 3, 1),)))

    assert create_topic(admin, queues=2).code == 0


def _create_static(shell: AdminShell, queues: int) -> RemotingCommand:
    """Send 513 as 5.x's updateStaticTopic and RocketMQ Streams do; the mapping is the body."""
    mapping = {"topic": "orders", "totalQueues": 8, "bname": "broker-a", "hostedQueues": {}}
    ext = {"topic": "orders", "defaultTopic": "TBW102", "perm": 6, "topicFilterType": "SINGLE_TAG"}
    return shell.tool(
        513, fastjson.dumps(mapping), **ext, readQueueNums=queues, writeQueueNums=queues
    )


def test_a_static_topic_is_a_topic_with_the_queues_of_this_group(admin: AdminShell) -> None:
    """Law: 513 creates a topic with the number of queues that the mapping gives this broker group."""
    assert _create_static(admin, 3).code == 0

    topic = admin.state.topics.get("orders")
    assert topic is not None
    assert topic.queue_count == 3


def test_a_static_topic_without_queues_for_this_group_is_not_made_in_it(admin: AdminShell) -> None:
    """Law: 513 without queues for this broker group creates nothing here."""
    assert _create_static(admin, 0).code == 0

    assert admin.state.topics.get("orders") is None


def test_queues_are_not_mapped_to_other_groups(admin: AdminShell) -> None:
    """Law: 513 does not change an existing topic; repeated with the same numbers it succeeds."""
    _create_static(admin, 3)
    before = admin.state.digest()

    assert _create_static(admin, 3).code == 0
    moved = _create_static(admin, 2)
    emptied = _create_static(admin, 0)

    assert moved.code == emptied.code == 1
    assert "stay with their broker group" in (moved.remark or "")
    assert admin.state.digest() == before


def test_a_list_of_topics_is_created_together_or_not_at_all(admin: AdminShell) -> None:
    """Law: 18 creates all topics, or none if one is wrong."""
    good = [{"topicName": name, "readQueueNums": 2, "writeQueueNums": 2} for name in ("a", "b")]

    bad = admin.tool(18, fastjson.dumps({"topicConfigList": [*good, {"topicName": "a b"}]}))
    assert bad.code == 1
    assert "a" not in admin.state.topics.by_name
    assert admin.tool(18, fastjson.dumps({"topicConfigList": good})).code == 0

    assert [admin.state.topics.by_name[name].queue_count for name in ("a", "b")] == [2, 2]


def test_a_deleted_topic_takes_queues_offsets_and_locks_with_it(admin: AdminShell) -> None:
    """Law: 215 deletes queues, offsets and locks too; a topic created again is empty."""
    create_topic(admin, order=True)
    send(admin, e=0)
    heartbeat(admin, "alice")
    lock(admin, "alice", 0)
    create(admin, OffsetsReset((OffsetCommit("billing", "orders", 0, 1),)))

    assert admin.tool(215, topic="orders").code == 0
    create_topic(admin, order=True)

    assert TopicDeleted("orders") in admin.proposed
    assert offset_of(admin) is None
    assert admin.state.locks.get("billing", "orders", 0) is None
    queues = admin.read(202, topic="orders")["offsetTable"]
    assert {entry["maxOffset"] for entry in queues.values()} == {0}


def test_deleting_what_is_not_there_succeeds_and_a_system_topic_stays(admin: AdminShell) -> None:
    """Law: deleting a missing topic succeeds, because tools delete retry topics that may not exist;
    the broker's own topics cannot be deleted.
    """
    before = admin.state.digest()

    assert admin.tool(215, topic="%RETRY%nobody").code == 0
    assert admin.tool(215, topic="SCHEDULE_TOPIC_XXXX").code == 1

    assert admin.state.digest() == before


def test_statistics_list_every_queue(admin: AdminShell) -> None:
    """Law: 202 lists every queue from 0 on, empty ones with zeros, because tools use the index."""
    create_topic(admin, queues=3)
    send(admin, e=1)

    table = admin.read(202, topic="orders")["offsetTable"]

    empty = {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0}
    assert table == {
        MessageQueue("orders", "broker-a", 0): empty,
        MessageQueue("orders", "broker-a", 1): {
            "lastUpdateTimestamp": START_MS,
            "maxOffset": 1,
            "minOffset": 0,
        },
        MessageQueue("orders", "broker-a", 2): empty,
    }
    assert admin.tool(202, topic="nothing").code == 17


def test_statistics_have_the_rate_of_the_last_minute(admin: AdminShell) -> None:
    """Law: topicPutTps in 202 is the rate of 315 for the last minute."""
    create_topic(admin)
    before = admin.read(202, topic="orders")["topicPutTps"]
    for _ in range(20):
        send(admin, e=0)
    admin.pass_time(10_000)

    minute = admin.read(315, statsName="TOPIC_PUT_NUMS", statsKey="orders")["statsMinute"]

    assert (before, minute["sum"]) == (0.0, 20)
    assert admin.read(202, topic="orders")["topicPutTps"] == minute["tps"]


def test_the_consumers_of_a_topic_are_those_online_and_those_with_offsets(
    admin: AdminShell,
) -> None:
    """Law: 300 lists groups that are online and groups with offsets."""
    create_topic(admin)
    heartbeat(admin, "alice", group="online")
    create(admin, GroupSet("gone"), OffsetsReset((OffsetCommit("gone", "orders", 0, 0),)))

    assert admin.read(300, topic="orders") == {"groupList": ["gone", "online"]}
    assert admin.read(300, topic="nothing") == {"groupList": []}


def test_attributes_of_newer_tools_are_kept(admin: AdminShell) -> None:
    """Law: attributes that 5.x sends as changes are stored, shown, and kept through other changes."""
    create_topic(admin, attributes="+message.type=DELAY,+duplicate.window=true")
    create_topic(admin, queues=8, attributes="-duplicate.window")

    config = admin.read(351, topic="orders")

    assert config == {
        "attributes": {"message.type": "DELAY"},
        "order": False,
        "perm": 6,
        "readQueueNums": 8,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "orders",
        "topicSysFlag": 0,
        "writeQueueNums": 8,
    }
    assert admin.tool(351, topic="nothing").code == 17
    assert admin.read(21)["topicConfigTable"]["orders"] == config


def test_a_topic_of_the_type_fifo_is_ordered(admin: AdminShell) -> None:
    """Law: the attribute message.type=FIFO makes a topic ordered, so that it keeps its queues."""
    create_topic(admin, attributes="+message.type=FIFO")

    more = create_topic(admin, queues=8, attributes="+message.type=NORMAL")

    assert (more.code, "is ordered and keeps its 4 queues" in (more.remark or "")) == (1, True)
    assert admin.read(351, topic="orders")["order"]


@pytest.mark.parametrize(
    ("attributes", "part"),
    [
        ("+cleanup.policy=COMPACTION", "cleanup.policy=COMPACTION"),
        ("+reserve.time=2592000000", "reserve.time=2592000000"),
        ("+message.type=FIFO,+nonsense=1", "nonsense=1"),
        ("+duplicate.window=yes", "true or false"),
        ("duplicate.window=true", "+name=value"),
        ("+", "+name=value"),
        ("+x", "+name=value"),
    ],
)
def test_an_attribute_that_would_mean_nothing_is_refused_by_name(
    admin: AdminShell, attributes: str, part: str
) -> None:
    """Law: 17 and 18 accept an attribute only if the broker does what it says; else they name it."""
    before = admin.state.digest()

    reply = create_topic(admin, attributes=attributes)

    assert (reply.code, part in (reply.remark or "")) == (1, True), reply.remark
    assert admin.state.digest() == before


def test_an_attribute_that_changes_nothing_is_taken(admin: AdminShell) -> None:
    """Law: attributes that a topic has, that hold anyway or that are removed without being there are accepted."""
    create(admin, TopicSet("orders", 4, 4, attributes={"old": "1"}))

    for attributes in (
        "",
        "+old=1",
        "-other",
        "+cleanup.policy=DELETE,+reserve.time=-1",
        "-old",
        "+queue.type=BatchCQ",
    ):
        assert create_topic(admin, attributes=attributes).code == 0, attributes

    assert "old" not in admin.read(351, topic="orders")["attributes"]


@pytest.mark.parametrize(
    ("attributes", "code", "stored"),
    [
        ({"+duplicate.window": "true", "-x": ""}, 0, {"duplicate.window": "true"}),
        (
            {"+duplicate.window": "true", "+message.type": "FIFO"},
            0,
            {"duplicate.window": "true", "message.type": "FIFO"},
        ),
        ({}, 0, {}),
        (None, 0, {}),
        ({"+nonsense": "1"}, 1, None),
        ({"+duplicate.window": 1}, 1, None),
        ("+duplicate.window=true", 1, None),
    ],
)
def test_topics_made_together_have_their_attributes(
    admin: AdminShell, attributes: object, code: int, stored: dict[str, str] | None
) -> None:
    """Law: 18 reads the attributes of each topic as 17 does."""
    body = fastjson.dumps({"topicConfigList": [{"topicName": "orders", "attributes": attributes}]})

    assert admin.call(18, body=body).code == code

    topic = admin.state.topics.get("orders")
    assert (None if topic is None else topic.config.attributes) == stored


def test_a_follower_refuses_changes_and_says_where_to_go(admin: AdminShell) -> None:
    """Law: a follower refuses changes with the leader's address, but shows tables that all replicas have."""
    create_topic(admin)
    admin.follow()

    refused = [create_topic(admin, "more"), admin.tool(215, topic="orders")]

    assert [reply.code for reply in refused] == [1, 1]
    assert all("192.0.2.100:10911" in (reply.remark or "") for reply in refused)
    assert all("from slave broker" in (reply.remark or "") for reply in refused)
    assert "orders" in admin.read(21)["topicConfigTable"]


def test_a_change_whose_leader_was_lost_is_answered_so(admin: AdminShell) -> None:
    """Law: a change lost with its leader is answered "nothing changed", so that the tool may repeat it."""
    opaque = admin.submit(
        17,
        {
            "topic": "orders",
            "defaultTopic": "TBW102",
            "readQueueNums": "4",
            "writeQueueNums": "4",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "order": "false",
        },
    )
    admin.lose_proposals()

    reply = admin.reply_to(opaque)
    assert reply is not None
    assert (reply.code, "nothing changed" in (reply.remark or "")) == (1, True)
    assert create_topic(admin).code == 0


def test_a_change_of_unknown_fate_does_not_block_the_next_term(admin: AdminShell) -> None:
    """Law: a change with unknown outcome does not block later changes of the topic in a new term."""
    admin.submit(
        17,
        {
            "topic": "orders",
            "defaultTopic": "TBW102",
            "readQueueNums": "4",
            "writeQueueNums": "4",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "order": "false",
        },
    )
    admin.follow()
    admin.pending.clear()
    admin.lead()

    assert create_topic(admin).code == 0
