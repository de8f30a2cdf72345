"""A consumer group by key with a topic, and members that fetch and complete as the SDK does."""

from typing import Any

import msgspec

from orderlymq_broker.core.effects import Caller
from orderlymq_broker.state.records import GroupSet, RetentionAdvanced, TopicSet
from orderlymq_broker.store.kv import Batch, Family
from orderlymq_broker.store.layout import decode_queue_entry, queue_key
from orderlymq_protocol.body.lanes import (
    Lane,
    LaneReport,
    LaneReports,
    LanesFetched,
    LaneTable,
    LaneVerdict,
    LaneVerdicts,
)
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.message.record import StoredMessage, iter_records
from tests.broker.processors.driver import ALICE, Shell
from tests.broker.processors.requests import create, heartbeat_body, properties, send

GROUP, TOPIC = "billing", "orders"


def lead(queues: int = 1, **config: Any) -> Shell:
    """Return a leader with the topic orders and the group billing by key, with the members a and b."""
    shell = Shell().lead()
    plain = GroupSet(GROUP, concurrency="Key", **config)
    create(shell, TopicSet(TOPIC, queues, queues, order=True), plain)
    for client in "ab":
        join(shell, client)
    return shell


def join(shell: Shell, client: str, caller: Caller | None = None, **more: Any) -> None:
    shell.call(
        34, {}, heartbeat_body(client, GROUP, (TOPIC,), **more), caller=caller or caller_of(client)
    )


def caller_of(client: str) -> Caller:
    return Caller(ord(client), "192.0.2.1", 40_000 + ord(client))


def produce(shell: Shell, *keys: str, queue: int = 0, body: bytes = b"paid") -> None:
    """Send one message per key; an empty one is a message without a key."""
    for key in keys:
        props = properties(__SHARDINGKEY=key) if key else ""
        send(shell, TOPIC, body, props, caller=ALICE, e=queue)


class Member:
    """A member; *sequence* rises with every fetch."""

    def __init__(self, shell: Shell, client: str = "a") -> None:
        self.shell = shell
        self.client = client
        self.caller = caller_of(client)
        self.sequence = 0

    def ext(self, **more: Any) -> dict[str, str]:
        ext = {"consumerGroup": GROUP, "topic": TOPIC, "clientId": self.client, **more}
        return {name: str(value) for name, value in ext.items()}

    def submit(self, **more: Any) -> int:
        """Fetch without applying anything; return the opaque."""
        self.sequence += 1
        ext = {"sequence": self.sequence, "maxLanes": 10, "suspendTimeoutMillis": 20_000, **more}
        code = RequestCode.ORDERLYMQ_FETCH_LANES
        return self.shell.submit(code, self.ext(**ext), caller=self.caller)

    def wait(self, **more: Any) -> int:
        """Fetch, and wait without an answer; return the opaque."""
        opaque = self.submit(**more)
        self.shell.settle()
        return opaque

    def ask(self, **more: Any) -> RemotingCommand:
        """Fetch without waiting; return the answer."""
        reply = self.shell.reply_to(self.wait(suspendTimeoutMillis=0, **more))
        assert reply is not None, "a fetch without a wait has no answer"
        return reply

    def fetch(self, **more: Any) -> tuple[Lane, ...]:
        """Fetch without waiting; return the lanes, empty if there are none."""
        return lanes(self.ask(**more))

    def report(self, *reports: LaneReport) -> tuple[LaneVerdict, ...]:
        body = LaneReports(reports).to_json()
        reply = self.shell.call(
            RequestCode.ORDERLYMQ_COMPLETE_LANES, self.ext(), body, caller=self.caller
        )
        assert reply.code == 0, reply.remark
        return LaneVerdicts.from_json(reply.body).of(reports)

    def say(self, result: str, lane: Lane, **more: Any) -> LaneVerdict:
        report = LaneReport(lane.queue_id, lane.lane, lane.attempt, result, **more)
        return self.report(report)[0]

    def done(self, *given: Lane) -> list[str]:
        reports = [
            LaneReport(each.queue_id, each.lane, each.attempt, "done", each.offsets[-1])
            for each in given
        ]
        return [each.verdict for each in self.report(*reports)]


def lanes(reply: RemotingCommand) -> tuple[Lane, ...]:
    if reply.code == 19:
        return ()
    assert reply.code == 0, reply.remark
    fetched, records = LanesFetched.decode(reply.body)
    offsets = [(each.queue_id, offset) for each in fetched.lanes for offset in each.offsets]
    found = [(each.queue_id, each.queue_offset) for each in iter_records(records)]
    assert found == offsets, "the records are not those of the lanes"
    return fetched.lanes


def stored(reply: RemotingCommand) -> list[StoredMessage]:
    return list(iter_records(LanesFetched.decode(reply.body)[1]))


def table(shell: Shell, **more: str) -> LaneTable:
    reply = shell.call(RequestCode.ORDERLYMQ_LANES, {"consumerGroup": GROUP, **more})
    return LaneTable.from_json(reply.body)


def committed(shell: Shell, queue: int = 0) -> int:
    return int(
        shell.call(14, {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue)}).ext[
            "offset"
        ]
    )


def keys(given: tuple[Lane, ...]) -> list[str]:
    return [each.key for each in given]


def without_tail(shell: Shell) -> None:
    """Let the broker read from its store only."""
    shell.state.tail.resize(0)


def expire(shell: Shell, first: int) -> None:
    """Let retention delete the topic's messages before the offset *first*, although lanes owe them."""
    without_tail(shell)
    queue = shell.state.topics.by_name[TOPIC].queue(0)
    place = shell.store.get(Family.CONSUME_QUEUE, queue_key(queue.topic_id, 0, first))
    floor = shell.state.physical_end if place is None else decode_queue_entry(place).physical
    create(shell, RetentionAdvanced((), floor))


def forget(shell: Shell, *offsets: int) -> None:
    """Delete entries from the store, as damage does."""
    without_tail(shell)
    topic_id = shell.state.topics.by_name[TOPIC].id
    gone = Batch()
    for offset in offsets:
        gone.delete(Family.CONSUME_QUEUE, queue_key(topic_id, 0, offset))
    shell.store.write(gone, sync=True)


def change(shell: Shell, **config: Any) -> RemotingCommand:
    """Change the group as an administrator would."""
    present = shell.state.groups.by_name[GROUP]
    body = msgspec.json.encode(
        {
            "groupName": GROUP,
            "consumeMessageOrderly": present.orderly,
            "concurrency": present.concurrency,
            **config,
        }
    )
    return shell.call(200, {}, body)
