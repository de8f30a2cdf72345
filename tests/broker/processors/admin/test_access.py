"""Access control: signatures, permissions, white lists, and the requests that change accounts."""

import hmac
from base64 import b64encode
from typing import Any

import pytest

from orderlymq_broker.core.effects import Caller
from orderlymq_broker.core.requestcontext import RequestRefused
from orderlymq_broker.processors.admin.access import needs_of, signature
from orderlymq_broker.processors.observe.status import HIDDEN
from orderlymq_broker.processors.observe.watch import LOOK_MS
from orderlymq_broker.settings import AccessSettings
from orderlymq_broker.state.admin.accessrecords import AccountSet, WhiteAddressesSet
from orderlymq_broker.state.records import Commit, GroupSet, OffsetsReset, TopicSet
from orderlymq_broker.state.topics.expansionphases import readers_of
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.codec import FrameDecoder
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.message.batch import BatchEntry, encode_batch
from orderlymq_protocol.names import UNSENDABLE_TOPICS
from tests.broker.processors.driver import ALICE, Shell, settings
from tests.broker.processors.halves import COMMIT, GROUP, end_ext, half_properties
from tests.broker.processors.requests import (
    create,
    heartbeat_body,
    lock_body,
    properties,
    pull_ext,
    send_ext,
)
from tests.protocol.golden import frames

SECRET = "12345678"
EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "


@pytest.fixture
def guarded() -> Shell:
    """A broker with access control and the accounts of a writer, a reader and an administrator."""
    access = AccessSettings(enable=True, operator_key="operator", operator_secret="operators")
    shell = Shell(settings(access=access))
    shell.lead()
    create(
        shell,
        TopicSet("orders", 1, 1),
        TopicSet("secret", 1, 1),
        GroupSet("billing"),
        AccountSet("writer", SECRET, topic_perms={"orders": "PUB"}),
        AccountSet("reader", SECRET, topic_perms={"orders": "SUB"}, group_perms={"billing": "SUB"}),
        AccountSet("boss42", SECRET, admin=True),
        AccountSet(
            "anyone",
            SECRET,
            default_topic_perm="PUB|SUB",
            default_group_perm="SUB",
            topic_perms={"secret": "DENY"},
        ),
    )
    return shell


def ask(
    shell: Shell,
    who: str,
    code: int,
    ext: dict[str, str] | None = None,
    body: bytes = b"",
    *,
    secret: str = SECRET,
    **more: Any,
) -> tuple[int, str]:
    """Send a signed request; return the code and the remark without the name of Java's exception."""
    fields = dict(ext or {})
    if who:
        fields["AccessKey"] = who
        fields["Signature"] = signature(fields, body, secret, more.get("version", 409))
    reply = shell.call(code, fields, body, **more)
    return reply.code, (reply.remark or "").removeprefix(EXCEPTION)


@pytest.mark.parametrize(
    ("ext", "body", "access_key", "expected"),
    [
        ({"topic": "TopicTest"}, b"BODY", "RocketMQ", "8k+RtuF86i3W63wHzoYk2Ccnik4="),
        ({"topic": "TACL"}, b"", "rocketmq2", "eCwHRJ551ptXJ0wqpp2Ixm8s8Mg="),
    ],
)
def test_signatures_are_rocketmqs(
    ext: dict[str, str], body: bytes, access_key: str, expected: str
) -> None:
    """Law: as in RocketMQ, a signature covers the values in the order of their names, then the body."""
    fields = {**ext, "AccessKey": access_key}

    assert signature(fields, body, SECRET, 409) == expected
    assert signature({**fields, "Signature": "x"}, body, SECRET, 409) == expected


def test_captured_signatures_are_understood() -> None:
    """Law: signatures of a Java client with RocketMQ's ACL hook are computed in the same way."""
    found = [frame for frame in frames() if frame.is_request and frame.server == "acl"]
    assert len(found) >= 3

    for frame in found:
        (command,) = FrameDecoder().receive_data(frame.wire)
        expected = signature(command.ext, command.body, SECRET, command.version)
        assert command.ext["Signature"] == expected, frame.line


