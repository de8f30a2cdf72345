"""`orderlymq trace`: the life of one message, from its producer to every consumer."""

from collections.abc import Awaitable
from dataclasses import asdict
from typing import TypeVar

import click

from orderlymq.admin.client import AdminClient
from orderlymq.cli.exitcodes import ExitCode
from orderlymq.cli.session import (
    CommandFailed,
    connected,
    exit_code,
    iso,
    print_json,
    print_table,
    say,
)
from orderlymq.connection.instance import unless_missing
from orderlymq.connection.tracerecords import (
    ConsumeBegan,
    ConsumeEnded,
    Published,
    Trace,
    TransactionEnded,
    life,
    parse_traces,
)
from orderlymq.errors import OrderlyMQError
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.names import TRACE_TOPIC, dlq_topic, retry_topic

T = TypeVar("T")


@click.command()
@click.argument("message_id")
@click.option("--topic", help="Topic of the message; needed if no producer traced it.")
@click.option("--trace-topic", default=TRACE_TOPIC, show_default=True)
@connected
async def trace(
    message_id: str, topic: str | None, trace_topic: str, name_server: str, output: str
) -> None:
    """Show the life of a message: sent, stored, consumed, tried again, given up.

    MESSAGE_ID is the message id that the client made. Clients write traces only if tracing is on (Java:
    enableMsgTrace; SDK: trace=True). With --topic, what the brokers store is shown even without traces.
    """
    async with AdminClient(name_server) as admin:
        asked = _Asked(admin, message_id)
        traces = life(await asked.traces(trace_topic), message_id)
        topics = [each.topic for each in traces if isinstance(each, Published)]
        places = [*([topic] if topic else []), *topics]
        groups = {each.group for each in traces if isinstance(each, ConsumeBegan)}
        for name in places:
            groups.update(await asked.groups(name))
        places += [make(group) for group in sorted(groups) for make in (retry_topic, dlq_topic)]
        stored = [each for name in dict.fromkeys(places) for each in await asked.stored(name)]
        for name in await admin.absent_groups():
            asked.failures.append(
                CommandFailed(ExitCode.UNREACHABLE, f"broker group {name} is not registered now")
            )
    unasked = [str(each) for each in asked.failures]
    if not traces and not stored:
        if unasked:
            raise CommandFailed(
                asked.failures[0].code,
                f"no trace of {message_id} was found, but some sources could not be asked: {'; '.join(unasked)}",
            )
        raise CommandFailed(
            ExitCode.NOT_FOUND,
            f"nothing is known about {message_id}: it is not a message id, or no client traced it; add --topic TOPIC to "
            "search the topic, or find the ids of a sharding key with `orderlymq tail TOPIC --key KEY --json`",
        )
    steps = sorted(
        [_traced(each) for each in traces] + [_kept(*each) for each in stored],
        key=lambda step: step[0],
    )
    if output == "json":
        print_json(
            {
                "messageId": message_id,
                "steps": [
                    {"at": at, "time": iso(at), "who": who, "what": what, "details": details}
                    for at, who, what, details in steps
                ],
                "traces": [{"kind": type(each).__name__, **asdict(each)} for each in traces],
                "notAsked": unasked,
            }
        )
    else:
        rows: list[list[object]] = [[iso(at), *said] for at, *said in steps]
        print_table(f"message {message_id}", ["time", "who", "what", "details"], rows)
        for text in unasked:
            say(f"Warning: steps may be missing: {text}", err=True)
    if asked.failures:
        raise click.exceptions.Exit(asked.failures[0].code)


Step = tuple[int, str, str, str]


def _traced(trace: Trace) -> Step:
    match trace:
        case Published():
            what = "sent" if trace.success else "send failed"
            details = f"{trace.topic}, {trace.body_length} bytes, {trace.message_type}, {trace.cost_ms} ms"
            return trace.at_ms, f"producer {trace.group}", what, details
        case ConsumeBegan():
            tries = f"delivery {trace.retry_times + 1}"
            return trace.at_ms, f"consumer {trace.group}", "consuming", tries
        case ConsumeEnded():
            what = "consumed" if trace.success else "not consumed"
            details = f"{trace.outcome}, {trace.cost_ms} ms"
            return trace.at_ms, f"consumer {trace.group}".rstrip(), what, details
        case TransactionEnded():
            asked = ", when asked" if trace.from_check else ""
            return trace.at_ms, f"producer {trace.group}", "transaction ended", trace.state + asked


def _kept(topic: str, message: ReceivedMessage) -> Step:
    queue = message.queue
    place = f"{topic} {queue.broker_name}:{queue.queue_id}@{message.queue_offset}"
    what = "stored"
    if topic.startswith(dlq_topic("")):
        what = "dead letter"
    elif topic.startswith(retry_topic("")):
        what = f"waits for try {message.reconsume_times + 1}"
    return message.store_timestamp, "broker", what, place


class _Asked:
    """Answers of the brokers about one message, and the requests that failed."""

    def __init__(self, admin: AdminClient, message_id: str) -> None:
        self.failures: list[CommandFailed] = []
        self._admin = admin
        self._message_id = message_id

    async def traces(self, topic: str) -> list[Trace]:
        """Return the traces that clients have written; an empty list if there is no trace topic."""
        found = await self._found(topic, self._admin.find_messages(topic, self._message_id))
        return [each for message in found for each in parse_traces(message.body)]

    async def groups(self, topic: str) -> list[str]:
        return await self._found(topic, self._admin.topic_groups(topic))

    async def stored(self, topic: str) -> list[tuple[str, ReceivedMessage]]:
        """Return the copies in a topic; most groups have no dead letters, and so no topic for them."""
        kept = self._admin.find_messages(topic, self._message_id, unique=True, unreadable=True)
        return [(topic, message) for message in await self._found(topic, kept)]

    async def _found(self, topic: str, asked: Awaitable[list[T]]) -> list[T]:
        try:
            return await unless_missing(asked, [])
        except OrderlyMQError as error:
            failure = CommandFailed(exit_code(error), f"of topic {topic}: {error}")
            self.failures.append(failure)
            return []
