"""Consumer offsets: commits (15), queries (14) and resets."""

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from orderlymq_broker.core.effects import Caller, Propose
from orderlymq_broker.core.longwalks import WALK_STEP_MAX
from orderlymq_broker.core.requestcontext import is_misread
from orderlymq_broker.processors.groups.offsets import OFFSETS_MAX, RESET_ECHO_MS
from orderlymq_broker.settings import AccessSettings
from orderlymq_broker.state.groups.lockrecords import LocksReleased, LocksRequested
from orderlymq_broker.state.records import (
    Commit,
    GroupDeleted,
    GroupSet,
    OffsetsCommitted,
    QueueFloor,
    RetentionAdvanced,
    TopicDeleted,
    TopicSet,
)
from orderlymq_protocol.codes import LanguageCode, RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from tests.broker.processors.driver import ALICE, BOB, TOOL, Shell, settings
from tests.broker.processors.requests import (
    commit_ext,
    create,
    heartbeat,
    lock,
    offset_of,
    pull_ext,
    send,
)

QUERY = {"consumerGroup": "billing", "topic": "orders", "queueId": "0"}


def filled(shell: Shell, messages: int = 5) -> Shell:
    create(shell, TopicSet("orders", 2, 2), GroupSet("billing"))
    for _ in range(messages):
        send(shell)
    return shell


def commit(shell: Shell, offset: int, **more: str) -> None:
    """Commit as a consumer does; the next tick writes it."""
    heartbeat(shell, "c1")
    assert shell.ask(15, commit_ext(offset), oneway=True) is None
    shell.pass_time(100)


def test_commits_move_forward_only(shell: Shell) -> None:
    """Law: a consumer's lower commit is ignored."""
    filled(shell)

    for offset in (1, 4, 2):
        commit(shell, offset)

    assert offset_of(shell) == 4
    assert shell.core.context.counters["commits_backwards"] == 1


def test_many_commits_of_a_turn_are_one_record(shell: Shell) -> None:
    """Law: all commits of a turn are one record."""
    filled(shell)
    for queue in (0, 1):
        send(shell, e=queue)
    heartbeat(shell, "c1")
    before = len(shell.proposed)
    for offset in (1, 2, 3):
        shell.submit(15, commit_ext(offset), oneway=True)
    shell.submit(15, commit_ext(1, queue=1), oneway=True)
    assert shell.pending == []

    shell.pass_time(100)

    assert shell.proposed[before:] == [
        OffsetsCommitted((Commit("billing", "orders", 0, 3), Commit("billing", "orders", 1, 1)))
    ]


def test_a_commit_with_a_reply_is_answered_when_it_is_stored(shell: Shell) -> None:
    """Law: a commit with a reply is answered when it is applied."""
    filled(shell)
    heartbeat(shell, "c1")

    opaque = shell.submit(15, commit_ext(3))
    assert (shell.reply_to(opaque), offset_of(shell)) == (None, None)
    shell.settle()

    reply = shell.reply_to(opaque)
    assert reply is not None
    assert (reply.code, offset_of(shell)) == (0, 3)


def test_a_commit_that_a_new_lock_overtakes_in_the_log_is_refused(shell: Shell) -> None:
    """Law: a commit that is applied behind a new lock is refused, so that no client believes it is stored."""
    create(shell, TopicSet("orders", 4, 4, order=True), GroupSet("billing", orderly=True))
    heartbeat(shell, "one@1")
    lock(shell, "one@1", 0)
    send(shell)
    shell.run(
        [
            Propose([LocksReleased("billing", "one@1", None)]),
            Propose([LocksRequested("billing", "two@2", "127.0.0.1:2", 30_000, (("orders", 0),))]),
        ]
    )

    reply = shell.call(15, commit_ext(1))

    assert reply.code == 1
    assert "was not stored" in (reply.remark or "")
    assert shell.state.offsets.get("billing", "orders", 0) is None


@pytest.mark.parametrize(
    ("ext", "code"),
    [
        (commit_ext(9), 1),
        (commit_ext(-1), 1),
        (commit_ext(1, topic="unknown"), 17),
        (commit_ext(1, queue=7), 17),
        (commit_ext(1, queue=-1), 17),
        (commit_ext(1, group="a/b"), 1),
        ({"consumerGroup": "g"}, 1),
    ],
)
def test_a_commit_that_makes_no_sense_is_refused(
    shell: Shell, ext: dict[str, str], code: int
) -> None:
    """Law: a senseless commit, such as one beyond the end, is refused; it would skip later messages."""
    filled(shell)
    assert shell.call(15, ext, caller=TOOL).code == code
    heartbeat(shell, "c1")

    assert shell.call(15, ext).code == code
    assert shell.ask(15, ext, oneway=True) is None
    assert offset_of(shell) is None