@pytest.mark.parametrize(("version", "signed"), [(399, False), (400, True), (493, True)])
def test_a_query_by_the_clients_id_is_signed_as_its_version_signs(
    guarded: Shell, version: int, signed: bool
) -> None:
    """Law: the unique-key field of a query is not signed by clients up to 4.9.3 and is signed from 4.9.4 on; both are accepted."""
    query = {"topic": "orders", "key": "U", "maxNum": "1", "beginTimestamp": "0"}
    query |= {"endTimestamp": str(2**62), "AccessKey": "reader"}
    mark = {"_UNIQUE_KEY_QUERY": "true"}
    # As the client signs it, without the broker's special rule.
    text = "".join(value for _, value in sorted({**query, **(mark if signed else {})}.items()))
    stamp = b64encode(hmac.digest(SECRET.encode(), text.encode(), "sha1")).decode()

    reply = guarded.call(12, {**query, **mark, "Signature": stamp}, version=version)

    assert (reply.code, reply.remark) == (22, "can not find message, maybe time range not correct")


def test_who_may_do_something_may_do_that_only(guarded: Shell) -> None:
    """Law: a right is for one action and one topic: publishing is not consuming, and a member is no administrator."""
    send: tuple[int, dict[str, str]] = (310, send_ext("orders"))
    pull: tuple[int, dict[str, str]] = (11, pull_ext())

    assert ask(guarded, "writer", *send)[0] == 0
    assert ask(guarded, "reader", *send) == (
        1,
        "No permission for topic-orders; accessKey=reader has SUB",
    )
    assert ask(guarded, "reader", *pull)[0] == 0
    assert ask(guarded, "writer", *pull)[1].startswith("No permission for topic-orders")
    assert ask(guarded, "writer", 310, send_ext("secret"))[1] == (
        "No default permission for topic-secret; accessKey=writer has DENY"
    )
    assert ask(guarded, "anyone", 310, send_ext("orders"))[0] == 0
    assert ask(guarded, "anyone", 310, send_ext("secret"))[1].startswith("No permission")
    assert ask(guarded, "writer", 215, {"topic": "orders"})[1] == (
        "Need admin permission for request code=215, but accessKey=writer is not"
    )
    assert ask(guarded, "boss42", 215, {"topic": "orders"})[0] == 0
    assert ask(guarded, "operator", 310, send_ext("secret"), secret="operators")[0] == 0


def test_who_is_not_known_or_does_not_sign_is_refused(guarded: Shell) -> None:
    """Law: an unknown or unsigned client is refused with RocketMQ's code and words; nothing is done, and it is counted."""
    ext = send_ext("orders")

    assert ask(guarded, "", 310, ext)[1].startswith("No accessKey is configured")
    assert ask(guarded, "nobody", 310, ext)[1].startswith("No acl config for nobody")
    assert ask(guarded, "writer", 310, ext, secret="another")[1].startswith(
        "Check signature failed for accessKey=writer"
    )
    assert ask(guarded, "writer", 310, {**ext, "AccessKey": "writer"}, secret="")[0] == 1
    assert ask(guarded, "operator", 310, ext, secret="")[0] == 1
    assert guarded.core.context.counters["access_denied"] == 5
    assert not guarded.state.topics.by_name["orders"].queues


def test_a_changed_field_or_body_breaks_the_signature(guarded: Shell) -> None:
    """Law: a signature is invalid for a changed field or body, so that a request cannot be reused for something else."""
    ext = {**send_ext("orders"), "AccessKey": "writer"}
    ext["Signature"] = signature(ext, b"one", SECRET)

    assert guarded.call(310, ext, b"one").code == 0
    assert guarded.call(310, ext, b"two").code == 1
    assert guarded.call(310, {**ext, "e": "1"}, b"one").code == 1
    assert guarded.call(310, {**ext, "new": "1"}, b"one").code == 1


