"""
Parked keys behind a dead letter of an ordered group: 20509 to 20511, and the group's ``onDeadLetter``.

The rules: a member asks before it hands a dead letter over, and follows the answer. So the policy is applied here, at
that moment, and nowhere else; ``state/groups/failurepolicy.py`` tells what it says. A key is first held in raft. Then
the letter and all later messages of its key go to the dead letters, until an administrator releases the key. If a key
cannot be held, the queue stops. RocketMQ's clients do not ask; only their hand-over is seen (``check_hand_over``).
The table is in ``state/groups/parkedkeys.py``.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from orderlymq_broker.core.capacity import check_backlog
from orderlymq_broker.core.effects import Caller, Effect, Now
from orderlymq_broker.core.listings import array
from orderlymq_broker.core.requestcontext import (
    Context,
    Handler,
    RequestRefused,
    answer,
    unanswered,
)
from orderlymq_broker.core.responses import (
    answer_list,
    answer_when_applied,
    raise_unknown_group,
)
from orderlymq_broker.processors.groups.groupcreation import check_own_topic
from orderlymq_broker.processors.groups.locks import check_client
from orderlymq_broker.processors.topics.expansionrequests import read_number
from orderlymq_broker.state.groups.failurepolicy import DeadPolicy, after_death, dead_policy
from orderlymq_broker.state.groups.parkedkeyrecords import (
    KeyFollowed,
    KeyParked,
    KeyReleased,
    KeysReleased,
    ParkedFound,
    ParkedKey,
)
from orderlymq_broker.state.groups.parkedkeys import FULL, KEY_BYTES_MAX, PARKED_KEYS_MAX
from orderlymq_broker.state.records import Outcome, Refused
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.lanes import RETRY
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.extensions import EXT_EPOCH
from orderlymq_protocol.message.properties import SHARDING_KEY
from orderlymq_protocol.names import retry_topic

# RocketMQ's ids have 32 characters; longer ones would make the answers to lock requests larger.
MESSAGE_ID_LENGTH_MAX: Final = 128

_STALE: Final = "queue {queue} of {topic} has another holder in group {group} now; no key is parked"
_STOPPED: Final = "group {group} has onDeadLetter: StopQueue; the message is retried"
_FULL: Final = (
    f"group {{group}} has parked {PARKED_KEYS_MAX} keys, the largest number allowed, so the queue "
    "stops and no key is skipped: repair the cause and release keys (orderlymq group parked, "
    "orderlymq group release)"
)
_NOT_BY_KEY: Final = (
    "action {action!r} is only for lanes: what failed under a key that group[{group}] holds by "
    "queue is a dead letter already; release the key with retry"
)
_NO_KEY: Final = "a release needs the field key: send it, empty for all messages without a key"
_LONG: Final = (
    f"a sharding key of more than {KEY_BYTES_MAX} bytes cannot be held; the queue stops instead of "
    "letting it pass: choose shorter keys"
)


class ParkedKeyProcessor:
    """Serves members that have a dead letter, and administrators that release keys."""

    def __init__(
        self,
        context: Context,
        lanes: Callable[[str], Iterator[dict[str, Any] | None]],
        release_lanes: Handler,
    ) -> None:
        """*lanes* yields the held lanes of a group by key, and a None for each queue; *release_lanes* releases them."""
        self._context = context
        self._lanes = lanes
        self._release_lanes = release_lanes

    def hold(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 20509: answer with the next step for a message, as *verdict*.

        held: send it to the dead letters; continue: send it there, and continue with its key; released: the key is not
        held, so consume the message; stop: try it again.
        """
        ext = request.ext
        group, topic, key = ext.get("consumerGroup", ""), ext.get("topic", ""), ext.get("key", "")
        check_client("member", group)
        check_own_topic(retry_topic(group))  # its letters go through this topic
        queue_id, offset, epoch = (
            read_number(ext, name) for name in ("queueId", "offset", EXT_EPOCH)
        )
        state = self._context.state
        known = state.topics.get(topic)
        if known is None or queue_id >= known.queue_count:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] has no queue {queue_id} here"
            )
        if ext.get("following") == "true":
            record: KeyParked | KeyFollowed = KeyFollowed(
                group, topic, queue_id, key, offset, epoch
            )
            return self._propose(record, request, caller)
        config = state.groups.get(group)
        policy = DeadPolicy.CONTINUE if config is None else dead_policy(config.on_dead_letter)
        is_held = key in state.parked.of_queue(group, topic, queue_id)
        match after_death(policy, key, is_held=is_held):
            case DeadPolicy.STOP:
                return _say(request, caller, "stop", remark=_STOPPED.format(group=group))
            case DeadPolicy.CONTINUE:
                return _say(request, caller, "continue")
        if len(key.encode()) > KEY_BYTES_MAX:
            self._context.counters["parked_keys_refused"] += 1
            return _say(request, caller, "stop", remark=_LONG)
        record = KeyParked(
            group,
            topic,
            queue_id,
            key,
            offset,
            ext.get("messageId", "")[:MESSAGE_ID_LENGTH_MAX],
            epoch,
        )

        return self._propose(record, request, caller)

    def _propose(
        self, record: KeyParked | KeyFollowed, request: RemotingCommand, caller: Caller
    ) -> list[Effect]:
        check_backlog(self._context)
        request = unanswered(request)

        def applied(outcomes: Sequence[Outcome], _: Now) -> list[Effect]:
            match outcomes[0]:
                case ParkedFound(None):
                    # A dead letter holds nothing if an administrator has moved the offset past it.
                    verdict = "released" if type(record) is KeyFollowed else "continue"
                    return _say(request, caller, verdict)
                case ParkedFound(ParkedKey() as held):
                    return _say(request, caller, "held", held)
                case Refused(reason) if reason == FULL:
                    self._context.counters["parked_keys_refused"] += 1
                    return _say(request, caller, "stop", remark=_FULL.format(group=record.group))
            remark = _STALE.format(queue=record.queue_id, topic=record.topic, group=record.group)
            return answer(request, caller, ResponseCode.SYSTEM_ERROR, remark=remark)

        return answer_when_applied(request, caller, [record], then=applied)

    def held(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 20510: the parked keys of a group in this raft group."""
        group = request.ext.get("consumerGroup", "")

        def rows() -> Iterator[dict[str, Any] | None]:
            yield from map(self._shown, self._context.state.parked.of_group(group))
            yield from self._lanes(group)

        return answer_list(self._context, request, caller, array("parkedKeys", rows()))

    def release(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 20511: release a key by the mode of its group; the answer shows what was released.

        In a group by key, a key that was held while the group consumed by queue is released first.
        """
        ext, state = request.ext, self._context.state
        if "key" not in ext:
            # Do not take a missing key for the empty one: with skip, all messages without a key would become dead letters.
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, _NO_KEY)
        group, key = ext.get("consumerGroup", ""), (ext.get("topic"), ext["key"])
        is_held = any((each.topic, each.key) == key for each in state.parked.of_group(group))
        if state.is_by_key(group) and not is_held:
            return self._release_lanes(request, caller, now)
        raise_unknown_group(self._context, group)
        action = ext.get("action") or RETRY
        if action != RETRY:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, _NOT_BY_KEY.format(action=action[:32], group=group)
            )
        record = KeyReleased(group, ext.get("topic", ""), ext["key"], *expected_place(ext))

        def applied(outcomes: Sequence[Outcome], _: Now) -> list[Effect]:
            found = outcomes[0]
            rows = [self._shown(held) for held in found.keys] if type(found) is KeysReleased else []
            return answer(request, caller, body=fastjson.dumps({"parkedKeys": rows}))

        return answer_when_applied(request, caller, [record], then=applied)

    def _shown(self, held: ParkedKey) -> dict[str, Any]:
        return {
            "topic": held.topic,
            "brokerName": self._context.settings.group,
            "queueId": held.queue_id,
            "key": held.key,
            "sinceMillis": held.since_ms,
            "firstOffset": held.offset,
            "firstMessageId": held.message_id,
            "behind": held.behind,
        }


