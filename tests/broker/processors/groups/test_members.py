"""Membership: heartbeats, member lists, deaths, and what survives a change of leader."""

import pytest

from orderlymq_broker.core.effects import Caller
from orderlymq_broker.state.records import GroupSet, MemberSeen, TopicSet
from orderlymq_protocol.body import fastjson
from tests.broker.processors.driver import ALICE, BOB, TOOL, Shell, settings
from tests.broker.processors.requests import (
    create,
    heartbeat,
    heartbeat_body,
    lock,
    lock_body,
    properties,
    pull,
    pull_ext,
    send,
    send_ext,
)

ALICE_AGAIN = Caller(11, ALICE.host, 50_001)


def members(shell: Shell, group: str = "billing") -> list[str]:
    """Return what 38 answers."""
    reply = shell.call(38, {"consumerGroup": group}, caller=TOOL)
    if reply.code:
        assert (reply.code, reply.remark) == (1, f"no consumer for this group, {group}")
        return []
    ids: list[str] = fastjson.loads(reply.body)["consumerIdList"]
    return ids


def close(shell: Shell, caller: Caller) -> None:
    shell.run(shell.core.connection_closed(caller.connection))
    shell.settle()


def body_of(client: str, *groups: str) -> bytes:
    """Return a heartbeat for several groups, as a program with several consumers sends it."""
    bodies = [fastjson.loads(heartbeat_body(client, group)) for group in groups]
    consumers = [each["consumerDataSet"][0] for each in bodies]
    return fastjson.dumps({**bodies[0], "consumerDataSet": consumers})


def test_a_heartbeat_creates_the_group_its_retry_topic_and_the_member(shell: Shell) -> None:
    """Law: a heartbeat creates group, retry topic and member, and is answered when all are stored."""
    create(shell, TopicSet("orders", 1, 1))
    opaque = shell.submit(34, {}, heartbeat_body("alice"))
    assert shell.reply_to(opaque) is None
    shell.settle()

    assert shell.reply_to(opaque) is not None
    assert members(shell) == ["alice"]
    assert shell.state.groups.get("billing") == GroupSet("billing")
    retry = shell.state.topics.by_name["%RETRY%billing"].config
    assert (retry.read_queues, retry.write_queues, retry.perm) == (1, 1, 6)
    assert pull(shell, sysFlag=0, subVersion=1).code == 19


def test_clients_cannot_make_more_groups_and_topics_than_a_name_server_takes() -> None:
    """Law: clients cannot create more groups and topics than name servers take;
    at the limit existing groups still get members.
    """
    shell = Shell().lead()
    create(shell, TopicSet("orders", 1, 1))
    heartbeat(shell, "alice")
    limit = shell.core.context.entries.names_max = len(shell.state.topics.by_name) + 20

    for number in range(40):
        groups = (f"g{number}-{each}" for each in range(9))
        shell.submit(
            34, {}, body_of(f"evil-{number}", *groups), caller=Caller(100 + number, "h", 1)
        )
        if number > 10:
            shell.settle()
    room = limit - len(shell.state.topics.by_name)
    create(shell, *(TopicSet(f"rest-{number}", 1, 1) for number in range(room)))
    made = shell.call(34, {}, body_of("bob", "billing", "new"), caller=BOB)
    refusals = [
        shell.call(11, pull_ext("another")),
        shell.call(310, send_ext("another")),
        shell.call(41, {}, lock_body("alice", 0, group="another")),
    ]

    assert room in range(3)
    assert len(shell.state.topics.by_name) == limit
    assert (made.code, members(shell)) == (0, ["alice", "bob"])
    assert "new" not in shell.state.groups.by_name
    assert [reply.code for reply in refusals] == [1, 1, 1]
    assert all(
        "another cannot be created: this broker group has" in str(each.remark) for each in refusals
    )
    assert send(shell, "orders").code == 0


def test_the_reply_reports_a_version_that_allows_everything(shell: Shell) -> None:
    """Law: the reply reports a version from which clients allow SQL92 and all other features (232)."""
    assert heartbeat(shell, "alice").version == 409