def test_a_refused_oneway_is_counted(guarded: Shell) -> None:
    """Law: a refused one-way request gets no answer and is counted (ACL-02)."""
    assert guarded.ask(310, send_ext("orders"), b"x", oneway=True) is None
    assert guarded.core.context.counters["access_denied"] == 1


def test_white_addresses_need_no_signature(guarded: Shell) -> None:
    """Law: clients at a global white address need neither signature nor account.

    Those at an account's own one need no signature, but get only its rights.
    """
    create(
        guarded,
        WhiteAddressesSet(("192.0.2.7", "10.0.0.*")),
        AccountSet("inside", SECRET, topic_perms={"orders": "PUB"}, white_address="172.16.0.{1,2}"),
    )
    white, near, other = (Caller(5, host, 1) for host in ("10.0.0.9", "172.16.0.2", "172.16.0.3"))

    def send(topic: str, caller: Caller, key: str = "") -> str:
        ext = {**send_ext(topic), **({"AccessKey": key} if key else {})}
        return (guarded.call(310, ext, b"x", caller=caller).remark or "").removeprefix(EXCEPTION)

    assert send("secret", white) == ""
    assert send("orders", near, "inside") == ""
    assert send("orders", other, "inside").startswith("Check signature failed")
    assert send("orders", near).startswith("No accessKey")
    assert send("secret", near, "inside").startswith("No default permission for topic-secret")
    admin = guarded.call(215, {"topic": "orders", "AccessKey": "inside"}, caller=near)
    assert "Need admin permission" in (admin.remark or "")


def test_nobody_behind_a_further_listener_is_at_a_white_address(guarded: Shell) -> None:
    """Law: white addresses do not count behind a further listener, because a node port shows clients with a node's
    address.
    """
    create(
        guarded,
        WhiteAddressesSet(("10.0.0.*", "*")),
        AccountSet("inside", SECRET, white_address="*"),
    )
    outside = Caller(5, "10.0.0.9", 1, listener="outside")
    ext = send_ext("secret")

    assert guarded.call(310, ext, b"x", caller=outside).code == 1
    assert guarded.call(310, {**ext, "AccessKey": "inside"}, b"x", caller=outside).code == 1


