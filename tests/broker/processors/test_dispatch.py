"""The core as a whole: dispatch of requests, leadership, status."""

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from orderlymq_broker.processors.observe.rates import BROKER_PUT_NUMS
from orderlymq_broker.state.records import GroupSet, TopicSet
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.codes import SerializeType
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.unsupported import remark_of
from tests.broker.processors.driver import ALICE, Shell, settings
from tests.broker.processors.requests import create, heartbeat_body, lock_body, send, send_ext

SERVED = [
    *(10, 11, 12, 14, 15, 29, 30, 31, 32, 33, 34, 35, 36, 38, 41, 42, 46, 310, 320, 361),
    *(20500, 20501, 20502),
]


def test_these_codes_are_served(shell: Shell) -> None:
    """Law: the core serves the codes of the data path and the private ones; administration adds its own."""
    assert set(SERVED) <= set(shell.core.codes)


@pytest.mark.parametrize("code", [0, 13, 22, 401, 200_050, 99_999, -1])
def test_an_unknown_code_is_answered_with_3(shell: Shell, code: int) -> None:
    """Law: an unknown code gets the code 3 and the remark on which clients base fallbacks; a one-way request gets nothing."""
    reply = shell.call(code)

    assert (reply.code, reply.remark) == (3, remark_of(code))
    assert (reply.remark or "").startswith(f" request type {code} not supported")
    assert shell.ask(code, oneway=True) is None


@pytest.mark.parametrize("code", [54, 902, 1013, 5001])
def test_what_rocketmq_serves_and_nobody_here_is_refused_with_the_reason(
    shell: Shell, code: int
) -> None:
    """Law: a code that only RocketMQ serves is refused with the reason, which its tools print."""
    assert (shell.call(code).remark or "").startswith(f" request type {code} not supported: ")


def test_a_reply_uses_the_header_form_of_its_request(shell: Shell) -> None:
    """Law: a reply uses the header form of its request, because a client may read no other."""
    command = RemotingCommand(38, 7, ext={"consumerGroup": "g"})
    command.serialize_type = SerializeType.ROCKETMQ

    shell.run(shell.core.handle(command, ALICE, shell.now))

    assert shell.sent[-1].command.serialize_type is SerializeType.ROCKETMQ


def test_a_fresh_broker_has_rocketmqs_system_topics_and_groups() -> None:
    """Law: the first leader creates RocketMQ's system topics and groups once; later leaders add nothing."""
    shell = Shell().lead()
    queues = {name: t.config.write_queues for name, t in shell.state.topics.by_name.items()}

    assert queues == {
        "SELF_TEST_TOPIC": 1,
        "TBW102": 8,
        "BenchmarkTest": 1024,
        "shop": 16,
        "broker-a": 1,
        "OFFSET_MOVED_EVENT": 1,
        "SCHEDULE_TOPIC_XXXX": 18,
        "rmq_sys_wheel_timer": 1,
        "shop_REPLY_TOPIC": 1,
        "RMQ_SYS_TRANS_HALF_TOPIC": 1,
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": 1,
        "TRANS_CHECK_MAX_TIME_TOPIC": 1,
    }
    assert shell.state.topics.by_name["TBW102"].config.perm == 7
    assert len(shell.state.groups.by_name) == 8
    assert Shell(settings(auto_create_topic=False)).lead().state.topics.get("TBW102") is None
    version, entries = shell.state.topics_version, len(shell.log)
    shell.follow()
    shell.lead()
    assert (shell.state.topics_version, len(shell.log)) == (version, entries)


@pytest.mark.parametrize(
    ("code", "ext", "body", "expected"),
    [
        (310, send_ext("orders"), b"x", 14),
        (10, {}, b"", 14),
        (320, send_ext("orders"), b"", 14),
        (11, {}, b"", 1),
        (361, {}, b"", 1),
        (36, {}, b"", 1),
        (15, {}, b"", 1),
        (30, {}, b"", 1),
        (29, {}, b"", 1),
        (34, {}, heartbeat_body("alice"), 0),
        (41, {}, lock_body("alice", 0), 1),
        (42, {}, lock_body("alice", 0), 0),
        (35, {"clientID": "alice", "consumerGroup": "g"}, b"", 0),
        (20500, {}, b"", 0),
        (20502, {"clientId": "alice"}, b"", 1),
        (9999, {}, b"", 3),
    ],
)
def test_a_replica_that_does_not_lead_answers_what_clients_can_stand(
    code: int, ext: dict[str, str], body: bytes, expected: int
) -> None:
    """Law: a replica that does not lead refuses sends and reads with codes that clients handle, and proposes nothing."""
    shell = Shell()
    shell.follow()
    shell.core.context.leader_known = True

    assert shell.call(code, ext, body).code == expected
    assert shell.proposed == []


