"""Long lists are written completely, in steps, one list at a time."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from orderlymq_broker.core import listings
from orderlymq_broker.core.effects import Caller, CallSoon, Effect, Now, Propose, Refusal
from orderlymq_broker.core.listings import (
    BODY_SIZE_MAX,
    SHORT_WORK_MAX,
    STEP_WORK_MAX,
    WAITING_MAX,
    Listings,
    array,
    filled,
    table,
)
from orderlymq_broker.state.admin.accessrecords import AccountDeleted, AccountSet
from orderlymq_broker.state.groups.lockrecords import LocksRequested
from orderlymq_broker.state.records import Commit, GroupSet, OffsetsReset, TopicSet
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.codes import ResponseCode
from tests.broker.processors.adminshell import AdminShell
from tests.broker.processors.driver import ALICE, START_MS, TOOL, Shell
from tests.broker.processors.requests import create, heartbeat, heartbeat_body

NOW = Now(START_MS, 0)
PROGRESS = {"consumerGroup": "group-00000", "topic": ""}


ALICES, BOBS = ("alice", ""), ("bob", "")


def played(effects: list[Effect]) -> int:
    """Run all steps that the effects ask for; return how many there were."""
    steps = 0
    while effects:
        effects = [
            more for each in effects if isinstance(each, CallSoon) for more in each.step(NOW)
        ]
        steps += 1
    return steps


class Heard:
    """A receiver of lists: *texts* are the lists that came, *refused* the codes of those that were refused."""

    def __init__(self) -> None:
        self.texts: list[bytes] = []
        self.refused: list[int] = []

    def __call__(self, text: bytes | Refusal) -> list[Effect]:
        if isinstance(text, Refusal):
            self.refused.append(text.code)
        else:
            self.texts.append(text)
        return []

    @property
    def names(self) -> list[str]:
        """The names of the lists that came, in their order."""
        return [next(iter(fastjson.loads(text))) for text in self.texts]


def busy(count: int) -> Shell:
    """Return a leader with so many consumer groups, each with a topic of 8 queues, offsets and locks."""
    shell = Shell().lead()
    names = [f"{number:05}" for number in range(count)]
    for begin in range(0, count, 100):
        some = names[begin : begin + 100]
        create(shell, *(TopicSet(f"topic-{each}", 8, 8) for each in some))
        create(shell, *(GroupSet(f"group-{each}") for each in some))
    for each in names:
        group, queues = f"group-{each}", tuple((f"topic-{each}", number) for number in range(8))
        commits = tuple(Commit(group, topic, number, 0) for topic, number in queues)
        create(shell, OffsetsReset(commits))
        create(shell, LocksRequested(group, "c", "192.0.2.1:1", 60_000, queues))
    return shell


def test_long_lists_are_written_in_steps_and_whole() -> None:
    """Law: long lists are written in steps, so that others are served between them, and are complete."""
    count = STEP_WORK_MAX // 8 + 10
    shell = busy(count)
    sizes = {}

    for code, ext, name in (
        (317, {"isOrder": "false"}, "consumeStatsList"),
        (20501, {}, "locks"),
        (43, {}, "offsetTable"),
    ):
        opaque = shell.submit(code, ext, caller=TOOL)
        is_later = bool(shell.later)
        shell.settle()
        reply = shell.reply_to(opaque)
        assert reply is not None
        sizes[code] = (is_later, len(fastjson.loads(reply.body)[name]))

    assert sizes == {317: (True, count), 20501: (True, 8 * count), 43: (False, count)}


def test_accounts_are_listed_in_steps_and_whole() -> None:
    """Law: accounts are listed in steps too: the operator asks at each reconcile,
    and there may be ten thousand with a thousand rights each.
    """
    shell = Shell().lead()
    rights = {f"topic-{number}": "PUB" for number in range(100)}
    names = [f"account-{number:05}" for number in range(STEP_WORK_MAX // 10)]
    for begin in range(0, len(names), 100):
        some = names[begin : begin + 100]
        create(shell, *(AccountSet(each, "secret", topic_perms=rights) for each in some))

    opaque = shell.submit(52, {"orderlymq": "true"}, caller=TOOL)
    is_later = bool(shell.later)
    shell.run([Propose([AccountDeleted(names[-1])])])
    shell.turn()
    shell.settle()

    reply = shell.reply_to(opaque)
    assert reply is not None
    assert (is_later, reply.ext["brokerName"]) == (True, "broker-a")
    body = fastjson.loads(reply.body)
    assert [each["accessKey"] for each in body["accounts"]] == names[:-1]
    assert body["globalWhiteAddrs"] == []


@pytest.mark.parametrize(("code", "ext"), [(300, {"topic": "orders"}), (328, {})])
def test_a_look_at_everything_is_work_too(
    code: int, ext: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a walk over all rows is work as well: it pauses for others even if it finds few rows."""
    shell = busy(3)
    for number in range(3):
        heartbeat(
            shell,
            f"c{number}",
            group=f"g{number}",
            caller=Caller(100 + number, "192.0.2.9", number),
        )
    monkeypatch.setattr(listings, "STEP_WORK_MAX", 4)

    opaque = shell.submit(code, ext, caller=TOOL)
    assert shell.reply_to(opaque) is None
    assert shell.later
    shell.settle()

    reply = shell.reply_to(opaque)
    assert reply is not None
    assert reply.code == 0


