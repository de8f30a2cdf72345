"""While nothing commits, for example on a full disk, the requests that wait stay bounded."""

import tracemalloc
from collections import Counter

import pytest

from orderlymq_broker.core import capacity
from orderlymq_broker.settings import StorageSettings
from orderlymq_broker.state.records import DedupTrimmed, GroupSet, TopicSet
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from tests.broker.processors.driver import ALICE, BOB, Shell, settings
from tests.broker.processors.requests import (
    commit_ext,
    create,
    heartbeat,
    heartbeat_body,
    lock,
    lock_body,
    properties,
    send,
)


@pytest.fixture
def busy(shell: Shell) -> Shell:
    """A leader whose clients consume messages."""
    create(shell, TopicSet("orders", 2, 2), GroupSet("billing"))
    for _ in range(5):
        send(shell)
    heartbeat(shell, "alice")
    assert len(lock(shell, "alice", 0)) == 1
    return shell


def pass_time(shell: Shell, ms: int) -> None:
    """Let time pass while nothing is committed."""
    for _ in range(ms // 100):
        shell.wall_ms += 100
        shell.run(shell.core.tick(shell.now))
        shell.go_on()


def test_an_offset_that_is_committed_again_and_again_is_proposed_once(busy: Shell) -> None:
    """Law: a client repeats an offset every five seconds until it is stored;
    only the last of them waits for the next proposal.
    """
    for offset in (1, 2, *[3] * 10):
        busy.submit(15, commit_ext(offset), oneway=True)
        pass_time(busy, 200)
    proposed = Counter(type(each).__name__ for one in busy.pending for each in one.records)
    assert proposed == {"OffsetsCommitted": 1}
    busy.settle()
    busy.pass_time(200)

    assert busy.state.offsets.get("billing", "orders", 0) == 3


def test_a_member_that_is_silent_leaves_once(busy: Shell) -> None:
    """Law: a silent member is removed once; while its removal is not committed, no second one is proposed."""
    heartbeat(busy, "bob", caller=BOB)
    pass_time(busy, 10 * busy.settings.timers.client_expiry_ms)

    left = Counter(type(each).__name__ for one in busy.pending for each in one.records)
    assert left["MemberLeft"] <= 2


def test_the_duplicate_window_is_trimmed_once() -> None:
    """Law: the window of known sends is trimmed once per need, because a trim counts from when it is applied."""
    shell = Shell(settings(storage=StorageSettings(dedup_window_count=10))).lead()
    create(shell, TopicSet("orders", 1, 1, order=True))
    for number in range(20):
        send(shell, props=properties(UNIQ_KEY=f"U{number}"))
    pass_time(shell, 10_000)
    trims = [each for one in shell.pending for each in one.records if type(each) is DedupTrimmed]
    assert len(trims) == 1
    shell.settle()
    assert len(shell.state.dedup) == 10

    for number in range(5):
        send(shell, props=properties(UNIQ_KEY=f"V{number}"))
    shell.pass_time(2_000)

    assert len(shell.state.dedup) == 10


@pytest.mark.parametrize("lost", [True, False])
def test_a_new_leadership_trims_the_duplicate_window(*, lost: bool) -> None:
    """Law: a new leader trims the window of known sends, whether its predecessor's trim was committed or lost."""
    shell = Shell(settings(storage=StorageSettings(dedup_window_count=10))).lead()
    create(shell, TopicSet("orders", 1, 1, order=True))
    for number in range(20):
        send(shell, props=properties(UNIQ_KEY=f"U{number}"))
    pass_time(shell, 2_000)
    shell.follow()
    if lost:
        shell.lose_proposals()
    else:
        shell.pending = []
    shell.lead().pass_time(2_000)

    assert len(shell.state.dedup) == 10


def test_requests_that_wait_for_their_record_are_refused_for_a_while_beyond_a_number(
    busy: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: beyond a number of uncommitted requests, more are refused as busy, so that the leader's memory stays bounded.

    Requests that free something, or need no record, are still served.
    """
    monkeypatch.setattr(capacity, "UNCOMMITTED_COUNT_MAX", 2)
    for _ in range(3):
        busy.submit(42, {}, lock_body("alice", 0))
    requests = {
        "lock": busy.submit(41, {}, lock_body("alice", 1)),
        "first heartbeat": busy.submit(34, {}, heartbeat_body("carol")),
        "commit": busy.submit(15, commit_ext(2)),
        "further heartbeat": busy.submit(34, {}, heartbeat_body("alice")),
        "unlock": busy.submit(42, {}, lock_body("alice", 1)),
    }
    codes = {
        name: (reply := busy.reply_to(opaque)) and reply.code for name, opaque in requests.items()
    }

    too_many = ResponseCode.SYSTEM_BUSY
    assert codes == {
        "lock": too_many,
        "first heartbeat": too_many,
        "commit": too_many,
        "further heartbeat": 0,
        "unlock": None,
    }
    busy.settle()
    assert lock(busy, "alice", 1)
    assert busy.core.context.entries.uncommitted_count == 0


@pytest.mark.parametrize("code", [41, 42])
def test_a_request_that_waits_for_its_record_keeps_neither_body_nor_fields(
    busy: Shell, code: int
) -> None:
    """Law: a waiting request costs a few hundred bytes; its body and fields are not kept."""
    tracemalloc.start()
    for number in range(20):
        body = lock_body("alice", 0) + b" " * 100_000
        ext = {"junk": f"{number}" + "j" * 100_000}
        request = RemotingCommand(code, number, 0, ext, body, version=409)
        busy.run(busy.core.handle(request, ALICE, busy.now))
        del request, ext, body
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(busy.pending) == 20
    assert held < 500_000