def test_a_send_that_was_under_way_is_answered_by_its_fate_not_by_the_role(shell: Shell) -> None:
    """Law: a send is answered by its own outcome: if the next leader commits it,
    it is a success although this replica follows now.
    """
    create(shell, TopicSet("orders", 1, 1))
    opaque = shell.submit(310, send_ext("orders"), b"x")
    shell.core.proposals_lost()
    shell.follow()

    shell.settle()

    reply = shell.reply_to(opaque)
    assert reply is not None
    assert (reply.code, reply.ext["queueOffset"]) == (0, "0")
    shell.lead()
    assert send(shell).ext["queueOffset"] == "1"


def test_a_send_that_waits_for_its_topic_is_refused_when_leadership_goes(shell: Shell) -> None:
    """Law: a send that waits for its topic's creation is refused with 14 when leadership ends;
    its message was never stored.
    """
    opaque = shell.submit(310, send_ext("fresh"), b"x")
    shell.follow()
    shell.settle()

    reply = shell.reply_to(opaque)
    assert reply is not None
    assert (reply.code, shell.state.physical_end) == (14, 0)


def test_lost_creations_answer_what_a_follower_would(shell: Shell) -> None:
    """Law: a lost topic creation is answered as by a follower."""
    opaque = shell.submit(310, send_ext("fresh"), b"x")
    shell.follow()
    shell.lose_proposals()

    reply = shell.reply_to(opaque)
    assert reply is not None
    assert reply.code == 14


def test_who_leads_no_more_has_no_rates(shell: Shell) -> None:
    """Law: a replica that stops leading has no rates; its counters count each message once when it leads again."""
    create(shell, TopicSet("orders", 1, 1))
    shell.pass_time(1_000)
    for _ in range(50):
        send(shell)
    shell.pass_time(1_000)
    assert fastjson.loads(shell.call(20500).body)["rates"]["messages_in"] == 50

    shell.follow()
    assert set(fastjson.loads(shell.call(20500).body)["rates"].values()) == {0.0}

    shell.lead()
    shell.pass_time(2_000)
    series = shell.core.administration.figures.get(BROKER_PUT_NUMS)
    assert series is not None
    assert series.total == 50


def test_the_status_shows_rates_counters_and_what_the_shell_knows(shell: Shell) -> None:
    """Law: the status is one JSON document of the shell's and the core's parts."""
    create(shell, TopicSet("orders", 1, 1), GroupSet("billing"))
    shell.core.set_environment(0.5, {"role": "leader"})
    shell.pass_time(1_000)
    for _ in range(50):
        send(shell)
    shell.pass_time(1_000)

    status = fastjson.loads(shell.call(20500).body)

    assert (status["role"], status["leading"], status["applied"]) == (
        "leader",
        True,
        shell.state.applied_index,
    )
    assert status["rates"]["messages_in"] == 50.0
    assert status["counters"]["messages_in"] == 50


@hypothesis_settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(SERVED),
    st.dictionaries(
        st.sampled_from(
            [
                *"abcdefghijlm",
                *("topic", "queueId", "consumerGroup", "commitOffset", "offset", "queueOffset"),
                *("maxMsgNums", "sysFlag", "suspendTimeoutMillis", "subVersion", "subscription"),
                *("group", "delayLevel", "clientID", "clientId", "timestamp", "key", "maxNum"),
                *("beginTimestamp", "endTimestamp", "omqEpoch", "properties"),
            ]
        ),
        st.one_of(
            st.sampled_from(
                ["orders", "billing", "0", "1", "-1", "true", "9" * 30, "", "%RETRY%x"]
            ),
            st.text(max_size=8),
        ),
    ),
    st.one_of(st.binary(max_size=40), st.just(b"{}"), st.just(b"[]"), st.just(b'{"clientID":1}')),
    st.booleans(),
)
def test_no_request_makes_the_core_fail(
    code: int, ext: dict[str, str], body: bytes, oneway: bool
) -> None:
    """Law: any fields and bodies get an answer (none for one-way requests) and leave a consistent state."""
    shell = Shell().lead()
    create(shell, TopicSet("orders", 2, 2, order=True), GroupSet("billing"))

    shell.ask(code, ext, body, oneway=oneway)
    shell.pass_time(300)

    assert not (oneway and [each for each in shell.sent if each.command.is_response])
    shell.state.check_invariants()