def test_a_question_is_answered_from_what_survives_a_crash(shell: Shell) -> None:
    """Law: a query first writes the gathered commits, so that its answer survives a crash."""
    filled(shell)
    heartbeat(shell, "c1")
    shell.submit(15, commit_ext(3), oneway=True)

    opaque = shell.submit(14, QUERY)
    assert shell.reply_to(opaque) is None
    shell.settle()

    reply = shell.reply_to(opaque)
    assert reply is not None
    assert reply.ext == {"offset": "3"}
    assert offset_of(shell.restart()) == 3


def test_never_committed_is_zero_on_a_young_queue_and_22_on_an_old_one(shell: Shell) -> None:
    """Law: without a commit the answer is 0 for a queue that still has its first message, else 22;
    5.x may ask for 22 in both cases.
    """
    filled(shell)

    assert shell.call(14, QUERY).ext == {"offset": "0"}
    assert shell.call(14, {**QUERY, "setZeroIfNotFound": "false"}).code == 22
    create(shell, RetentionAdvanced((QueueFloor(shell.state.topics.by_name["orders"].id, 0, 2),)))
    refused = shell.call(14, QUERY)

    assert (refused.code, refused.remark) == (
        22,
        "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
    )


@pytest.mark.parametrize("leader_known", [True, False])
def test_without_leadership_a_question_gets_no_error_code(shell: Shell, leader_known: bool) -> None:
    """Law: a replica that does not lead closes the connection on a query, because clients up to 4.9 misread error codes."""
    filled(shell)
    shell.follow(leader_known=leader_known)

    assert shell.ask(14, QUERY) is None
    assert [each.connection for each in shell.closed] == [ALICE.connection]
    assert shell.ask(15, commit_ext(3), oneway=True) is None
    shell.pass_time(200)
    assert offset_of(shell) is None


def test_a_question_that_is_refused_gets_no_error_code_but_22(shell: Shell) -> None:
    """Law: a refused query closes the connection, because Java up to 4.9 and C++ read every code as "never committed"."""
    filled(shell)

    reply = shell.call(14, {**QUERY, "queueId": "none"})
    assert (reply.code, shell.closed) == (ResponseCode.SYSTEM_ERROR, [])
    access = AccessSettings(enable=True, operator_key="admin", operator_secret="12345678")
    guarded = Shell(settings(access=access)).lead()
    assert guarded.ask(14, {**QUERY, "AccessKey": "deleted", "Signature": "none"}) is None
    assert [each.connection for each in guarded.closed] == [ALICE.connection]


@pytest.mark.parametrize("language", LanguageCode)
def test_only_the_sdk_learns_that_it_lacks_the_right_to_ask(language: LanguageCode) -> None:
    """Law: only our SDK gets the code that it lacks the right to ask; others get no code but 22."""
    asked = RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, language=language, ext=dict(QUERY))

    assert is_misread(asked, ResponseCode.NO_PERMISSION) is (language != LanguageCode.PYTHON)
    assert is_misread(asked, ResponseCode.SYSTEM_ERROR)
    assert not is_misread(asked, ResponseCode.QUERY_NOT_FOUND)


@pytest.mark.parametrize(
    ("language", "version", "misread"),
    [
        (LanguageCode.JAVA, 0, True),
        (LanguageCode.JAVA, 409, True),  # 4.9.8
        (LanguageCode.JAVA, 413, True),  # 5.0.0, and its preview, which misreads codes.
        (LanguageCode.JAVA, 433, False),  # 5.1.0
        (LanguageCode.CPP, 477, True),
        (LanguageCode.GO, 477, True),
    ],
)
def test_java_since_5_1_learns_why_its_question_is_refused(
    language: LanguageCode, version: int, *, misread: bool
) -> None:
    """Law: Java from 5.1 on gets the code of the refusal, and its connection stays."""
    asked = RemotingCommand(14, ext=dict(QUERY), language=language, version=version)

    for code in (ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR):
        assert is_misread(asked, code) is misread