def test_what_each_request_needs() -> None:
    """Law: each request needs the rights of RocketMQ's ACL table; the private requests have their own rows."""

    def needs(code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> list[str]:
        found = needs_of(RemotingCommand(code, ext=ext or {}, body=body))
        return [f"{need}:{need.permission}" for need in found]

    lock = lock_body("c", 0, 1, group="g", topic="t")
    both = {"topic": "t", "consumerGroup": "g", "group": "g"}
    assert {
        code: needs(code, ext, body)
        for code, ext, body in [
            (10, {"topic": "t"}, b""),
            (310, {"b": "t"}, b""),
            (320, {"b": "t"}, b""),
            (11, both, b""),
            (361, both, b""),
            (15, both, b""),
            (36, both, b""),
            (38, both, b""),
            (12, both, b""),
            (222, both, b""),
            (223, both, b""),
            (20508, both, b""),
            (20510, both, b""),
            (20514, both, b""),
            (34, {}, heartbeat_body("c", "g", ("t",))),
            (41, {}, lock),
            (42, {}, lock),
            (400, {}, fastjson.dumps({"topic": "t", "consumerGroup": "g", "clientId": "c"})),
            (29, both, b""),
        ]
    } == {
        10: ["topic-t:1"],
        310: ["topic-t:1"],
        320: ["topic-t:1"],
        11: ["topic-t:2", "group-g:2"],
        361: ["topic-t:2", "group-g:2"],
        15: ["topic-t:2", "group-g:2"],
        36: ["group-g:2"],
        38: ["group-g:2"],
        12: ["topic-t:2"],
        222: ["topic-t:2", "group-g:2"],
        223: ["group-g:2"],
        20508: ["group-g:2"],
        20510: ["group-g:2"],
        20514: ["group-g:2"],
        34: ["group-g:2", "topic-t:2", "group-g:2"],
        41: ["group-g:2", "topic-t:2"],
        42: ["group-g:2"],
        400: ["group-g:2", "topic-t:2"],
        29: [],
    }
    assert needs(310, {"b": "%RETRY%g"}) == ["group-g:2"]
    assert needs(310, {"b": "%RETRY%"}) == ["topic-%RETRY%:1"]  # Of no group.
    assert needs(35, {"clientID": "c", "producerGroup": "p"}) == []
    assert needs(41, {}, lock_body("c", 0, group="g", topic="%RETRY%g")) == ["group-g:2"] * 2


def test_who_may_not_read_a_topic_makes_its_group_no_reader_of_it(guarded: Shell) -> None:
    """Law: only an account that may read a topic can lock or commit there, because an expansion waits for every reader."""
    create(
        guarded,
        TopicSet("%RETRY%billing", 1, 1),
        GroupSet("others"),
        OffsetsReset((Commit("others", "secret", 0, 0), Commit("others", "orders", 0, 0))),
    )
    clone = {"srcGroup": "others", "destGroup": "billing", "offline": "true"}
    refusal = (1, "No default permission for topic-secret; accessKey=reader has DENY")

    assert ask(guarded, "reader", 41, {}, lock_body("c", 0, topic="secret")) == refusal
    assert ask(guarded, "reader", 314, {**clone, "topic": "secret"}) == refusal
    assert ask(guarded, "reader", 314, clone) == refusal
    assert readers_of(guarded.state, "secret") == ["others"]
    assert ask(guarded, "reader", 42, {}, lock_body("c", 0, topic="secret"))[0] == 0
    for topic in ("orders", "%RETRY%billing"):
        assert ask(guarded, "reader", 41, {}, lock_body("c", 0, topic=topic))[0] == 0
    assert ask(guarded, "reader", 314, {**clone, "topic": "orders"})[0] == 0
    assert readers_of(guarded.state, "orders") == ["billing", "others"]


def test_keys_and_ids_in_a_leaders_findings_are_shown_to_their_readers(guarded: Shell) -> None:
    """Law: keys and message ids in a leader's findings are shown only to accounts that may consume for that group;
    others see the numbers.
    """
    create(guarded, TopicSet("%DLQ%billing", 1, 1))
    letter = send_ext("%DLQ%billing", properties(UNIQ_KEY="ID1", __SHARDINGKEY="customer-7"))
    assert ask(guarded, "boss42", 310, letter)[0] == 0
    guarded.pass_time(2 * LOOK_MS, step=1_000)

    def failing(who: str, secret: str = SECRET) -> list[tuple[str, str]]:
        fields = {"AccessKey": who}
        fields["Signature"] = signature(fields, b"", secret, 409)
        reply = guarded.call(20500, fields)
        rows = fastjson.loads(reply.body)["watch"]["failing"]
        return [(row["messageId"], row["key"]) for row in rows]

    assert failing("reader") == failing("boss42") == [("ID1", "customer-7")]
    assert failing("operator", "operators") == [("ID1", "customer-7")]
    assert failing("writer") == [(HIDDEN, HIDDEN)]


@pytest.mark.parametrize("topic", sorted(UNSENDABLE_TOPICS))
def test_a_default_right_is_none_to_topics_where_messages_of_all_wait(
    guarded: Shell, topic: str
) -> None:
    """Law: a default right does not cover the broker's own topics in which messages of all topics wait."""
    named = AccountSet("keeper", SECRET, topic_perms={topic: "SUB"}, default_group_perm="SUB")
    create(guarded, named)
    requests: list[tuple[int, dict[str, str], bytes]] = [
        (11, pull_ext(topic=topic), b""),
        (12, {"topic": topic, "key": "k"}, b""),
        (34, {}, heartbeat_body("c", "billing", (topic,))),
    ]

    for code, ext, body in requests:
        assert ask(guarded, "anyone", code, ext, body)[1].startswith(
            f"No permission for topic-{topic}"
        )
        assert "permission" not in ask(guarded, "keeper", code, ext, body)[1]
        assert "permission" not in ask(guarded, "boss42", code, ext, body)[1]


def test_a_waiting_message_is_not_read_by_its_place(guarded: Shell) -> None:
    """Law: viewing a message by its place (33) needs a right on the topic in which it waits."""
    later = send_ext("secret", properties(DELAY="3"))
    assert ask(guarded, "boss42", 310, later, b"s") == (0, "")

    assert ask(guarded, "anyone", 33, {"offset": "0"})[1].startswith(
        "No permission for topic-SCHEDULE_TOPIC_XXXX"
    )


def test_dead_letters_are_their_groups(guarded: Shell) -> None:
    """Law: dead letters may be read by consumers of their group and by accounts with that topic by name, not by default."""
    dead, group = "%DLQ%billing", {"tools": "SUB"}
    create(
        guarded,
        TopicSet(dead, 1, 1),
        AccountSet("named1", SECRET, topic_perms={dead: "SUB"}, group_perms=group),
        AccountSet("denied", SECRET, topic_perms={dead: "DENY"}, default_group_perm="SUB"),
        AccountSet("default", SECRET, default_topic_perm="PUB|SUB", group_perms=group),
    )

    def refusal(who: str, group: str = "tools") -> str:
        return ask(guarded, who, 11, pull_ext(group, dead))[1]

    assert "permission" not in refusal("reader", "billing") + refusal("named1")
    assert refusal("denied").startswith(f"No permission for topic-{dead}")
    assert refusal("default").startswith("No default permission for group-billing")


def test_who_hands_a_message_back_must_be_able_to_read_it(guarded: Shell) -> None:
    """Law: only an account that may read a message can hand it back,
    because the copy goes to a retry topic that it may pull.
    """
    secret = ask(guarded, "boss42", 310, send_ext("secret"), b"s" * 100)
    mine = guarded.state.physical_end
    orders = ask(guarded, "boss42", 310, send_ext("orders"), b"o")
    assert (secret[0], orders[0]) == (0, 0)
    back = {"group": "billing", "delayLevel": "1"}

    assert ask(guarded, "reader", 36, {**back, "offset": "0"})[1].startswith(
        "No default permission for topic-secret"
    )
    assert ask(guarded, "reader", 36, {**back, "offset": str(mine)})[0] == 0


def test_who_ends_a_transaction_must_be_able_to_write_its_topic(guarded: Shell) -> None:
    """Law: only an account that may write a topic can end its transactions;
    guessing a half message's place gives no right.
    """
    half = send_ext("orders", half_properties(), a=GROUP, f=4)
    assert ask(guarded, "writer", 310, half, b"half")[0] == 0
    (offset,) = guarded.state.transactions.open
    end = end_ext((offset, guarded.state.transactions.open[offset].opened.physical), COMMIT)

    assert ask(guarded, "reader", 37, end)[1].startswith("No permission for topic-orders")
    assert ask(guarded, "writer", 37, end)[0] == 0


def test_traces_may_always_be_sent(guarded: Shell) -> None:
    """Law: traces may be sent without a permission."""
    create(guarded, TopicSet("RMQ_SYS_TRACE_TOPIC", 1, 1))

    assert ask(guarded, "reader", 310, send_ext("RMQ_SYS_TRACE_TOPIC"), b"Pub")[0] == 0
    assert ask(guarded, "reader", 11, pull_ext(topic="RMQ_SYS_TRACE_TOPIC"))[0] == 1


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        (310, {"i": half_properties("u1")}),
        (310, {"i": properties(DELAY="18")}),
        (310, {"i": properties(TIMER_DELAY_SEC="86400")}),
        (320, {"i": properties(DELAY="18")}),
        (370, {"topic": "RMQ_SYS_TRACE_TOPIC", "recallHandle": "x"}),
        (325, {}),
        (20515, {"topic": "RMQ_SYS_TRACE_TOPIC", "queueId": "0"}),
    ],
)
def test_who_may_write_nothing_but_traces_keeps_nothing_waiting(
    guarded: Shell, code: int, changed: dict[str, str]
) -> None:
    """Law: an account without a right to a topic cannot leave delayed or half messages,
    which would count against common limits.
    """
    create(guarded, TopicSet("RMQ_SYS_TRACE_TOPIC", 1, 1))
    body = encode_batch([BatchEntry(0, b"Pub", b"")]) if code == 320 else b"Pub"
    ext = {**send_ext("RMQ_SYS_TRACE_TOPIC"), **changed}
    appended = guarded.state.physical_end

    refused, remark = ask(guarded, "reader", code, ext, body)

    assert (refused, "ermission for topic-RMQ_SYS_TRACE_TOPIC" in remark) == (1, True)
    assert guarded.state.physical_end == appended
    assert guarded.core.context.counters["access_denied"] == 1
    if code in (310, 320):
        assert ask(guarded, "anyone", code, ext, body)[0] == 0


