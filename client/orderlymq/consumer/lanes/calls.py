"""
Calls of a consumer by key to brokers: fetches and completions; each ends in the event that the core waits for.

Rules: trouble with a broker is an event, not an exception. A lease counts from the time before its request was sent, so
it never outlives the broker's own count. A record that cannot be read fails only its own message.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from orderlymq.connection.instance import ClientInstance
from orderlymq.connection.wire import INFLATED_SIZE_MAX, check, read_record
from orderlymq.consumer.group.calls import TROUBLE
from orderlymq.consumer.group.requests import RESUBSCRIBE
from orderlymq.consumer.group.subscriptions import Subscription
from orderlymq.consumer.lanes.events import (
    Answered,
    Complete,
    CompleteFailed,
    Fetch,
    Fetched,
    FetchEmpty,
    FetchFailed,
    Given,
)
from orderlymq.consumer.settings import ConsumerSettings
from orderlymq.consumer.stats import ConsumerStats
from orderlymq.durations import milliseconds, seconds
from orderlymq.errors import BrokerError, SettingError
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_protocol.body.declaration import ModelError
from orderlymq_protocol.body.fastjson import JsonError
from orderlymq_protocol.body.lanes import (
    BY_KEY,
    KEY_LENGTH_SHOWN,
    Lane,
    LaneReports,
    LanesFetched,
    LaneVerdicts,
)
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.lanes import CompleteLanesHeader, FetchLanesHeader
from orderlymq_protocol.message.compression import CompressionError
from orderlymq_protocol.message.properties import SHARDING_KEY
from orderlymq_protocol.message.record import RecordError, StoredMessage, iter_records
from orderlymq_runtime.remoting.client import RemotingError

_log = logging.getLogger(__name__)

Filter = Callable[[tuple[ReceivedMessage, ...], Subscription], tuple[ReceivedMessage, ...]]

_COMPLETE_TIMEOUT_S: Final = 3.0
_FETCH_MARGIN_S: Final = 15.0  # added to the time for which a broker may hold a fetch
# Brokers grant no shorter leases.
_LEASE_MS_MIN: Final = 1_000
# Refusals that only a user can resolve.
_REFUSED: Final = frozenset(
    {
        ResponseCode.ORDERLYMQ_NOT_BY_KEY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    }
)
# Refusals that no retry can change: the consumer must be created with other arguments.
_FINAL: Final = frozenset(
    {ResponseCode.ORDERLYMQ_NOT_BY_KEY, ResponseCode.REQUEST_CODE_NOT_SUPPORTED}
)
_NO_LANES: Final = (
    'the broker at {address} does not support lanes; ordered="key" needs an OrderlyMQ broker of this version, or use '
    "ordered=True"
)


class LaneCalls:
    """The calls of one consumer by key.

    Args:
        filtered: drops messages that only share a tag's hash code, and those that the user's filters reject.
        now_ms: the core's clock.

    Attributes:
        consume_timeout_s: how long a message may be in work, by the consumer group's setting; the consumer's own
            setting until brokers report it.
        key_property: the message property that is the key of its lane, by the consumer group's setting.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        settings: ConsumerSettings,
        *,
        subscriptions: Mapping[str, Subscription],
        filtered: Filter,
        now_ms: Callable[[], int],
        stats: ConsumerStats,
    ) -> None:
        self._instance = instance
        self._group = group
        self._settings = settings
        self._subscriptions = subscriptions
        self._filtered = filtered
        self._now_ms = now_ms
        self._stats = stats
        self._lease_ms = max(_LEASE_MS_MIN, milliseconds(settings.lock_lease))
        self.consume_timeout_s = seconds(settings.consume_timeout)
        self.key_property = SHARDING_KEY
        # At worst, a third of the lease is over when a held fetch is answered.
        self._wait_ms = min(milliseconds(settings.broker_suspend_max_time), self._lease_ms // 3)

    # -- the group

    async def check_group(self, topics: Iterable[str]) -> bool:
        """Return whether the brokers of the topics have the consumer group; brokers that do not answer are skipped.

        A skipped broker answers when lanes are fetched.

        Raises:
            SettingError: The consumer group consumes by queue, or a broker knows no lanes.
        """
        is_everywhere = True
        for address in sorted(self._instance.routes.addresses(topics)):
            command = request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": self._group})
            try:
                answer = await self._instance.invoke(address, command)
                if answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                    is_everywhere = False
                    continue
                if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise SettingError(_NO_LANES.format(address=address))
                config = SubscriptionGroupConfig.from_json(check(answer, address).body)
            except (RemotingError, BrokerError, ModelError, JsonError) as error:
                _log.info("%s does not report the group %s: %s", address, self._group, error)
                continue
            if config.concurrency != BY_KEY:
                raise SettingError(self.by_queue(address))
            self.key_property = config.lane_key_property
            if config.consume_timeout_minute > 0:
                self.consume_timeout_s = config.consume_timeout_minute * 60.0

        return is_everywhere

    def by_queue(self, address: str) -> str:
        """Return why a consumer group that consumes by queue is not joined, and what to do."""
        return (
            f'the consumer has ordered="key", but the group {self._group} at {address} consumes by queue '
            f"(concurrency: Queue); stop its members and run `orderlymq group set {self._group} "
            "--concurrency key`, or set concurrency: Key in its manifest, or use ordered=True"
        )

    def missing(self) -> str:
        """Return why a consumer group that does not exist is not joined, and what to do."""
        return (
            f"there is no group {self._group}; if this persists, the brokers do not create groups automatically: run "
            f"`orderlymq group set {self._group} --concurrency key`, or apply a manifest with concurrency: Key"
        )

    # -- fetches

    async def fetch(self, ask: Fetch) -> Fetched | FetchEmpty | FetchFailed:
        """Fetch lanes once."""
        place, sequence = ask.place, ask.sequence
        subscription = self._subscriptions.get(place.topic)
        address = await self._instance.address(place.broker_name, place.topic)
        if address is None or subscription is None:
            reason = "no leader's address" if subscription else "the topic is not subscribed"
            return FetchFailed(place, sequence, reason)
        asked_at_ms = self._now_ms()
        timeout_s = self._wait_ms / 1000 + _FETCH_MARGIN_S
        command = self._fetch_request(ask, subscription)
        try:
            answer = await self._instance.invoke(address, command, timeout_s)
            match answer.code:
                case ResponseCode.PULL_NOT_FOUND:
                    return FetchEmpty(place, sequence, answer.remark or "")
                case ResponseCode.PULL_RETRY_IMMEDIATELY:
                    return FetchFailed(place, sequence, answer.remark or "", expected=True)
                case code if code in RESUBSCRIBE:
                    await self._instance.heartbeats.beat_all()
                    return FetchFailed(place, sequence, answer.remark or "", expected=True)
                case code if code in _REFUSED:
                    if code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                        # The group may have been deleted since.
                        await self._instance.heartbeats.beat_all()
                    reason = self._refusal(answer, address)
                    final = code in _FINAL
                    self._instance.troubles.refused(BrokerError(code, reason, address))
                    return FetchFailed(place, sequence, reason, refused=True, final=final)
            check(answer, address)
            fetched, records = LanesFetched.decode(answer.body)
            given = self._given(ask, fetched.lanes, records, subscription)
        except TROUBLE as error:
            return FetchFailed(place, sequence, str(error))
        count, now_ms = sum(len(each.messages) for each in given), self._now_ms()
        self._stats.pulled(place.topic, count, now_ms - asked_at_ms, now_ms)
        lease_ms = fetched.lease_millis or self._lease_ms
        return Fetched(place, sequence, given, lease_ms, asked_at_ms, fetched.limited)

    def _fetch_request(self, ask: Fetch, subscription: Subscription) -> RemotingCommand:
        header = FetchLanesHeader(
            consumer_group=self._group,
            topic=ask.place.topic,
            client_id=self._instance.client_id,
            sequence=ask.sequence,
            max_lanes=ask.lanes_max,
            max_per_lane=self._settings.lane_messages(),
            lease_millis=self._lease_ms,
            suspend_timeout_millis=self._wait_ms,
            sub_version=subscription.data.sub_version,
        )
        return request(RequestCode.ORDERLYMQ_FETCH_LANES, header.to_ext())

    def _refusal(self, answer: RemotingCommand, address: str) -> str:
        """Return the text about a refusal that lasts until a user changes something."""
        match answer.code:
            case ResponseCode.ORDERLYMQ_NOT_BY_KEY:
                return self.by_queue(address)
            case ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                return self.missing()
            case ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return _NO_LANES.format(address=address)
        return f"code {answer.code} from {address}: {answer.remark}"

    def _given(
        self,
        ask: Fetch,
        lanes: Sequence[Lane],
        records: memoryview,
        subscription: Subscription,
    ) -> tuple[Given, ...]:
        stored, trouble = _read(records)
        found: list[Given] = []
        is_blamed, room_bytes = False, INFLATED_SIZE_MAX
        for lane in lanes:
            queue = MessageQueue(ask.place.topic, ask.place.broker_name, lane.queue_id)
            messages, readable, reason = self._messages(lane, queue, stored, trouble, room_bytes)
            room_bytes -= sum(message.size_bytes for message in messages)
            if reason and reason is trouble:
                # Messages after the unreadable record did not fail: they are given back.
                reason, is_blamed = "" if is_blamed else reason, True
            wanted = self._filtered(tuple(messages), subscription)
            found.append(Given(lane, wanted, readable, reason, self._key(lane, messages)))

        return tuple(found)

    def _key(self, lane: Lane, messages: Sequence[ReceivedMessage]) -> str:
        """Return the whole key of a lane, of which a broker shows the beginning; empty if no message has it."""
        if len(lane.key) < KEY_LENGTH_SHOWN:
            return lane.key
        keys = (each.properties.get(self.key_property, "") for each in messages)

        return next((key for key in keys if key.startswith(lane.key)), "")

    def _messages(
        self,
        lane: Lane,
        queue: MessageQueue,
        stored: Mapping[tuple[int, int], StoredMessage],
        trouble: str,
        room_bytes: int,
    ) -> tuple[list[ReceivedMessage], int | None, str]:
        """Return a lane's messages, the offset that cannot be read, and the reason.

        A record that is missing stands for a message that is no longer stored. An offset without a reason means that
        the bodies inflate to more than one fetch may bring; the messages from there on are given back.
        """
        messages: list[ReceivedMessage] = []
        for offset in lane.offsets:
            if room_bytes <= 0:
                return messages, offset, ""
            record = stored.get((lane.queue_id, offset))
            if record is None:
                if trouble:
                    return messages, offset, trouble
                continue
            try:
                message = read_record(record, queue, self._group)
            except CompressionError as error:
                return messages, offset, f"unreadable message: {error}"
            if offset == lane.offsets[0]:
                message.reconsume_times = lane.tries
            messages.append(message)
            room_bytes -= message.size_bytes

        return messages, None, ""

    # -- completions

    async def complete(self, ask: Complete) -> Answered | CompleteFailed:
        """Send reports about attempts."""
        place, reports = ask.place, ask.reports
        address = await self._instance.address(place.broker_name, place.topic)
        if address is None:
            return CompleteFailed(place, reports, "no leader's address")
        header = CompleteLanesHeader(self._group, place.topic, self._instance.client_id)
        code = RequestCode.ORDERLYMQ_COMPLETE_LANES
        command = request(code, header.to_ext(), LaneReports(reports).to_json())
        asked_at_ms = self._now_ms()
        try:
            answer = await self._instance.invoke(address, command, _COMPLETE_TIMEOUT_S)
            if answer.code in _REFUSED:
                reason = self._refusal(answer, address)
                return CompleteFailed(place, reports, reason, refused=True)
            verdicts = LaneVerdicts.from_json(check(answer, address).body).of(reports)
        except TROUBLE as error:
            return CompleteFailed(place, reports, str(error))
        return Answered(place, reports, verdicts, asked_at_ms)


def _read(records: memoryview) -> tuple[dict[tuple[int, int], StoredMessage], str]:
    """Return the records by queue and offset, and why the records after them cannot be read."""
    found: dict[tuple[int, int], StoredMessage] = {}
    try:
        for each in iter_records(records):
            found[each.queue_id, each.queue_offset] = each
    except RecordError as error:
        return found, f"unreadable record: {error}"

    return found, ""
