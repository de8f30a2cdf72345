"""
Redrive: send the dead letters of one key to their topic again, in order.

Rules: a key that is parked is released first, or its letters would come back as letters. Each letter is sent as one message with
a unique key of its own, so a repeat finds what was sent before; the first failure ends it, and nothing overtakes.
"""

from typing import Final

from orderlymq.errors import TopicNotFound
from orderlymq.message import Message, ReceivedMessage
from orderlymq.producer.producer import Producer
from orderlymq_console.actions.plan import Plan
from orderlymq_console.actions.waiting import waiting_in
from orderlymq_console.cluster import ClusterReader
from orderlymq_console.pages import bodies
from orderlymq_console.pages.letters import by_key, identity, is_sent, read_letters
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
    group, key = parameters.name("group"), parameters.text("key")
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
    wait = await waiting_in(reader.admin, group, await _queue_of(reader, topic, key))
    # After the lag: where that is 0, all letters are stored.
    waiting = await _waiting(reader, group, topic, key)
    if not waiting:
        raise NotThere(
            f"group {group} has no dead letter of key {key} of {topic} that was not sent again"
        )
    first, last = waiting[0], waiting[-1]

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
        following=tuple(message_row(each, "auto", bodies.SHOWN_MAX) for each in waiting[:_SHOWN]),
    )


async def redrive(reader: ClusterReader, plan: Plan) -> int:
    """Do what *plan* says; return how many letters were sent.

    Raises:
        OrderlyMQError: A send failed; those before it were sent.
    """
    waiting = await _waiting(reader, plan.group, plan.topic, plan.name)
    async with Producer("orderlymq-redrive", instance=reader.admin.instance) as producer:
        for letter in waiting:
            await producer.send(_message(letter, plan.topic))

    return len(waiting)


async def _queue_of(reader: ClusterReader, topic: str, key: str) -> MessageQueue:
    """Return the queue that the letters of a key are sent to."""
    try:
        return queue_of(await reader.admin.route(topic), topic, key)
    except TopicNotFound as error:
        raise NotThere(f"there is no topic {topic}") from error


async def _waiting(
    reader: ClusterReader, group: str, topic: str, key: str
) -> list[ReceivedMessage]:
    """Return the letters of a key that were not sent again, in order."""
    found = (await read_letters(reader.admin, group)).messages
    letters = by_key(found).get((topic, key), [])
    # They were sent in order: what was sent is the beginning.
    while letters and await is_sent(reader.admin, topic, letters[0]):
        letters = letters[1:]

    return letters[:LETTERS_MAX]


def _message(letter: ReceivedMessage, topic: str) -> Message:
    own = {
        name: value
        for name, value in letter.properties.items()
        if name not in RESERVED_NAMES and name != SHARDING_KEY and not name.startswith("DLQ_")
    }
    before = own.get(REDRIVES, "0")
    own[REDRIVES] = str(int(before) + 1 if before.isdecimal() and len(before) < 10 else 1)

    return Message(
        topic=topic,
        body=letter.body,
        tags=letter.tags or "",
        keys=letter.keys,
        key=letter.key,
        properties=own,
        flag=letter.flag,
        unique_key=identity(letter),
    )


def _place(letter: ReceivedMessage) -> str:
    return f"{letter.queue.broker_name}:{letter.queue.queue_id}:{letter.queue_offset}"


def _count(number: int) -> str:
    return "1 dead letter is" if number == 1 else f"{number:,} dead letters are"
