"""Administration of consumer groups: configuration, deletion."""

from typing import Any

import pytest

from orderlymq_broker.state.records import Commit, GroupSet, OffsetsReset
from orderlymq_protocol.body import fastjson
from tests.broker.processors.adminshell import AdminShell, create_topic, golden
from tests.broker.processors.requests import (
    bodies,
    create,
    heartbeat,
    lock,
    offset_of,
    pull,
    send,
    unlock,
)


def test_captured_requests_create_a_group(admin: AdminShell) -> None:
    """Law: 200 of 4.9 and of 5.x create the same group."""
    for frame in golden(200, "request"):
        assert admin.tool(200, frame.body).code == 0

        assert admin.state.groups.by_name["CGOV5-adm"] == GroupSet(
            "CGOV5-adm",
            consume_from_min_enable=False,
            retry_queues=2,
            retry_max_times=5,
            which_broker_when_slow=1,
        )


def test_a_new_group_has_its_retry_topic_immediately(admin: AdminShell) -> None:
    """Law: a new group gets its retry topic immediately, so that consumers find a route for it."""
    assert admin.tool(200, b'{"groupName":"billing","retryQueueNums":3}').code == 0
    assert admin.tool(200, b'{"groupName":"audit","retryQueueNums":0}').code == 0

    topics = admin.state.topics
    assert topics.by_name["%RETRY%billing"].config.write_queues == 3
    assert topics.get("%RETRY%audit") is None


def test_an_older_tool_does_not_undo_what_it_does_not_know(admin: AdminShell) -> None:
    """Law: a body of 4.9 without consumeMessageOrderly leaves an ordered group ordered."""
    old, new = (frame.body for frame in golden(200, "request"))
    admin.tool(200, new.replace(b'"consumeMessageOrderly":false', b'"consumeMessageOrderly":true'))

    assert admin.tool(200, old).code == 0
    assert admin.state.groups.by_name["CGOV5-adm"].orderly
    assert admin.tool(200, new).code == 0
    assert not admin.state.groups.by_name["CGOV5-adm"].orderly


def test_only_the_members_that_are_meant_are_changed(admin: AdminShell) -> None:
    """Law: with omqMembers only the named members are changed, so that a tool does not undo another's change."""
    admin.tool(200, b'{"groupName":"billing","retryMaxTimes":5,"onDeadLetter":"HoldKey"}')
    whole = b'{"groupName":"billing","retryMaxTimes":2,"onDeadLetter":"Continue","concurrency":"Key","consumeEnable":false}'

    assert admin.tool(200, whole, omqMembers="concurrency").code == 0

    found = admin.state.groups.by_name["billing"]
    assert (found.retry_max_times, found.on_dead_letter, found.by_key) == (5, "HoldKey", True)
    assert found.consume_enable
    assert admin.tool(200, whole, omqMembers="").code == 0
    assert admin.state.groups.by_name["billing"] == found
    assert admin.tool(200, whole, omqMembers="consumeEnable").code == 0
    assert not admin.state.groups.by_name["billing"].consume_enable
    refused = admin.tool(200, whole, omqMembers="consumeEnabled")
    assert (refused.code, refused.remark) == (
        1,
        "omqMembers names 'consumeEnabled', which is not a member of a group's configuration",
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no json",
        b"[]",
        b"{}",
        b'{"groupName":"a b"}',
        b'{"groupName":"g","retryQueueNums":-1}',
    ],
)
def test_a_group_that_makes_no_sense_is_refused(admin: AdminShell, body: bytes) -> None:
    """Law: wrong bodies, names and numbers are refused with 1 and a remark, and change nothing."""
    before = admin.state.digest()

    reply = admin.tool(200, body)

    assert reply.code == 1
    assert reply.remark
    assert admin.state.digest() == before


def test_several_groups_are_made_together_or_none(admin: AdminShell) -> None:
    """Law: 225 creates all groups with their retry topics, or none if one is wrong."""
    good = b'{"groupName":"billing","retryMaxTimes":3},{"groupName":"shipping"}'
    before = admin.state.digest()

    for bad in (
        b"",
        b"{}",
        b'{"groupConfigList":[]}',
        b'{"groupConfigList":[{"groupName":"a b"}]}',
    ):
        assert admin.tool(225, bad).code == 1
    assert admin.tool(225, b'{"groupConfigList":[' + good + b',{"groupName":"a b"}]}').code == 1
    assert admin.state.digest() == before

    assert admin.tool(225, b'{"groupConfigList":[' + good + b"]}").code == 0
    assert admin.state.groups.by_name["billing"].retry_max_times == 3
    assert {"%RETRY%billing", "%RETRY%shipping"} <= set(admin.state.topics.by_name)