def test_before_the_first_leader_is_ready_questions_get_no_answer() -> None:
    """Law: before the first leader has created its topics, queries close the connection."""
    shell = Shell()
    shell.run(shell.core.become_leader(1, 0, shell.now))

    shell.submit(14, QUERY)

    assert [each.connection for each in shell.closed] == [ALICE.connection]
    shell.settle()
    assert shell.call(14, QUERY).code == 0


def test_a_tool_may_set_the_offset_of_a_group_with_nobody_online(shell: Shell) -> None:
    """Law: a tool may set an offset, also backwards, only if no member is online."""
    filled(shell)
    commit(shell, 4)
    assert shell.call(15, commit_ext(1), caller=TOOL).code == 0
    assert offset_of(shell) == 4

    shell.call(35, {"clientID": "c1", "consumerGroup": "billing"})
    assert shell.call(15, commit_ext(1), caller=TOOL).code == 0

    assert offset_of(shell) == 1


def test_a_client_that_was_asked_to_reset_may_repeat_the_reset(shell: Shell) -> None:
    """Law: after a reset, a client may commit the lower offset for a quarter of an hour."""
    filled(shell)
    commit(shell, 4)
    commit_of = Commit("billing", "orders", 0, 1)
    create(shell, *shell.core.committer.reset([commit_of], shell.now))
    assert offset_of(shell) == 1

    commit(shell, 5)  # A commit that was on its way.
    commit(shell, 2)
    assert offset_of(shell) == 5
    commit(shell, 1)
    assert offset_of(shell) == 1
    commit(shell, 3)
    shell.monotonic_ms += RESET_ECHO_MS
    commit(shell, 1)

    assert offset_of(shell) == 3


def test_a_java_client_repeats_the_reset_of_its_64th_broker_group_after_ten_minutes(
    shell: Shell,
) -> None:
    """Law: a Java client's repeat of a reset is accepted even ten minutes later; it pauses 10 s per broker group, here 64."""
    filled(shell, 10)
    commit(shell, 9)
    create(shell, *shell.core.committer.reset([Commit("billing", "orders", 0, 1)], shell.now))

    for _ in range(64):
        commit(shell, 9)
        shell.monotonic_ms += 10_000
    commit(shell, 1)

    assert offset_of(shell) == 1


def test_an_offset_is_read_behind_the_commits_that_came_before(shell: Shell) -> None:
    """Law: a query is answered behind all commits that came before it, also those without a reply."""
    filled(shell)
    commit(shell, 4)
    create(shell, *shell.core.committer.reset([Commit("billing", "orders", 0, 1)], shell.now))
    commit(shell, 4)  # A commit that was on its way.

    shell.submit(15, commit_ext(1), oneway=True)
    after_reset = shell.submit(14, QUERY)
    shell.settle()
    shell.submit(15, commit_ext(3), oneway=True)
    shell.run(shell.core.tick(shell.now))
    after_commit = shell.submit(14, QUERY)
    shell.settle()

    answers = [shell.reply_to(opaque) for opaque in (after_reset, after_commit)]
    assert [each and each.ext["offset"] for each in answers] == ["1", "3"]
    assert not shell.core.context.entries.pending_removals


@pytest.mark.parametrize("oneway", [True, False])
def test_a_pull_consumer_may_go_back_where_no_order_is_kept(shell: Shell, oneway: bool) -> None:
    """Law: a pull consumer of an unordered group may commit backwards, because its program may seek;
    a push consumer may not.
    """
    filled(shell)
    heartbeat(shell, "c1", caller=ALICE, consume_type="CONSUME_ACTIVELY")
    heartbeat(shell, "c2", caller=BOB)

    def commits(*offsets: int, caller: Caller = ALICE) -> int | None:
        for offset in offsets:
            shell.ask(15, commit_ext(offset), caller=caller, oneway=oneway)
        shell.pass_time(200)
        return offset_of(shell)

    assert [commits(4), commits(1), commits(3, 2), commits(5, 4)] == [4, 1, 2, 4]
    assert commits(1, caller=BOB) == 4
    create(shell, *shell.core.committer.reset([Commit("billing", "orders", 0, 6)], shell.now))
    assert commits(4) == 6, "it has not heard of the reset"
    shell.pass_time(60_000, step=10_000)
    assert commits(4) == 4
    create(shell, GroupSet("billing", orderly=True))
    assert lock(shell, "c1", 0) == {0: 1}
    assert commits(1) == 4


