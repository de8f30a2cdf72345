"""The parts that a consumer's settings determine: core, workers, offsets; and the check of the settings."""

from collections.abc import Callable, Collection, Sequence
from inspect import isasyncgenfunction, isgeneratorfunction, signature

from orderlymq.connection.instance import ClientInstance
from orderlymq.consumer.core.concurrent import ConcurrentConsumer, ConcurrentRules
from orderlymq.consumer.core.flowcontrol import FlowLimits
from orderlymq.consumer.core.ordered import OrderedConsumer
from orderlymq.consumer.core.queuestate import OrderedRules
from orderlymq.consumer.group.offsets import (
    BrokerOffsets,
    LocalOffsets,
    OffsetStore,
    local_offsets_path,
)
from orderlymq.consumer.lanes.core import LaneCore, LaneRules
from orderlymq.consumer.listeners.context import ConsumeHook, Listener
from orderlymq.consumer.listeners.messageloop import MessageLoop
from orderlymq.consumer.listeners.pool import ListenerPool
from orderlymq.consumer.settings import ConsumeFrom, ConsumerSettings, MessageModel
from orderlymq.durations import milliseconds
from orderlymq.errors import SettingError


def make_core(
    group: str, settings: ConsumerSettings, *, ordered: bool
) -> OrderedConsumer | ConcurrentConsumer:
    """Return the core of a consumer; both kinds take the same events and give the same instructions."""
    clustering = settings.message_model is MessageModel.CLUSTERING
    limits = FlowLimits(
        settings.pull_threshold_for_queue,
        settings.pull_threshold_size_for_queue_mib,
        settings.consume_concurrently_max_span,
        settings.pull_threshold_for_topic,
        settings.pull_threshold_size_for_topic_mib,
    )
    if ordered:
        return OrderedConsumer(
            group,
            OrderedRules(
                lease_ms=milliseconds(settings.lock_lease),
                renew_ms=milliseconds(settings.lock_renew),
                suspend_ms=milliseconds(settings.suspend_current_queue_time),
                batch_max=settings.consume_message_batch_max_size,
                reconsume_max=settings.reconsume_max(ordered=True),
                pull_interval_ms=milliseconds(settings.pull_interval),
                continuous_max_ms=milliseconds(settings.max_time_consume_continuously),
                uncommitted_warning=settings.uncommitted_warning_count,
                needs_lock=clustering,
                limits=limits,
            ),
        )
    return ConcurrentConsumer(
        group,
        ConcurrentRules(
            batch_max=settings.consume_message_batch_max_size,
            pull_interval_ms=milliseconds(settings.pull_interval),
            timeout_ms=milliseconds(settings.consume_timeout),
            broadcasting=not clustering,
            limits=limits,
        ),
    )


def make_lane_core(settings: ConsumerSettings, workers: int, first_sequence: int) -> LaneCore:
    """Return the core of a consumer by key."""
    maximum = settings.max_reconsume_times

    return LaneCore(
        LaneRules(
            workers=workers,
            ahead_max=settings.lane_ahead_max,
            batch_max=settings.lane_batch(),
            renew_ms=milliseconds(settings.lock_renew),
            tries_max=None if maximum < 0 else maximum,
            first_sequence=first_sequence,
        )
    )


def make_listeners(
    group: str,
    settings: ConsumerSettings,
    listener: Listener | None,
    hooks: Sequence[ConsumeHook],
    *,
    ordered: bool,
) -> tuple[ListenerPool, MessageLoop | None]:
    """Return the workers of a consumer, and the hand-over to a loop if no listener is given."""
    workers = slots = settings.consume_thread_max
    loop = None
    if listener is None:
        # The slot for one message is released when a loop asks for the first message.
        loop = MessageLoop(group)
        listener, slots = loop.offer, 0
    pool = ListenerPool(
        group,
        listener,
        ordered=ordered,
        workers=workers,
        slots=slots,
        timeout_ms=milliseconds(settings.consume_timeout),
        hooks=hooks,
    )
    if loop is not None:
        loop.begin, loop.outlives = pool.slots.release, pool.outlives
        pool.cancels = False  # the program has the message, even if its offer is cancelled
    return pool, loop


def make_offsets(instance: ClientInstance, group: str, settings: ConsumerSettings) -> OffsetStore:
    """Return the store for a consumer's offsets: at the broker (clustering), or in a file of each member (broadcasting)."""
    if settings.message_model is MessageModel.CLUSTERING:
        return BrokerOffsets(instance, group)
    return LocalOffsets(local_offsets_path(instance.client_id, group))


def check_settings(
    group: str,
    settings: ConsumerSettings,
    topics: Collection[str],
    listener: object,
    *,
    by_key: bool,
) -> None:
    """Refuse settings with which a consumer cannot start.

    Raises:
        SettingError: The consumer has no topic, or a listener that cannot be called; or it is by key and broadcasts or
            begins at a time.
    """
    if not topics:
        raise SettingError(f"the consumer {group} subscribes to no topic; pass topics=")
    if by_key:
        _check_lane_settings(group, settings)
    if listener is not None and not callable(listener):
        raise SettingError(f"the listener of {group} is {listener!r}; pass a function")
    if listener is not None:
        _check_arguments(group, listener)


def _check_arguments(group: str, listener: Callable[..., object]) -> None:
    """Refuse a listener that would fail on every message."""
    if isgeneratorfunction(listener) or isasyncgenfunction(listener):
        raise SettingError(f"the listener of {group} is a generator, so its body would never run")
    try:
        signature(listener).bind([], None)
    except TypeError as error:
        text = f"the listener of {group} is called with messages and context, but: {error}"
        raise SettingError(text) from error
    except ValueError:
        return  # a listener written in C may have no signature


def _check_lane_settings(group: str, settings: ConsumerSettings) -> None:
    if settings.message_model is not MessageModel.CLUSTERING:
        raise SettingError(
            f'the consumer {group} has ordered="key" and broadcasting, where members get every message and share no '
            "lanes: use ordered=True"
        )
    if settings.consume_from is ConsumeFrom.TIMESTAMP:
        raise SettingError(
            f"the consumer {group} consumes by key, which can begin only at first or last; to begin at a time, run "
            f"`orderlymq group reset {group} --topic TOPIC --to TIME`"
        )