def test_who_answers_a_request_needs_no_right_on_the_reply_topic(guarded: Shell) -> None:
    """Law: replies (324, 325) to the reply topic need no right; other sends there, and replies to other topics, do."""
    asked = properties(MSG_TYPE="reply", REPLY_TO_CLIENT="asker", CORRELATION_ID="c-1")

    def refusal(code: int, topic: str) -> str:
        return ask(guarded, "reader", code, send_ext(topic, asked), b"pong")[1].split(";")[0]

    long_form = {"producerGroup": "p", "topic": "shop_REPLY_TOPIC", "properties": asked}
    refused = "No default permission for topic-{}"
    assert "permission" not in refusal(325, "shop_REPLY_TOPIC")
    assert "permission" not in ask(guarded, "reader", 324, long_form, b"pong")[1]
    assert refusal(310, "shop_REPLY_TOPIC") == refused.format("shop_REPLY_TOPIC")
    assert refusal(325, "other_REPLY_TOPIC") == refused.format("other_REPLY_TOPIC")


# -- commands ------------------------------------------------------------------------------------


def test_an_account_is_made_changed_and_deleted_while_the_broker_runs(guarded: Shell) -> None:
    """Law: accounts are created, changed and deleted with 50 and 51; a change counts immediately and survives a restart."""
    account = {"accessKey": "newone", "secretKey": "newone-secret", "topicPerms": "orders=PUB"}

    assert ask(guarded, "boss42", 50, account)[0] == 0
    assert ask(guarded, "newone", 310, send_ext("orders"), secret="newone-secret")[0] == 0
    change = {"accessKey": "newone", "topicPerms": "orders=SUB, a=PUB|SUB", "admin": "false"}
    assert ask(guarded, "boss42", 50, change)[0] == 0
    assert ask(guarded, "newone", 310, send_ext("orders"), secret="newone-secret")[0] == 1
    again = guarded.restart()
    assert again.state.access.accounts["newone"] == AccountSet(
        "newone", "newone-secret", topic_perms={"orders": "SUB", "a": "PUB|SUB"}
    )
    assert ask(guarded, "boss42", 51, {"accessKey": "newone"})[0] == 0
    assert ask(guarded, "newone", 29, {}, secret="newone-secret")[1].startswith("No acl config")
    guarded.replay()