def test_a_heartbeat_that_says_nothing_new_writes_nothing(shell: Shell) -> None:
    """Law: a heartbeat without news writes no record."""
    heartbeat(shell, "alice")
    before = len(shell.proposed)

    for _ in range(3):
        shell.pass_time(30_000, step=10_000)
        heartbeat(shell, "alice")

    assert [each for each in shell.proposed[before:] if isinstance(each, MemberSeen)] == []


def test_a_group_that_may_not_be_created_gets_no_members() -> None:
    """Law: with automatic creation off, a heartbeat for an unknown group is answered and changes nothing."""
    shell = Shell(settings(auto_create_group=False)).lead()

    assert heartbeat(shell, "alice").code == 0
    assert members(shell) == []


def test_nobody_is_remembered_for_groups_that_do_not_exist() -> None:
    """Law: groups that do not exist leave no trace in memory, whatever names a connection invents."""
    shell = Shell(settings(auto_create_group=False)).lead()
    create(shell, TopicSet("orders", 1, 1), GroupSet("billing"))
    heartbeat(shell, "alice")

    for number in range(300):
        invented = f"invented{number}"
        assert shell.call(41, {}, lock_body("alice", group=invented)).code == 0
        assert shell.call(41, {}, lock_body("alice", 0, group=invented)).code == 26
        heartbeat(shell, "bob", caller=BOB, group=invented)

    assert list(shell.core.context.sessions.presence) == [("billing", "alice")]


def test_a_lock_request_for_queues_of_others_makes_no_group_and_leaves_no_trace(
    shell: Shell,
) -> None:
    """Law: a lock request without queues of this broker creates no group and leaves no trace."""
    for number in range(300):
        assert shell.call(41, {}, lock_body("alice", group=f"invented{number}")).code == 0

    assert list(shell.core.context.sessions.presence) == []


def test_a_heartbeat_that_says_less_than_the_one_before_leaves_the_other_groups(
    shell: Shell,
) -> None:
    """Law: a heartbeat that no longer names a group leaves it, unless another connection of the client names it."""
    create(shell, TopicSet("orders", 2, 2))
    shell.call(34, {}, body_of("alice", "billing", "audit", "returns"))
    heartbeat(shell, "alice", caller=ALICE_AGAIN, group="returns")

    heartbeat(shell, "alice")
    heartbeat(shell, "bob", caller=BOB)
    shell.pass_time(60_000, step=10_000)

    assert sorted(shell.core.context.sessions.presence) == [
        ("billing", "alice"),
        ("billing", "bob"),
        ("returns", "alice"),
    ]
    assert members(shell, "audit") == []
    assert (members(shell), members(shell, "returns")) == (["alice", "bob"], ["alice"])


def test_joining_leaving_and_other_topics_notify_all_members(shell: Shell) -> None:
    """Law: joins, leaves and changed topics notify (40) all members; repetitions do not."""
    heartbeat(shell, "alice")
    assert shell.notified() == [ALICE.connection]
    heartbeat(shell, "bob", caller=BOB)
    assert shell.notified() == [ALICE.connection, BOB.connection]
    heartbeat(shell, "bob", caller=BOB, sub_version=2)
    assert shell.notified() == []
    heartbeat(shell, "bob", caller=BOB, topics=("orders", "returns"))
    assert shell.notified() == [ALICE.connection, BOB.connection]
    shell.call(35, {"clientID": "bob", "consumerGroup": "billing"}, caller=BOB)
    assert shell.notified() == [ALICE.connection]
    assert members(shell) == ["alice"]


def test_a_group_may_ask_not_to_be_notified(shell: Shell) -> None:
    """Law: with notifyConsumerIdsChangedEnable=false, members are not notified."""
    create(shell, GroupSet("billing", notify_changes=False))
    heartbeat(shell, "alice")

    assert shell.notified() == []


