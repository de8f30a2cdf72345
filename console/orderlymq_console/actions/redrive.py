"""
Redrive: send the dead letters of one key, or of all keys of a topic, to their topic again, in order.

Rules: a parked key must be released first, or its letters would come back as letters. Each letter is sent as one message with its own
unique key, so a repeat finds the letters that were sent before. The first failure ends the redrive, so no letter overtakes another.
A key with a letter whose body cannot be read is not redriven, because the letters behind it would overtake it. Clients can write
letters, too, so a letter that differs from its original in the topic needs a consent of its own.
"""

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Final

from orderlymq.admin.explanation import queue_of
from orderlymq.admin.messages import RESENDS, redriven
from orderlymq.errors import BrokerUnreachable, TopicNotFound
from orderlymq.producer.producer import Producer
from orderlymq_console.actions.backlog import backlog_of
from orderlymq_console.actions.plan import Changed, Done, Plan, amount
from orderlymq_console.cluster import ClusterReader
from orderlymq_console.pages import bodies
from orderlymq_console.pages.letters import Letter, is_sent, letter_at, read_letters
from orderlymq_console.pages.messages import message_row
from orderlymq_console.pages.notfound import NotThere
from orderlymq_console.parameters import BadParameter, Parameters
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.names import dlq_topic

#: Letters that one redrive sends; the next redrive continues behind them.
LETTERS_MAX: Final = 200
_SHOWN: Final = 3


async def plan_redrive(reader: ClusterReader, parameters: Parameters) -> Plan:
    """Return what a redrive will do: to one key, or with `all` to every key of a topic that is not parked.

    Raises:
        NotThere: There is no dead letter that was not sent, or no such topic.
        BadParameter: The key is parked, or a parameter cannot be used.
        OrderlyMQError: A broker refused or did not answer.
    """
    group = parameters.name("group")
    key = None if parameters.flag("all") else parameters.raw("key")
    if key == "":
        raise BadParameter("key must name the key whose dead letters are sent again")
    if not parameters.text("topic"):
        raise BadParameter(
            "these dead letters do not name the topic that they were sent to; send each with "
            "`orderlymq message resend ID --topic TOPIC`"
        )
    topic = parameters.name("topic")
    await reader.check_whole(topic)
    keys = await reader.admin.parked_keys(group)
    parked = {each.key for each in keys if each.queue.topic == topic}
    if key in parked:
        raise BadParameter(
            f"group {group} has parked the key {key}; release it first, or its messages become dead letters again"
        )
    if topic not in await reader.admin.topics_of_group(group):
        raise BadParameter(
            f"group {group} has no offset in {topic}, so its dead letters did not come from there; send them with `orderlymq message resend`"
        )
    backlog = await backlog_of(reader.admin, group, await _queues_of(reader, topic, key))
    # Read after the lag: if the lag is 0, all letters are stored.
    found, stuck, rest = await _waiting(reader, group, topic, key, parked)
    if key in stuck:
        raise BadParameter(_stuck(group, stuck[key]))
    what = f"of {topic}" if key is None else f"of key {key} of {topic}"
    if not found:
        raise NotThere(
            f"group {group} has no unsent dead letter {what}"
            + (f"; but {_stuck(group, next(iter(stuck.values())))}" if stuck else "")
            + (f"; but {rest}" if rest else "")
        )
    identities = "".join(each.identity for each in found).encode()
    digest = blake2b(identities, digest_size=8).hexdigest()
    following = [await letter_at(reader.pulls, each, bodies.READ_MAX) for each in found[:_SHOWN]]
    doubtful = await _doubtful(reader, found)

    return Plan(
        action="redrive",
        title=f"Redrive the dead letters of {'all keys' if key is None else f'key {key}'} of group {group}",
        group=group,
        topic=topic,
        name=topic if key is None else key,
        effects=(
            f"{amount(len(found), 'dead letter')} {'is' if len(found) == 1 else 'are'} sent to {topic} again, "
            f"in the order in which {'it was' if len(found) == 1 else 'they were'} given up.",
            *(_of_keys(found, parked, stuck) if key is None else ()),
            *([f"At most {LETTERS_MAX} are sent at a time."] if len(found) == LETTERS_MAX else []),
            "All groups of the topic receive them, including groups that consumed them before.",
            "Messages that are sent to the key meanwhile may come between them: stop its senders first.",
            f"The letters stay in {dlq_topic(group)}. Repeating the redrive sends none of them twice while the topic keeps them.",
        ),
        stamp=f"{_place(found[0])}-{_place(found[-1])}:{len(found)}:{digest}:{backlog.mark}:{len(doubtful)}",
        form={"all": "1"} if key is None else {"key": key},
        consent=" ".join(filter(None, (_doubt(topic, doubtful), backlog.consent))),
        following=tuple(message_row(each, "auto", bodies.SHOWN_MAX) for each in following),
        letters=tuple(found),
    )