def test_a_member_cannot_make_accounts(guarded: Shell) -> None:
    """Law: only an administrator can change accounts, topics, groups and settings, one by one or in lists."""
    for code, ext in (
        (50, {"accessKey": "writer", "admin": "true"}),
        (51, {"accessKey": "boss42"}),
        (53, {"globalWhiteAddrs": "*"}),
        *((code, {}) for code in (17, 18, 25, 200, 207, 215, 225)),
    ):
        assert ask(guarded, "writer", code, ext)[1].startswith("Need admin permission")


@pytest.mark.parametrize(
    ("code", "ext", "expected", "reason"),
    [
        (50, {"accessKey": "abc", "secretKey": SECRET}, 209, "at least 6"),
        (50, {"accessKey": "newone"}, 209, "at least 6"),
        (50, {"accessKey": "n" * 128, "secretKey": SECRET}, 209, "127 are allowed"),
        (50, {"accessKey": "newone", "secretKey": SECRET, "defaultTopicPerm": "ALL"}, 209, "'ALL'"),
        (50, {"accessKey": "newone", "secretKey": SECRET, "topicPerms": "orders"}, 209, "name=PUB"),
        (50, {"accessKey": "operator", "secretKey": SECRET}, 209, "another key"),
        (
            50,
            {"accessKey": "newone", "secretKey": SECRET, "whiteRemoteAddress": "10.0"},
            209,
            "4 are needed",
        ),
        (51, {"accessKey": "nobody"}, 210, "no such account"),
        (53, {"globalWhiteAddrs": "10.0.0.1,10.0"}, 211, "4 are needed"),
        # Every request is compared with each of these addresses.
        (
            53,
            {"globalWhiteAddrs": ",".join(f"10.0.0.{number}" for number in range(101))},
            211,
            "write ranges",
        ),
    ],
)
def test_a_wrong_account_is_refused(
    guarded: Shell, code: int, ext: dict[str, str], expected: int, reason: str
) -> None:
    """Law: a wrong account is refused with RocketMQ's code, and the remark does not contain the secret."""
    found, remark = ask(guarded, "boss42", code, ext)

    assert (found, reason in remark, SECRET in remark) == (expected, True, False)