def expected_place(ext: dict[str, str]) -> tuple[int, int]:
    """Return queue and first offset of the message that an administrator expects to release, or -1 and -1 for any.

    Raises:
        RequestRefused: only one of them is named, or one is not a number (1).
    """
    if "queueId" not in ext and "firstOffset" not in ext:
        return -1, -1

    return read_number(ext, "queueId"), read_number(ext, "firstOffset")


def check_hand_over(context: Context, group: str, said: dict[str, str]) -> None:
    """Check a dead letter with these properties from a member that may not have asked; Java's members never ask.

    Under StopQueue it is refused, and the client tries the message again as long as it lives.
    Under HoldKey it passes, because the member that sent it continues with its key; the group is noted, so
    that the log can report it.

    Raises:
        RequestRefused: the group accepts no dead letters (13).
    """
    config = context.state.groups.get(group)
    policy = DeadPolicy.CONTINUE if config is None else dead_policy(config.on_dead_letter)
    if policy == DeadPolicy.CONTINUE or not context.state.is_ordered(group):
        return
    key = said.get(SHARDING_KEY)
    is_held = bool(key and context.state.parked.is_held(group, key))
    follows = after_death(policy, key, is_held=is_held)
    if follows == DeadPolicy.STOP:
        # Use a code after which Java does not resend immediately, so that it tries the message again instead.
        raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, _STOPPED.format(group=group))
    if follows == DeadPolicy.HOLD and not is_held:
        context.counters["dead_letters_not_held"] += 1
        context.unparked_groups.add(group)


def _say(
    request: RemotingCommand,
    caller: Caller,
    verdict: str,
    held: ParkedKey | None = None,
    *,
    remark: str | None = None,
) -> list[Effect]:
    ext = {"verdict": verdict}
    if held is not None:
        ext |= {"firstOffset": str(held.offset), "firstMessageId": held.message_id}

    return answer(request, caller, ext=ext, remark=remark)
