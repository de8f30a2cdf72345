"""Lists of everything: written in steps, one after the other, and whole."""

from typing import Any

import pytest

from orderlymq_broker.core.effects import Effect, Later, Now, Send
from orderlymq_broker.core.requestcontext import RequestRefused
from orderlymq_broker.processors.admin.listings import (
    BODY_SIZE_MAX,
    STEP_WORK_MAX,
    WAITING_MAX,
    Listings,
)
from orderlymq_broker.state.records import Commit, GroupSet, OffsetsReset
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from tests.broker.processors.administering import AdminShell, create_topic
from tests.broker.processors.driver import START_MS, TOOL
from tests.broker.processors.requests import create

NOW = Now(START_MS, 0)


def played(effects: list[Effect]) -> tuple[list[RemotingCommand], int]:
    """Return the answers that effects lead to, and in how many steps."""
    answers: list[RemotingCommand] = []
    steps = 0
    while effects:
        later = [each for each in effects if isinstance(each, Later)]
        answers += [each.command for each in effects if isinstance(each, Send)]
        steps += 1
        effects = [effect for each in later for effect in each.step(NOW)]
    return answers, steps


def many(admin: AdminShell, count: int) -> list[str]:
    names = [f"group-{number:05}" for number in range(count)]
    for begin in range(0, count, 500):
        create(admin, *(GroupSet(each) for each in names[begin : begin + 500]))
    return names


def test_a_long_list_is_written_in_steps_and_whole(admin: AdminShell) -> None:
    """Others are served between two steps; nothing is missing, what is deleted meanwhile aside."""
    names = many(admin, 2 * STEP_WORK_MAX)

    opaque = admin.submit(201, peer=TOOL)
    assert admin.reply_to(opaque) is None
    assert admin.later
    admin.settle()

    reply = admin.reply_to(opaque)
    assert reply is not None
    table = fastjson.loads(reply.body)
    assert set(names) <= table["subscriptionGroupTable"].keys()
    assert table["dataVersion"]["counter"] == admin.state.groups.version.counter


def test_a_short_list_is_answered_at_once(admin: AdminShell) -> None:
    """As before: nobody waits for a step that need not be."""
    create_topic(admin, "orders")
    create(admin, GroupSet("billing"))
    create(admin, OffsetsReset((Commit("billing", "orders", 0, 0),)))

    for code in (21, 43, 201):
        opaque = admin.submit(code, peer=TOOL)
        assert admin.reply_to(opaque) is not None
        assert not admin.later
    assert admin.read(43) == {"offsetTable": {"orders@billing": {"0": 0}}}


def test_lists_are_written_one_after_the_other_and_so_many_wait() -> None:
    """Each may have 16 MiB; who waits keeps nothing of it."""
    listings = Listings()
    rows = [(f"name-{number}", number) for number in range(STEP_WORK_MAX)]
    effects = listings.answer(RemotingCommand(21, 0), TOOL, "table", iter(rows * 2))
    for opaque in range(1, WAITING_MAX):
        assert not listings.answer(RemotingCommand(21, opaque), TOOL, "table", iter(rows))

    with pytest.raises(RequestRefused) as refused:
        listings.answer(RemotingCommand(21, 99), TOOL, "table", iter(rows))
    answers, _ = played(effects)

    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    assert [each.opaque for each in answers] == list(range(WAITING_MAX))
    assert not any(each.code for each in answers)


def test_a_list_that_fits_no_frame_is_refused_when_that_is_known() -> None:
    """RocketMQ's broker would write all of it, and its client close the connection."""
    listings = Listings()
    row = ("x" * 1_000, "y" * 1_000_000)
    seen = 0

    def rows() -> Any:
        nonlocal seen
        while True:
            seen += 1
            yield f"{row[0]}{seen}", {str(part): row[1][:100] for part in range(STEP_WORK_MAX * 8)}

    (answer,), _ = played(listings.answer(RemotingCommand(21, 1), TOOL, "table", rows()))

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark is not None
    assert str(BODY_SIZE_MAX) in answer.remark
    assert seen < 100


def test_the_empty_list_is_one() -> None:
    """With and without something beside it."""
    listings = Listings()

    (bare,), _ = played(listings.answer(RemotingCommand(21, 1), TOOL, "table", iter(())))
    (more,), _ = played(listings.answer(RemotingCommand(21, 1), TOOL, "table", iter(()), a=1))

    assert fastjson.loads(bare.body) == {"table": {}}
    assert fastjson.loads(more.body) == {"a": 1, "table": {}}