def test_an_attribute_of_a_group_is_refused_by_name(admin: AdminShell) -> None:
    """Law: 200 and 225 accept an attribute only if it changes nothing; else they name it."""
    for attributes, code in (
        ({"+priority.factor": "5"}, 1),
        ({"+nonsense": "1"}, 1),
        ([], 1),
        ({"+priority.factor": "100", "-nonsense": ""}, 0),
        ({}, 0),
    ):
        group: dict[str, object] = {"groupName": "billing", "attributes": attributes}
        for number, body in ((200, group), (225, {"groupConfigList": [group]})):
            reply = admin.call(number, body=fastjson.dumps(body))
            assert reply.code == code, (number, attributes, reply.remark)


def test_one_group_is_shown_and_an_unknown_one_answers_26(admin: AdminShell) -> None:
    """Law: 352 shows one group as 201 does; an unknown one answers 26."""
    create(admin, GroupSet("billing", orderly=True))

    shown = admin.read(352, group="billing")

    assert shown == admin.read(201)["subscriptionGroupTable"]["billing"]
    assert shown["consumeMessageOrderly"] is True
    assert shown["consumeConcurrently"] is False  # If it is missing, the broker does not know it.
    assert admin.tool(352, group="nobody").code == 26


@pytest.mark.parametrize("flag", [{}, {"removeOffset": True}, {"cleanOffset": True}])
def test_a_deleted_group_keeps_its_offsets_unless_they_are_cleaned(
    admin: AdminShell, flag: dict[str, Any]
) -> None:
    """Law: 207 deletes configuration, members and locks; offsets only with removeOffset (4.9) or cleanOffset (5.x)."""
    create_topic(admin, order=True)
    send(admin)
    heartbeat(admin, "alice")
    lock(admin, "alice", 0)
    unlock(admin, "alice", 0)
    create(admin, OffsetsReset((Commit("billing", "orders", 0, 1),)))

    assert admin.tool(207, groupName="billing", **flag).code == 0

    assert "billing" not in admin.state.groups.by_name
    assert not admin.state.members.of_group("billing")
    assert not list(admin.state.locks.of_group("billing"))
    assert offset_of(admin) == (None if flag else 1)


def test_the_retry_topic_of_a_deleted_group_stays_until_somebody_deletes_it(
    admin: AdminShell,
) -> None:
    """Law: the retry topic of a deleted group stays until 215 deletes it, because the group may be created again."""
    create_topic(admin)
    create(admin, GroupSet("billing"))
    send(admin, body=b"failed")
    admin.call(36, {"offset": "0", "group": "billing", "delayLevel": "1"})

    assert admin.tool(207, groupName="billing", cleanOffset="true").code == 0
    admin.pass_time(2_000)
    create(admin, GroupSet("billing"))
    assert bodies(pull(admin, topic="%RETRY%billing")) == [b"failed"]

    assert admin.tool(207, groupName="billing", cleanOffset="true").code == 0
    assert admin.tool(215, topic="%RETRY%billing").code == 0
    assert admin.state.topics.get("%RETRY%billing") is None


def test_a_group_of_the_broker_stays(admin: AdminShell) -> None:
    """Law: the broker's own groups cannot be deleted, because RocketMQ's tools need TOOLS_CONSUMER."""
    assert admin.tool(207, groupName="TOOLS_CONSUMER").code == 1
    assert "TOOLS_CONSUMER" in admin.state.groups.by_name


def test_every_group_is_listed_with_the_version_of_the_table(admin: AdminShell) -> None:
    """Law: 201 lists every group with the table's version, which rises with each change."""
    before = admin.read(201)["dataVersion"]["counter"]
    create(admin, GroupSet("billing"))

    body = fastjson.loads(admin.tool(201).body)

    assert body["dataVersion"]["counter"] == before + 1
    assert "billing" in body["subscriptionGroupTable"]