def test_unregistering_gives_the_locks_back(shell: Shell) -> None:
    """Law: 35 frees all locks that the client holds in that group."""
    create(shell, TopicSet("orders", 2, 2))
    heartbeat(shell, "alice")
    lock(shell, "alice", 0, 1)

    shell.call(35, {"clientID": "alice", "consumerGroup": "billing"})

    assert lock(shell, "bob", 0, 1, caller=BOB) == {0: 2, 1: 2}


def test_a_closed_connection_takes_a_member_without_locks_out(shell: Shell) -> None:
    """Law: a member without locks leaves when its connection closes."""
    heartbeat(shell, "alice")
    heartbeat(shell, "bob", caller=BOB)
    shell.notified()

    close(shell, ALICE)

    assert (members(shell), shell.notified()) == (["bob"], [BOB.connection])


def test_a_holder_of_locks_stays_a_member_until_it_has_none(shell: Shell) -> None:
    """Law: a member with locks stays until it has none, because Java closes connections on time-outs."""
    create(shell, TopicSet("orders", 1, 1))
    heartbeat(shell, "alice")
    heartbeat(shell, "bob", caller=BOB)
    lock(shell, "alice", 0)
    shell.notified()

    close(shell, ALICE)

    assert (members(shell), shell.notified()) == (["alice", "bob"], [])
    assert lock(shell, "bob", 0, caller=BOB) == {}
    while shell.state.locks.holds("billing", "alice"):
        assert members(shell) == ["alice", "bob"]
        shell.pass_time(1_000)
        heartbeat(shell, "bob", caller=BOB)
    shell.pass_time(1_000)
    assert members(shell) == ["bob"]
    assert set(shell.notified()) == {BOB.connection}


def test_a_holder_of_locks_goes_on_pulling_over_another_connection(shell: Shell) -> None:
    """Law: a member with locks may pull over a new connection without a heartbeat;
    clients before 5.0 send it up to 30 s later.
    """
    create(shell, TopicSet("orders", 1, 1))
    heartbeat(shell, "alice")
    lock(shell, "alice", 0)
    send(shell, body=b"paid")

    close(shell, ALICE)

    assert members(shell) == ["alice"]
    assert pull(shell, caller=ALICE_AGAIN, sysFlag=0, subVersion=1).code == 0


def test_a_member_that_came_back_elsewhere_stays_when_its_old_connection_closes(
    shell: Shell,
) -> None:
    """Law: a client leaves only when its last connection closes."""
    heartbeat(shell, "alice")
    heartbeat(shell, "alice", caller=ALICE_AGAIN)

    close(shell, ALICE)

    assert members(shell) == ["alice"]
    close(shell, ALICE_AGAIN)
    assert members(shell) == []


def test_one_client_id_on_two_live_connections_is_counted_and_shown(shell: Shell) -> None:
    """Law: a client id on two live connections is counted and shown,
    because it may be two processes that consume everything twice.
    """
    heartbeat(shell, "alice")
    heartbeat(shell, "alice", caller=ALICE_AGAIN)

    status = fastjson.loads(shell.call(20500).body)

    assert status["counters"]["duplicate_clients"] == 1
    assert status["duplicateClients"] == {"alice": [ALICE.connection, ALICE_AGAIN.connection]}


def test_a_second_port_of_an_old_client_is_no_duplicate(shell: Shell) -> None:
    """Law: an old client's second port (port - 2) is no duplicate."""
    create(shell, TopicSet("orders", 1, 1))
    lock(shell, "alice", 0, caller=ALICE_AGAIN)
    heartbeat(shell, "alice")

    assert shell.core.context.counters["duplicate_clients"] == 0
    assert shell.core.clients_of(ALICE_AGAIN.connection) == ["alice"]
    close(shell, ALICE_AGAIN)
    assert members(shell) == ["alice"]


def test_a_silent_client_is_dropped_after_120_s(shell: Shell) -> None:
    """Law: a client that is silent for 120 s is dropped; when it speaks again, it is a member again."""
    heartbeat(shell, "alice")

    shell.pass_time(120_000, step=1_000)
    assert members(shell) == ["alice"]
    shell.pass_time(2_000)
    assert members(shell) == []
    heartbeat(shell, "alice")

    assert members(shell) == ["alice"]