def test_what_is_shown_of_accounts_holds_no_secret(guarded: Shell) -> None:
    """Law: no answer, log or text shows a secret; 52 shows versions, and permissions to our own tools."""
    fields = {"orderlymq": "true", "AccessKey": "boss42"}
    fields["Signature"] = signature(fields, b"", SECRET)

    reply = guarded.call(RequestCode.GET_BROKER_CLUSTER_ACL_INFO, fields)

    assert (reply.code, reply.ext["brokerName"], reply.ext["clusterName"]) == (
        0,
        "broker-a",
        "shop",
    )
    assert b'"accessKey":"writer"' in reply.body
    assert SECRET.encode() not in reply.body
    assert SECRET not in repr(guarded.state.access.accounts)
    assert "operators" not in repr(guarded.settings)


def test_who_waits_is_judged_again_when_permissions_change(guarded: Shell) -> None:
    """Law: a held pull is checked again when it is answered; without the permission it gets no message."""
    ext = {**pull_ext(sysFlag=6), "AccessKey": "reader"}
    ext["Signature"] = signature(ext, b"", SECRET)
    opaque = guarded.submit(11, ext)
    assert guarded.reply_to(opaque) is None

    ask(guarded, "boss42", 50, {"accessKey": "reader", "topicPerms": "orders=DENY"})

    reply = guarded.reply_to(opaque)
    assert reply is not None
    assert reply.code == 20
    assert guarded.call(11, ext).code == 1


def test_a_replica_that_does_not_lead_says_that_and_judges_nobody() -> None:
    """Law: a replica that does not lead refuses with that reason instead of judging accounts that it may not know yet.

    Requests that it answers itself need a known account.
    """
    access = AccessSettings(enable=True, operator_key="operator", operator_secret="operators")
    behind = Shell(settings(access=access)).follow()
    status = RequestCode.ORDERLYMQ_GROUP_STATUS

    assert "does not lead" in ask(behind, "writer", 310, send_ext("orders"))[1]
    assert ask(behind, "writer", status, {"group": "billing"})[1].startswith("No acl config for")


def test_a_body_that_cannot_be_read_is_refused_where_rights_are_judged(guarded: Shell) -> None:
    """Law: if the rights of a request depend on a body that cannot be read, the request is refused."""
    ext = {"AccessKey": "reader"}
    signed = {**ext, "Signature": signature(ext, b"?", "reader-secret")}
    request = RemotingCommand(400, ext=signed, body=b"?")

    with pytest.raises(RequestRefused):
        guarded.core.access.admit(request, ALICE, guarded.now)


def test_without_access_control_nothing_is_asked() -> None:
    """Law: without access control, the default, signatures are ignored."""
    shell = Shell().lead()
    create(shell, TopicSet("orders", 1, 1))

    reply = shell.call(
        310, {**send_ext("orders"), "AccessKey": "x", "Signature": "y"}, b"x", caller=ALICE
    )

    assert reply.code == 0