def test_a_short_list_is_answered_immediately() -> None:
    """Law: a short list is answered in the same turn."""
    shell = busy(2)

    for code, ext in ((21, {}), (43, {}), (201, {}), (208, PROGRESS), (317, {"isOrder": "false"})):
        opaque = shell.submit(code, ext, caller=TOOL)
        assert shell.reply_to(opaque) is not None
        assert not shell.later


def test_a_short_list_waits_for_no_long_one() -> None:
    """Law: short lists are answered while a long one is being written, and are not refused because of it."""
    shell = busy(STEP_WORK_MAX // 8 + 10)
    long = shell.submit(317, {"isOrder": "false"}, caller=TOOL)
    assert shell.later

    short = [shell.submit(208, PROGRESS, caller=TOOL) for _ in range(2 * WAITING_MAX)]

    replies = [shell.reply_to(each) for each in short]
    assert [reply.code for reply in replies if reply is not None] == [0] * len(short)
    assert shell.reply_to(long) is None


def test_lists_are_written_one_after_the_other_and_so_many_wait() -> None:
    """Law: one list is written at a time, because each may have 16 MiB; a limited number of others waits, hardly started."""
    listings, heard = Listings(), Heard()
    rows = [(f"name-{number}", number) for number in range(STEP_WORK_MAX + SHORT_WORK_MAX)]
    first = listings.write(table("first", iter(rows)), heard, ALICES, 1)
    for number in range(1, WAITING_MAX):
        assert listings.write(table(f"list-{number}", iter(rows)), heard, ALICES, 1) == []

    assert listings.write(table("more", iter(rows)), heard, ALICES, 1) == []
    assert (heard.texts, heard.refused) == ([], [ResponseCode.SYSTEM_BUSY])
    assert played(first) >= WAITING_MAX

    assert heard.names == ["first", *(f"list-{number}" for number in range(1, WAITING_MAX))]
    assert fastjson.loads(heard.texts[-1])["list-63"] == dict(rows)


def test_who_asks_for_few_lists_waits_for_few() -> None:
    """Law: lists of different askers are written in turn, so that nobody keeps the operator from the lists that it reads before each change.

    Otherwise one connection could take all places, and others would be refused or wait behind all of its lists.
    """
    listings, heard = Listings(), Heard()
    rows = [(f"name-{number}", number) for number in range(STEP_WORK_MAX + SHORT_WORK_MAX)]
    first = listings.write(table("a0", iter(rows)), heard, ALICES, 1)
    for number in range(1, WAITING_MAX):
        listings.write(table(f"a{number}", iter(rows)), heard, ALICES, number)

    for number in range(2):
        assert listings.write(table(f"b{number}", iter(rows)), heard, BOBS, 99) == []
    assert heard.refused == [ResponseCode.SYSTEM_BUSY] * 2
    played(first)

    ours = [f"a{number}" for number in range(WAITING_MAX - 2)]
    assert heard.names == [*ours[:2], "b0", ours[2], "b1", *ours[3:]]


def test_who_would_have_as_many_lists_as_others_crowds_nobody_out() -> None:
    """Law: with as many askers as places, each keeps its place; one more is told to try again."""
    listings, heard = Listings(), Heard()
    rows = [(f"name-{number}", number) for number in range(STEP_WORK_MAX + SHORT_WORK_MAX)]
    first = listings.write(table("list-0", iter(rows)), heard, ("", "0"), 0)
    for number in range(1, WAITING_MAX + 1):
        listings.write(table(f"list-{number}", iter(rows)), heard, ("", f"{number}"), number)

    played(first)

    assert heard.refused == [ResponseCode.SYSTEM_BUSY]
    assert heard.names == [f"list-{number}" for number in range(WAITING_MAX)]


def test_a_list_that_nobody_waits_for_is_not_written() -> None:
    """Law: when a connection ends, its lists are dropped, both the one that is being written and those that wait."""
    listings, heard = Listings(), Heard()
    rows = [(f"name-{number}", number) for number in range(STEP_WORK_MAX + SHORT_WORK_MAX)]
    first = listings.write(table("begun", iter(rows)), heard, ALICES, 1)
    listings.write(table("waiting", iter(rows)), heard, ALICES, 1)
    listings.write(table("kept", iter(rows)), heard, ALICES, 2)

    listings.close(1)
    assert played(first) <= 3

    assert (heard.names, heard.refused) == (["kept"], [])
    assert played(listings.write(table("next", iter(rows)), heard, ALICES, 3)) <= 2
    assert heard.names == ["kept", "next"]


def test_who_asks_for_everything_and_goes_costs_nobody_a_wait() -> None:
    """Law: the waiting lists of a client that has gone free their places, so that others do not wait for minutes."""
    shell = busy(STEP_WORK_MAX // 8 + 10)
    gone = [shell.submit(317, {"isOrder": "false"}, caller=TOOL) for _ in range(2 * WAITING_MAX)]
    shell.run(shell.core.connection_closed(TOOL.connection))

    asked = shell.submit(317, {"isOrder": "false"}, caller=ALICE)
    turns = 0
    while shell.reply_to(asked) is None and turns < WAITING_MAX:
        shell.go_on()
        turns += 1

    reply = shell.reply_to(asked)
    assert reply is not None
    assert (reply.code, turns <= 3) == (0, True)
    refused = [reply for each in gone if (reply := shell.reply_to(each)) is not None]
    assert [reply.code for reply in refused] == [ResponseCode.SYSTEM_BUSY] * WAITING_MAX


def test_a_list_that_fits_no_frame_ends_when_that_is_known() -> None:
    """Law: a list is given up as soon as it exceeds a frame; the client would close its connection on receiving it."""
    listings, heard = Listings(), Heard()
    seen = 0

    def rows() -> Iterator[tuple[str, Any]]:
        nonlocal seen
        while True:
            seen += 1
            yield f"name-{seen}", "x" * (1 << 20)

    played(listings.write(table("table", rows()), heard, ALICES, 1))

    assert (heard.texts, heard.refused) == ([], [ResponseCode.SYSTEM_ERROR])
    assert seen == BODY_SIZE_MAX // (1 << 20) + 1


def test_who_asks_for_a_list_that_fits_no_frame_learns_so() -> None:
    """Law: a list that exceeds a frame is refused with code 1 and the advice to ask for single items."""
    shell = Shell().lead()
    for number in range(BODY_SIZE_MAX // (1 << 20) + 1):
        create(shell, GroupSet(f"group-{number}", on_dead_letter="x" * (1 << 20)))

    reply = shell.call(201, caller=TOOL)

    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert reply.remark is not None
    assert "request single items" in reply.remark


def test_a_list_that_breaks_its_writer_stands_in_nobodys_way() -> None:
    """Law: after a list fails while it is written, the next one is written."""
    listings, heard = Listings(), Heard()

    def broken() -> Iterator[tuple[str, Any]]:
        yield "a", 1
        raise ValueError("planted")

    with contextlib.suppress(ValueError):
        listings.write(table("broken", broken()), heard, ALICES, 1)
    played(listings.write(table("good", iter(())), heard, ALICES, 1))

    assert heard.texts == [b'{"good":{}}']


def test_lists_of_clients_are_written_in_steps_and_whole() -> None:
    """Law: lists of a group's members and producers (203, 204) and of all producers (328) are written in steps and are
    complete.
    """
    count = STEP_WORK_MAX + 10
    shell = Shell().lead()
    create(shell, GroupSet("billing"))
    for number in range(count):
        caller = Caller(100 + number, "192.0.2.7", 1_024 + number)
        shell.submit(34, {}, heartbeat_body(f"client-{number:05}", topics=()), caller=caller)
        if number % 500 == 0:
            shell.settle()
    shell.settle()
    found: dict[int, list[Any]] = {}

    for code in (203, 204, 328):
        ext = {"consumerGroup": "billing", "producerGroup": "CLIENT_INNER_PRODUCER"}
        opaque = shell.submit(code, ext, caller=TOOL)
        assert shell.later
        shell.settle()
        reply = shell.reply_to(opaque)
        assert reply is not None
        body = fastjson.loads(reply.body)
        found[code] = (
            body["data"]["CLIENT_INNER_PRODUCER"] if code == 328 else body["connectionSet"]
        )

    for code, rows in found.items():
        assert sorted(row["clientId"] for row in rows) == [
            f"client-{number:05}" for number in range(count)
        ], code


def test_the_empty_list_is_one() -> None:
    """Law: an empty list is valid JSON, with and without other fields around it."""
    listings, heard = Listings(), Heard()

    for pieces in (table("rows", iter(())), table("rows", iter(()), a=1), array("rows", iter(()))):
        played(listings.write(pieces, heard, ALICES, 1))

    two = filled(b'{"a":1,"rows":[],"z":2}', b'"rows":[', iter((3, 4)))
    played(listings.write(two, heard, ALICES, 1))

    assert heard.texts.pop() == b'{"a":1,"rows":[3,4],"z":2}'
    assert heard.texts == [b'{"rows":{}}', b'{"a":1,"rows":{}}', b'{"rows":[]}']
    shell = Shell().lead()
    assert (
        fastjson.loads(shell.call(317, {"isOrder": "false"}, caller=TOOL).body)["consumeStatsList"]
        == []
    )
    assert fastjson.loads(shell.call(208, PROGRESS, caller=TOOL).body) == {
        "offsetTable": {},
        "consumeTps": 0.0,
    }


@pytest.mark.parametrize("code", [202, 208, 317])
def test_the_queues_of_one_large_topic_are_written_in_several_turns(
    admin: AdminShell, code: int
) -> None:
    """Law: the queues of one topic, up to 16,384, are written in several turns."""
    count = STEP_WORK_MAX
    create(admin, TopicSet("orders", count, count), GroupSet("billing"))
    create(admin, OffsetsReset((Commit("billing", "orders", count - 1, 0),)))
    asked = {"topic": "orders", "consumerGroup": "billing", "isOrder": "false"}

    opaque = admin.submit(code, asked, caller=TOOL)
    turns = 0
    while admin.later:
        assert admin.reply_to(opaque) is None
        admin.go_on()
        turns += 1

    reply = admin.reply_to(opaque)
    assert reply is not None
    found = fastjson.loads(reply.body)
    if code == 317:
        ((found,),) = found["consumeStatsList"][0].values()
    assert (turns, len(found["offsetTable"])) == (2, count)
