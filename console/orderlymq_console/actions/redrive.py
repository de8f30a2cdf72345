"""
Redrive: send the dead letters of one key to their topic again, in order.

Rules: a key that is parked is released first, or its letters would come back as letters. Each letter is sent as one message with
a unique key of its own, so a repeat finds what was sent before; the first failure ends it, and nothing overtakes.
"""

from typing import Final

from orderlymq.consumer.group.queuereader import QueueReader
from orderlymq.errors import BrokerUnreachable, TopicNotFound
from orderlymq.message import Message, ReceivedMessage
from orderlymq.producer.producer import Producer
from orderlymq_console.actions.plan import Changed, Plan
from orderlymq_console.actions.waiting import waiting_in
from orderlymq_console.cluster import ClusterReader
from orderlymq_console.pages import bodies
from orderlymq_console.pages.letters import Letter, by_key, is_sent, letter_at, read_letters
from orderlymq_console.pages.messages import message_row, queue_of
from orderlymq_console.pages.notfound import NotThere
from orderlymq_console.parameters import BadParameter, Parameters
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message.properties import RESERVED_NAMES, SHARDING_KEY
from orderlymq_protocol.names import dlq_topic

#: Letters of one key that one redrive sends; the next one goes on behind them.
LETTERS_MAX: Final = 200
#: The property that counts redrives; the pipeline `redrive` counts with it, too.
REDRIVES: Final = "OMQ_REDRIVES"
_SHOWN: Final = 3


async def plan_redrive(reader: ClusterReader, parameters: Parameters) -> Plan:
    """Return what a redrive of a key will do.

    Raises:
        NotThere: The key has no dead letter that was not sent.
        BadParameter: The key is parked, or a parameter cannot be used.
        OrderlyMQError: A broker refused or did not answer.
    """
    group, key = parameters.name("group"), parameters.raw("key")
    if not key:
        raise BadParameter("key must name the key whose dead letters are sent again")
    if not parameters.text("topic"):
        raise BadParameter(
            f"these dead letters of key {key} do not tell the topic that they were sent to; send each with "
            "`orderlymq message resend ID --topic TOPIC`"
        )
    topic = parameters.name("topic")
    for parked in await reader.admin.parked_keys(group):
        if (parked.queue.topic, parked.key) == (topic, key):
            raise BadParameter(
                f"group {group} has parked the key {key}; release it first, or its letters come back as letters"
            )
    if topic not in await reader.admin.topics_of_group(group):
        raise BadParameter(
            f"group {group} has no offset in {topic}, so its letters are not from there; send them with `orderlymq message resend`"
        )
    wait = await waiting_in(reader.admin, group, await _queue_of(reader, topic, key))
    # After the lag: where that is 0, all letters are stored.
    waiting, rest = await _waiting(reader, group, topic, key)
    if not waiting:
        raise NotThere(
            f"group {group} has no dead letter of key {key} of {topic} that was not sent again"
            + (f"; but {rest}" if rest else "")
        )
    first, last = waiting[0], waiting[-1]
    pulls = QueueReader(reader.admin.instance, "TOOLS_CONSUMER")
    following = [await letter_at(pulls, each) for each in waiting[:_SHOWN]]

    return Plan(
        action="redrive",
        title=f"Redrive the dead letters of key {key} of group {group}",
        group=group,
        topic=topic,
        name=key,
        effects=(
            f"{_count(len(waiting))} sent to {topic} again, in the order in which {'it was' if len(waiting) == 1 else 'they were'} given up.",
            "All groups of the topic get them, also those that have consumed them before.",
            "What is sent to the key meanwhile may come between them: stop its senders before.",
            f"The letters stay in {dlq_topic(group)}. A repeat sends none of them twice while the topic keeps them.",
        ),
        stamp=f"{_place(first)}-{_place(last)}:{len(waiting)}:{wait.mark}",
        form={"key": key},
        consent=wait.consent,
        following=tuple(message_row(each, "auto", bodies.SHOWN_MAX) for each in following),
    )


async def redrive(reader: ClusterReader, plan: Plan) -> int:
    """Do what *plan* says; return how many letters were sent.

    Raises:
        Changed: A letter is not kept any more; those before it were sent.
        OrderlyMQError: A send failed; those before it were sent.
    """
    waiting, _ = await _waiting(reader, plan.group, plan.topic, plan.name)
    pulls = QueueReader(reader.admin.instance, "TOOLS_CONSUMER")
    async with Producer("orderlymq-redrive", instance=reader.admin.instance) as producer:
        for number, place in enumerate(waiting):
            try:
                letter = await letter_at(pulls, place)
            except NotThere as error:
                raise Changed(f"{error}; {number} before it were sent") from error
            await producer.send(_message(letter, place))
            reader.sent.add(place.identity)

    return len(waiting)


async def _queue_of(reader: ClusterReader, topic: str, key: str) -> MessageQueue:
    """Return the queue that the letters of a key are sent to."""
    try:
        return queue_of(await reader.admin.route(topic), topic, key)
    except TopicNotFound as error:
        raise NotThere(f"there is no topic {topic}") from error


async def _waiting(
    reader: ClusterReader, group: str, topic: str, key: str
) -> tuple[list[Letter], str]:
    """Return the letters of a key that were not sent again, in order; and why there may be more of them.

    Raises:
        OrderlyMQError: Some cannot be read, so nobody knows which comes first.
    """
    found = await read_letters(reader.admin, group, reader.sent)
    if found.unknown:
        raise BrokerUnreachable(f"not all dead letters can be read: {found.unknown}")
    letters = by_key(found.found).get((topic, key), [])
    # They were sent in order: what was sent is the beginning.
    sent = 0
    while sent < len(letters) and await is_sent(reader.admin, reader.sent, letters[sent]):
        sent += 1

    return letters[sent : sent + LETTERS_MAX], found.rest


def _message(letter: ReceivedMessage, place: Letter) -> Message:
    own = {
        name: value
        for name, value in letter.properties.items()
        if name not in RESERVED_NAMES and name != SHARDING_KEY and not name.startswith("DLQ_")
    }
    before = own.get(REDRIVES, "0")
    own[REDRIVES] = str(int(before) + 1 if before.isdecimal() and len(before) < 10 else 1)

    return Message(
        topic=place.topic,
        body=letter.body,
        tags=letter.tags or "",
        keys=letter.keys,
        key=letter.key,
        properties=own,
        flag=letter.flag,
        unique_key=place.identity,
    )


def _place(letter: Letter) -> str:
    return f"{letter.queue.broker_name}:{letter.queue.queue_id}:{letter.offset}"


def _count(number: int) -> str:
    return "1 dead letter is" if number == 1 else f"{number:,} dead letters are"