@pytest.mark.parametrize("sends", [True, False])
def test_a_pull_consumer_may_go_back_over_a_connection_without_heartbeats(
    shell: Shell, sends: bool
) -> None:
    """Law: this holds over connections without heartbeats too (the VIP port of Java up to 4.4)."""
    filled(shell)
    other_port, of_bob = Caller(21, ALICE.host, 50_001), Caller(22, BOB.host, 50_002)
    heartbeat(shell, "c1", caller=ALICE, consume_type="CONSUME_ACTIVELY")
    heartbeat(shell, "c2", caller=BOB)
    if sends:
        send(shell, caller=other_port)

    def commits(offset: int, caller: Caller) -> int | None:
        shell.ask(15, commit_ext(offset), caller=caller, oneway=True)
        shell.pass_time(200)
        return offset_of(shell)

    assert [commits(offset, other_port) for offset in (4, 1)] == [4, 1]
    assert [commits(offset, of_bob) for offset in (3, 2)] == [3, 3]
    heartbeat(shell, "c3", caller=Caller(3, ALICE.host, 40_003))
    assert commits(1, other_port) == 3, "a push consumer on the same host may be the sender"


def test_a_tool_may_reset_again_what_was_just_reset_for_members_online(shell: Shell) -> None:
    """Law: when all members have left after a reset, a tool may reset again, and old repeats no longer count."""
    filled(shell)
    commit(shell, 4)
    create(shell, *shell.core.committer.reset([Commit("billing", "orders", 0, 3)], shell.now))
    shell.call(35, {"clientID": "c1", "consumerGroup": "billing"})

    assert shell.call(15, commit_ext(1), caller=TOOL).code == 0

    assert offset_of(shell) == 1
    commit(shell, 4)
    commit(shell, 3)
    assert offset_of(shell) == 4


@pytest.mark.parametrize("deleted", [TopicDeleted("orders"), GroupDeleted("billing", True)])
def test_what_is_gathered_goes_with_its_topic_or_group(
    shell: Shell, deleted: TopicDeleted | GroupDeleted
) -> None:
    """Law: gathered commits are dropped with their topic or group; else a new one with that name would skip messages."""
    filled(shell)
    heartbeat(shell, "c1")
    create(shell, *shell.core.committer.reset([Commit("billing", "orders", 1, 3)], shell.now))
    assert shell.ask(15, commit_ext(4), oneway=True) is None

    create(shell, deleted)
    create(shell, TopicSet("orders", 2, 2), GroupSet("billing"))
    shell.pass_time(200)
    shell.ask(15, commit_ext(3, queue=1), oneway=True)
    shell.pass_time(200)

    assert [offset_of(shell, queue) for queue in (0, 1)] == [None, None]


def test_many_resets_are_forgotten_in_several_ticks(shell: Shell) -> None:
    """Law: many resets are forgotten over several ticks, the oldest first."""
    committer = shell.core.committer
    commits = [Commit("billing", "orders", queue, 0) for queue in range(WALK_STEP_MAX + 2)]
    committer.reset(commits, shell.now)
    shell.monotonic_ms += 1
    committer.reset(commits[:1], shell.now)
    shell.monotonic_ms += RESET_ECHO_MS - 1

    left = []
    for _ in range(2):
        committer.tick(shell.now)
        left.append(len(committer._resets))
    shell.monotonic_ms += 1
    committer.tick(shell.now)

    assert left == [2, 1]
    assert not committer._resets


def test_a_consumer_that_is_no_member_any_more_is_no_tool(shell: Shell) -> None:
    """Law: a consumer that was dropped for silence is no tool; its late commit moves nothing back."""
    filled(shell)
    heartbeat(shell, "c1", caller=ALICE)
    commit(shell, 4)
    shell.pass_time(shell.core.context.settings.timers.client_expiry_ms + 2_000, step=1_000)
    assert not shell.state.members.of_group("billing")

    shell.ask(15, commit_ext(2), caller=ALICE)

    assert offset_of(shell) == 4


@hypothesis_settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["commit", "tick", "fail over"]), st.integers(0, 5))))
def test_an_offset_never_falls_without_a_reset(steps: list[tuple[str, int]]) -> None:
    """Law: an answered offset never falls without a reset, over any commits and changes of leader."""
    shell = filled(Shell().lead())
    told = 0
    for kind, offset in steps:
        if kind == "commit":
            heartbeat(shell, "c1")
            shell.submit(15, commit_ext(offset), oneway=True)
        elif kind == "tick":
            shell.pass_time(100)
        else:
            shell.follow()
            shell.lead()
        stored = int(shell.call(14, QUERY).ext["offset"])
        assert stored >= told
        told = stored