async def redrive(reader: ClusterReader, plan: Plan, done: Done | None = None) -> int:
    """Do what *plan* says, except for letters that somebody else has sent since; return the number of letters that were sent.

    Raises:
        Changed: A letter is not kept any more; the letters before it were sent.
        OrderlyMQError: A send failed; the letters before it were sent.
    """
    done = done or Done()
    async with Producer(
        "orderlymq-redrive", settings=RESENDS, instance=reader.admin.instance
    ) as producer:
        for place in plan.letters:
            if await is_sent(reader, place):
                continue
            try:
                letter = await letter_at(reader.pulls, place)
            except NotThere as error:
                raise Changed(f"{error}; {done.count} before it were sent") from error
            await producer.send(redriven(letter, place.topic, place.identity))
            reader.sent.add(place.identity)
            done.count += 1

    return done.count


async def _doubtful(reader: ClusterReader, found: list[Letter]) -> list[Letter]:
    """Return the letters for which their topic has no message with the same content."""
    origins = [
        await reader.admin.find_origin(await letter_at(reader.pulls, each), each.topic)
        for each in found
    ]

    return [each for each, origin in zip(found, origins, strict=True) if origin is None]


def _doubt(topic: str, doubtful: list[Letter]) -> str:
    """Return what must be agreed to if letters are not copies of messages in their topic; empty if all are copies."""
    if not doubtful:
        return ""
    first = doubtful[0]
    return (
        f"{topic} has no message with the same content as {amount(len(doubtful), 'letter')} of these, the first at offset {first.offset} of "
        f"{first.queue.broker_name}:{first.queue.queue_id}. The original has aged out, or a client that may consume for the group forged the "
        "letter: check it first."
    )


async def _queues_of(reader: ClusterReader, topic: str, key: str | None) -> list[MessageQueue]:
    """Return the queues to which the letters are sent."""
    try:
        route = await reader.admin.route(topic)
    except TopicNotFound as error:
        raise NotThere(f"there is no topic {topic}") from error
    if not route.publish:
        raise BadParameter(
            f"{topic} is not writable, so nothing can be sent to it; restore its write permission first"
        )

    return sorted(set(route.publish)) if key is None else [queue_of(route, topic, key)]


async def _waiting(
    reader: ClusterReader, group: str, topic: str, key: str | None, parked: set[str]
) -> tuple[list[Letter], dict[str, Letter], str]:
    """Return at most `LETTERS_MAX` unsent letters in order, the unreadable letter of each key that it blocks, and why more may exist.

    Raises:
        OrderlyMQError: Some letters cannot be read, so it is unknown which one comes first.
    """
    read = await read_letters(reader, group)
    if read.unknown:
        raise BrokerUnreachable(f"not all dead letters can be read: {read.unknown}")
    wanted = [
        each
        for each in read.found
        if each.topic == topic
        and (each.key == key if key is not None else each.key and each.key not in parked)
    ]
    stuck: dict[str, Letter] = {}
    for letter in wanted:
        is_first = letter.unreadable and letter.key not in stuck
        if is_first and not await is_sent(reader, letter):
            stuck[letter.key] = letter
    found: list[Letter] = []
    unsent: set[str] = set()
    for letter in wanted:
        if letter.key in stuck:
            continue
        # Letters of a key were sent in order, so the sent ones come first.
        if letter.key in unsent or not await is_sent(reader, letter):
            unsent.add(letter.key)
            found.append(letter)
        if len(found) == LETTERS_MAX:
            break

    return found, stuck, read.rest


def _of_keys(found: list[Letter], parked: set[str], stuck: Mapping[str, Letter]) -> Iterator[str]:
    keys = {each.key for each in found}
    yield f"They belong to {amount(len(keys), 'key')}; the letters of each key keep their order."
    if parked:
        yield f"Letters of parked keys are not sent, of which there {'is 1' if len(parked) == 1 else f'are {len(parked):,}'}: release these keys first."
    if stuck:
        yield f"The letters of {amount(len(stuck), 'key')} are not sent, because a body among them cannot be read."


def _stuck(group: str, letter: Letter) -> str:
    return (
        f"the body of the letter at offset {letter.offset} of {letter.queue.broker_name}:{letter.queue.queue_id} in "
        f"{dlq_topic(group)} cannot be read, and key {letter.key} would continue without it: {letter.unreadable}. "
        "If that is acceptable, send its other letters with `orderlymq message resend`"
    )


def _place(letter: Letter) -> str:
    return f"{letter.queue.broker_name}:{letter.queue.queue_id}:{letter.offset}"