def test_a_silent_client_leaves_with_its_lease_when_its_next_heartbeat_does_not_come(
    shell: Shell,
) -> None:
    """Law: a silent client with an expired lease leaves if its next heartbeat does not come,
    so that others get its queues.
    """
    create(shell, TopicSet("orders", 2, 2))
    heartbeat(shell, "alice")
    heartbeat(shell, "bob", caller=BOB)
    lock(shell, "alice", 0)
    lock(shell, "bob", 1, caller=BOB)

    shell.pass_time(30_000, step=1_000)
    heartbeat(shell, "bob", caller=BOB)
    assert members(shell) == ["alice", "bob"]
    shell.pass_time(30_000, step=1_000)
    heartbeat(shell, "bob", caller=BOB)
    shell.pass_time(3_000, step=1_000)

    # The lease of bob is over as well, but bob is alive.
    assert not shell.state.locks.holds("billing", "bob")
    assert members(shell) == ["bob"]


def test_after_a_fail_over_known_members_are_answered_until_the_grace_ends() -> None:
    """Law: after a change of leader, known members are listed until a grace time ends;
    a Java client missing in the list drops all queues.
    """
    leader = Shell().lead()
    heartbeat(leader, "alice")
    heartbeat(leader, "bob", caller=BOB)

    successor = leader.restart().lead()
    assert members(successor) == ["alice", "bob"]
    heartbeat(successor, "alice", caller=ALICE_AGAIN)
    successor.pass_time(35_000, step=1_000)
    assert members(successor) == ["alice", "bob"]
    successor.pass_time(2_000)

    assert members(successor) == ["alice"]
    assert successor.notified() == [ALICE_AGAIN.connection]


def test_a_holder_that_nobody_heard_of_leaves_with_its_last_lock(shell: Shell) -> None:
    """Law: a holder that no leader hears of leaves with its last lock, however often the leader changes."""
    create(shell, TopicSet("orders", 2, 2))
    heartbeat(shell, "alice")
    heartbeat(shell, "bob", caller=BOB)
    lock(shell, "alice", 0, 1)
    close(shell, ALICE)

    for _ in range(13):
        shell.follow()
        shell.pass_time(1_000)
        shell.lead()
        heartbeat(shell, "bob", caller=BOB)
        shell.pass_time(4_000, step=1_000)
    assert not shell.state.locks.holds("billing", "alice")
    assert members(shell) == ["bob"]


def test_a_holder_whose_locks_end_one_by_one_stays_until_the_last(shell: Shell) -> None:
    """Law: a holder whose locks end one by one stays until the last; it may have given up only one topic."""
    create(shell, TopicSet("orders", 2, 2))
    heartbeat(shell, "alice")
    lock(shell, "alice", 0)
    shell.pass_time(30_000)
    lock(shell, "alice", 1)
    close(shell, ALICE)

    shell.follow()
    shell.lead()
    shell.pass_time(31_000, step=1_000)

    assert [each.queue_id for each in shell.state.locks.held("billing")] == [1]
    assert members(shell) == ["alice"]


def test_members_that_came_to_a_follower_are_known_when_it_leads(shell: Shell) -> None:
    """Law: members that sent heartbeats to a follower are known when it leads."""
    shell.follow()
    assert heartbeat(shell, "alice").code == 0
    assert list(shell.state.members.of_group("billing")) == []

    shell.lead()

    assert members(shell) == ["alice"]


def test_who_left_at_a_follower_is_no_member_when_it_leads(shell: Shell) -> None:
    """Law: a client that left at a follower is no member when that leads."""
    shell.follow()
    heartbeat(shell, "alice")
    assert shell.call(35, {"clientID": "alice", "consumerGroup": "billing"}).code == 0

    shell.lead()

    assert list(shell.state.members.of_group("billing")) == []