def test_a_commit_makes_its_group_which_owns_it(shell: Shell) -> None:
    """Law: a commit creates its group, so that its rows are deleted with it."""
    create(shell, TopicSet("orders", 2, 2))
    send(shell)

    assert shell.ask(15, commit_ext(1, group="fresh"), oneway=True) is None
    shell.pass_time(100)

    assert "fresh" in shell.state.groups.by_name
    assert offset_of(shell, group="fresh") == 1


def test_no_commit_makes_a_group_where_that_is_switched_off() -> None:
    """Law: with automatic creation off, a commit for an unknown group is refused (26)."""
    shell = Shell(settings(auto_create_group=False)).lead()
    create(shell, TopicSet("orders", 2, 2))
    send(shell)

    reply = shell.call(15, commit_ext(1, group="fresh"))

    assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert offset_of(shell, group="fresh") is None


def test_offsets_of_further_queues_are_refused_when_there_are_too_many(shell: Shell) -> None:
    """Law: the number of stored offsets is limited: existing ones can be committed; a refusal says what to do."""
    filled(shell)
    heartbeat(shell, "c1")
    assert shell.call(15, commit_ext(1)).code == 0
    missing = OFFSETS_MAX - shell.state.offsets.count
    shell.state.offsets.count += missing

    assert shell.call(15, commit_ext(2)).code == 0
    refused = shell.call(15, commit_ext(0, queue=1))
    with_pull = shell.call(11, pull_ext(queue=1, sysFlag=5, commitOffset=0))
    shell.pass_time(100)

    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert refused.remark is not None
    assert "delete groups or topics" in refused.remark
    assert with_pull.code == ResponseCode.PULL_NOT_FOUND
    assert (offset_of(shell), offset_of(shell, queue=1)) == (2, None)
    shell.state.offsets.count -= missing
    shell.state.check_invariants()


def test_offsets_are_counted_over_a_restart_and_when_their_owners_go(shell: Shell) -> None:
    """Law: the count of offsets is right after deletions and a restart."""
    filled(shell)
    create(shell, TopicSet("others", 2, 2), GroupSet("shipping"))
    for group, topic in (("billing", "orders"), ("billing", "others"), ("shipping", "others")):
        assert shell.call(15, commit_ext(0, group=group, topic=topic)).code == 0

    assert shell.state.offsets.count == shell.restart().state.offsets.count == 3
    create(shell, TopicDeleted("orders"))
    assert shell.state.offsets.count == 2
    create(shell, GroupDeleted("shipping", clean_offsets=True))
    assert shell.state.offsets.count == 1
    shell.state.check_invariants()


RESET = {"topic": "orders", "group": "billing", "timestamp": "-1", "isForce": "true"}
CLONE = {"srcGroup": "billing", "destGroup": "billing", "topic": "orders", "offline": "true"}


@pytest.mark.parametrize("deleted", ["topic", "group"])
@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (15, commit_ext(4)),
        (11, pull_ext(offset=4, commitOffset=4, sysFlag=1)),
        (222, {**RESET, "queueId": "0", "offset": "4"}),
        (314, CLONE),
    ],
    ids=["commit", "pull", "reset", "clone"],
)
def test_no_offset_comes_behind_the_deletion_of_its_topic_or_group(
    shell: Shell, deleted: str, code: int, ext: dict[str, str]
) -> None:
    """Law: no offset is stored behind the deletion of its topic or group; a new one with that name would skip messages."""
    filled(shell)
    heartbeat(shell, "c1")
    commit(shell, 1)

    if deleted == "topic":
        shell.submit(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}, caller=TOOL)
        shell.run([Propose([TopicSet("orders", 2, 2)])])
    else:
        gone = {"groupName": "billing", "cleanOffset": "true"}
        shell.submit(RequestCode.DELETE_SUBSCRIPTIONGROUP, gone, caller=TOOL)
        shell.run([Propose([GroupSet("billing")])])
    before = len(shell.proposed)
    shell.submit(code, ext)
    shell.pass_time(100)

    assert shell.state.offsets.of_group("billing") == {}
    kinds = [type(record).__name__ for record in shell.proposed[before:]]
    assert kinds[:1] == ["TopicDeleted" if deleted == "topic" else "GroupDeleted"]
    send(shell)
    commit(shell, 1)
    assert offset_of(shell) == 1, "what has the name now takes offsets"
