"""Captured requests of real tools get answers with the same members and types as the captured answers."""

import json

import pytest

from orderlymq_broker.state.records import Commit as OffsetCommit
from orderlymq_broker.state.records import OffsetsReset
from orderlymq_protocol.body import fastjson
from tests.broker.processors.adminshell import AdminShell, create_topic, golden, missing, shape
from tests.broker.processors.driver import ALICE
from tests.broker.processors.requests import create, heartbeat, send
from tests.protocol.golden import GoldenFrame

# Codes whose captured answers hold a JSON body and that the broker itself answers.
CODES = (21, 28, 43, 45, 201, 202, 203, 204, 208, 222, 300, 305, 315, 321, 328)
BODILESS = (17, 25, 200, 207, 215, 306, 316, 329)

# Paths of the machine on which the frames were captured.
_LOCAL_KEY = "commitLogDiskRatio_"


def world(admin: AdminShell) -> None:
    """Create the topics, groups and clients that the captured requests name."""
    create_topic(admin, "TV5", queues=4)
    for queue in (0, 1, 2, 3, 0):
        assert send(admin, "TV5", b"x", "TAGS\x01a", e=queue).code == 0
    send(admin, "TV5", b"x", "DELAY\x011", e=0)
    send(admin, "TV5", b"x", "DELAY\x015", e=0)
    for group in ("CGSV5", "CGOV5"):
        heartbeat(admin, "192.0.2.2@2428#1719703055913", group=group, topics=("TV5",))
        commits = tuple(OffsetCommit(group, "TV5", queue, 1) for queue in range(4))
        create(admin, OffsetsReset(commits))
    admin.pass_time(2_000)


def answered(admin: AdminShell, frame: GoldenFrame) -> tuple[int, bytes]:
    fields = frame.fields
    if frame.code == 315:
        fields["extFields"]["statsKey"] = "TV5"
    reply = admin.call(frame.code, fields.get("extFields") or {}, frame.body, caller=ALICE)
    return reply.code, reply.body


@pytest.mark.parametrize("code", CODES)
def test_an_answer_has_the_members_and_types_of_the_captured_one(
    admin: AdminShell, code: int
) -> None:
    """Law: each member of RocketMQ's answer is also in ours, with the same type."""
    world(admin)
    theirs = [frame.body for frame in golden(code, "response") if frame.body]
    assert theirs, f"no captured answer to {code}"

    for frame in golden(code, "request"):
        status, body = answered(admin, frame)
        assert status == 0
        for captured in theirs:
            lacks = missing(shape(fastjson.loads(body)), shape(fastjson.loads(captured)))
            assert [lack for lack in lacks if _LOCAL_KEY not in lack] == []


@pytest.mark.parametrize("code", BODILESS)
def test_a_captured_change_is_accepted(admin: AdminShell, code: int) -> None:
    """Law: each captured change is accepted with 0 and no body."""
    world(admin)

    for frame in golden(code, "request"):
        assert answered(admin, frame) == (0, b"")


def test_our_bodies_hold_no_blanks(admin: AdminShell) -> None:
    """Law: our JSON bodies contain no blanks, because the Go client parses some of them by hand."""
    world(admin)

    for code in (43, 201, 202, 208):
        for frame in golden(code, "request"):
            _, body = answered(admin, frame)
            plain = json.dumps(body.decode(), ensure_ascii=False)
            assert ": " not in plain
            assert ", " not in plain