def test_a_follower_refuses_the_list_of_members(shell: Shell) -> None:
    """Law: a follower refuses the member list, because an old one makes clients drop their queues."""
    heartbeat(shell, "alice")
    shell.follow()

    reply = shell.call(38, {"consumerGroup": "billing"}, caller=TOOL)

    assert (reply.code, reply.body) == (1, b"")


def test_a_member_whose_connection_closes_before_its_record_is_applied_leaves(
    shell: Shell,
) -> None:
    """Law: if a connection closes before its first heartbeat is applied, the member leaves right after."""
    shell.submit(34, {}, heartbeat_body("alice"))
    shell.run(shell.core.connection_closed(ALICE.connection))
    shell.settle()

    assert members(shell) == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[1]",
        b'{"clientID":""}',
        b'{"clientID":"a","consumerDataSet":[{"groupName":"../x"}]}',
        b'{"clientID":"a","consumerDataSet":5}',
        b'{"consumerDataSet":[]}',
    ],
)
def test_a_heartbeat_that_cannot_be_read_is_refused(shell: Shell, body: bytes) -> None:
    """Law: an unreadable heartbeat is refused with 1 and a reason; nobody joins."""
    reply = shell.call(34, {}, body)

    assert reply.code == 1
    assert reply.remark
    assert shell.core.clients_of(ALICE.connection) == []


def test_names_nobody_knows_do_not_cost_a_heartbeat(shell: Shell) -> None:
    """Law: unknown names, members and code sets in a heartbeat are accepted."""
    body = fastjson.dumps(
        {
            "clientID": "old",
            "heartbeatFingerprint": 0,
            "consumerDataSet": [
                {
                    "groupName": "billing",
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
                    "consumeType": "CONSUME_POP",
                    "messageModel": "CLUSTERING",
                    "subscriptionDataSet": [
                        {"topic": "orders", "subString": "a", "codeSet": [97], "tagsSet": ["a"]}
                    ],
                }
            ],
        }
    )

    assert shell.call(34, {}, body).code == 0
    member = shell.state.members.get("billing", "old")
    assert member is not None
    assert [(subscription.topic, subscription.codes) for subscription in member.subscriptions] == [
        ("orders", (97,))
    ]


def test_a_producer_is_known_by_its_heartbeat(shell: Shell) -> None:
    """Law: a producer is known by its heartbeat until it unregisters or its connection closes."""
    body = fastjson.dumps({"clientID": "p", "producerDataSet": [{"groupName": "shop"}]})
    shell.call(34, {}, body)
    sessions = shell.core.context.sessions

    assert [client for client, _ in sessions.producers("shop")] == ["p"]
    shell.call(35, {"clientID": "p", "producerGroup": "shop"})
    assert list(sessions.producers("shop")) == []


def test_a_held_pull_under_the_registered_subscription_is_woken_by_its_tags(shell: Shell) -> None:
    """Law: a held pull without its own subscription is filtered by the registered one."""
    create(shell, TopicSet("orders", 1, 1))
    heartbeat(shell, "alice", tags="paid")
    opaque = shell.submit(11, pull_ext(sysFlag=2, subVersion=1))

    send(shell, props=properties(TAGS="sent"))
    assert shell.reply_to(opaque) is None
    send(shell, props=properties(TAGS="paid"))

    assert shell.reply_to(opaque) is not None


def test_a_heartbeat_with_a_fingerprint_gets_no_promise_of_the_short_form(shell: Shell) -> None:
    """Law: the reply never promises the short heartbeat form of 5.x, which omits subscriptions."""
    body = fastjson.loads(heartbeat_body("alice"))
    body |= {"heartbeatFingerprint": 12_345, "withoutSub": False}

    reply = shell.call(34, {}, fastjson.dumps(body))

    assert reply.code == 0
    assert not {name for name in reply.ext if "HEART_BEAT_V2" in name or "SUB_CHANGE" in name}
    assert "orders" in shell.state.members.subscriptions("billing")
