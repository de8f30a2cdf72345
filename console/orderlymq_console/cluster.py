"""
Requests to name servers and brokers, one broker group at a time.

Rules: each broker group's answer is a reading with its own age and reason, so if one is away, the figures of the others stay known.
A broker group that was registered once and no longer is counts as unknown, and no plan is made without it. It is forgotten
when it has been away for `FORGOTTEN_S` and no name server names it, because then it was removed.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from orderlymq.admin.client import AdminClient
from orderlymq.admin.queuelists import named_groups
from orderlymq.connection.instance import unless_missing
from orderlymq.connection.routes import NO_ROUTE
from orderlymq.consumer.group.queuereader import QueueReader
from orderlymq.errors import BrokerUnreachable
from orderlymq_console.collector import Collector, Reading
from orderlymq_console.journal import Journal
from orderlymq_console.models import Figure, Source, bounded
from orderlymq_console.pipelines.reports import PipelineSource
from orderlymq_console.pods import EVERY_S as PODS_EVERY_S
from orderlymq_console.pods import KEPT_S as PODS_KEPT_S
from orderlymq_console.pods import PodList, PodNames, Pods
from orderlymq_console.sentletters import SentLetters
from orderlymq_console.status import BlockedReport, StatusReport
from orderlymq_protocol.body.config import SubscriptionGroupConfig, TopicConfig
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.names import TOOLS_GROUP

T = TypeVar("T")

NAME_SERVERS: Final = "name servers"
# The catalogues of 10,000 topics and 5,000 consumer groups take megabytes and change seldom. A leader's status reports the version
# of its topics and the number of its consumer groups. When one of these changes, the catalogue is read again soon.
TOPICS_S: Final = 60.0
GROUPS_S: Final = 10.0
# A page has already waited for brokers.
PODS_WAIT_S: Final = 0.2
# Broker groups that are remembered; a cluster has fewer.
REMEMBERED_MAX: Final = 256
NOT_REGISTERED: Final = (
    "no leader is registered at the name servers: the broker group is down, or was removed"
)
#: A broker group without ordered topics is in no queue list, whether it is away or removed. The list of changes covers the same time.
FORGOTTEN_S: Final = 3600.0
# Reading the queue lists takes the routes of all topics, so a page does not wait for it.
NAMED_S: Final = 60.0
NAMED_TIMEOUT_S: Final = 20.0
NAMED_WAIT_S: Final = 0.2
# The number of readings that a rate is computed over.
SAMPLES_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """The answers to one question, by broker group."""

    readings: Mapping[str, Reading[T]]

    def known(self) -> Iterator[tuple[str, T]]:
        """Yield each broker group that answered, with its answer."""
        for name, reading in self.readings.items():
            if reading.value is not None:
                yield name, reading.value

    @property
    def unknown(self) -> str:
        """The broker groups that gave no answer, and why; empty if all answered."""
        return "; ".join(
            f"{name}: {reading.unknown}"
            for name, reading in self.readings.items()
            if reading.value is None
        )

    def reason(self, name: str) -> str:
        """Return why a broker group gave no answer; empty if it answered."""
        reading = self.readings.get(name)
        if reading is not None:
            return reading.unknown
        return self.unknown or "no leader is registered"

    def total(
        self,
        count: Callable[[T], float | None],
        missing: Callable[[T], str] = lambda _: "",
    ) -> Figure:
        """Return the sum over all answers; a lower bound if one is missing.

        Args:
            count: returns the part of one answer; None if the answer does not have it.
            missing: returns why an answer lacks its part, or may have only some of it; empty if the answer is complete.
        """
        found = [count(value) for _, value in self.known()]
        counts = [each for each in found if each is not None]
        reasons = {reason for _, value in self.known() if (reason := missing(value))}
        reason = self.unknown or "; ".join(sorted(reasons))
        if not counts:
            return Figure(unknown=reason)

        return bounded(sum(counts), reason)


@dataclass(frozen=True, slots=True)
class _Names:
    """Names from the catalogues of broker groups, and the answers that they come from."""

    brokers: tuple[str, ...]
    tables: list[Any]
    names: list[str]

    def are_of(self, brokers: Iterable[str], tables: list[Any]) -> bool:
        """Return whether the names come from these answers."""
        return self.brokers == tuple(brokers) and [*map(id, self.tables)] == [*map(id, tables)]


class ClusterReader:
    """Reads from the cluster through the collector.

    Attributes:
        pulls: reads messages as an admin tool, without a queue lock and without a commit.
        unregistered: broker groups that were registered once but not at the last reading.
        pipelines: the source of Spark pipelines; None if none is configured.
    """

    def __init__(
        self,
        admin: AdminClient,
        collector: Collector,
        pipelines: PipelineSource | None = None,
        pods: Pods | None = None,
    ) -> None:
        self.admin = admin
        self.pulls = QueueReader(admin.instance, TOOLS_GROUP)
        self.collector = collector
        self.pipelines = pipelines
        self._pods = pods
        self._listed: Reading[PodList] | None = None
        self.rates = Rates()
        self.journal = Journal()
        self._standstills = Standstills()
        self.sent = SentLetters()
        # The time at which each broker group was last registered, and the broker groups that are not registered now.
        self._remembered: dict[str, float] = {}
        self.unregistered: tuple[str, ...] = ()
        self._last: dict[str, StatusReport] = {}
        self._listed_names: dict[Hashable, _Names] = {}

    def last_status(self, name: str) -> StatusReport | None:
        """Return the last status that the leader of a broker group reported, of any age; None if there was none."""
        return self._last.get(name)

    async def brokers(self) -> Reading[dict[str, str]]:
        """Return the leader's address of every registered broker group."""
        found = await self.collector.read("brokers", self.admin.brokers)
        if found.value is None:
            return found
        for name in found.value:
            if name in self._remembered or len(self._remembered) < REMEMBERED_MAX:
                self._remembered[name] = found.at_s
        since_s = found.at_s - FORGOTTEN_S
        if any(seen_s < since_s for seen_s in self._remembered.values()):
            await self._forget(since_s)
        self.unregistered = tuple(sorted(self._remembered.keys() - found.value.keys()))
        return found

    async def _forget(self, since_s: float) -> None:
        """Forget the broker groups that were last registered before *since_s* and that no name server names."""
        read = self.collector.read
        try:
            async with asyncio.timeout(NAMED_WAIT_S):
                named = await read(
                    "named", self.admin.absent_groups, every_s=NAMED_S, timeout_s=NAMED_TIMEOUT_S
                )
        except TimeoutError:
            return
        for name, seen_s in list(self._remembered.items()):
            if seen_s < since_s and named.value is not None and name not in named.value:
                del self._remembered[name]

    async def check_whole(self, topic: str) -> None:
        """Refuse to go on if a broker group is away, because every answer lacks its part of the topic.

        Raises:
            BrokerUnreachable: A broker group that is remembered, or that a queue list names, has no leader.
            OrderlyMQError: The name servers do not answer.
        """
        registered = await self.admin.brokers()
        named = await named_groups(self.admin.instance, [topic])
        if away := sorted({*self._remembered, *named} - registered.keys()):
            raise BrokerUnreachable(f"{away[0]}: {NOT_REGISTERED}")

    async def of_each(
        self,
        about: Hashable,
        ask: Callable[[AdminClient], Awaitable[T]],
        *,
        every_s: float = 1.0,
        marks: Mapping[str, Hashable] | None = None,
    ) -> Answers[T]:
        """Ask every broker group; *marks* gives the version of the data at each, as `Collector.read` takes it."""
        brokers = await self.brokers()
        if brokers.value is None:
            return Answers({NAME_SERVERS: Reading(None, brokers.unknown, brokers.at_s)})
        names = sorted({*brokers.value, *self._remembered})
        if not names:
            reason = "no broker group is registered; start one with `orderlymq up -f FILE`"
            return Answers({NAME_SERVERS: Reading(None, reason, brokers.at_s)})
        readings = await asyncio.gather(
            *(
                self._of_one(name, brokers, about, ask, every_s, (marks or {}).get(name))
                for name in names
            )
        )

        return Answers(dict(zip(names, readings, strict=True)))

    async def _of_one(
        self,
        name: str,
        brokers: Reading[dict[str, str]],
        about: Hashable,
        ask: Callable[[AdminClient], Awaitable[T]],
        every_s: float,
        mark: Hashable,
    ) -> Reading[T]:
        address = (brokers.value or {}).get(name)
        if address is None:
            return Reading(None, NOT_REGISTERED, brokers.at_s)
        client = self.admin.at(name, address)
        if about != "status" and (silence := self.silence(name)) is not None:
            return silence
        # A status request waits for no other request, because it shows which broker group is silent.
        of: Hashable = (about, name) if about == "status" else name
        return await self.collector.read(
            (about, name), lambda: ask(client), of=of, every_s=every_s, mark=mark
        )

    def silence(self, name: str) -> Reading[Any] | None:
        """Return the recent reading in which a broker group did not answer a status request; None if there is none."""
        return self.collector.silence(("status", name))

    async def statuses(self) -> Answers[StatusReport]:
        """Return the status of every broker group, as its leader reports it."""
        found = await self.of_each("status", self._status)
        for name, reading in found.readings.items():
            self.rates.note(name, reading)
            if name != NAME_SERVERS:
                self.journal.note(name, reading.value, reading.unknown)
            if reading.value is not None:
                self._last[name] = reading.value
        return found

    async def _status(self, client: AdminClient) -> StatusReport:
        ((name, address),) = (await client.brokers()).items()
        status = StatusReport.model_validate(await client.group_status(address))
        return self._standstills.reported(name, status)

    async def topics(self) -> Answers[dict[str, TopicConfig]]:
        """Return the topics of every broker group."""
        statuses = await self.statuses()
        marks = {name: status.topics_version for name, status in statuses.known()}
        return await self.of_each("topics", _topics, every_s=TOPICS_S, marks=marks)

    def sorted_names(
        self, about: Hashable, answers: Answers[dict[str, T]], is_shown: Callable[[str], bool]
    ) -> Sequence[str]:
        """Return the sorted names in the catalogues for which *is_shown* holds. They are sorted once per answer, not once per page."""
        tables = [table for _, table in answers.known()]
        kept = self._listed_names.get(about)
        if kept is None or not kept.are_of(answers.readings, tables):
            names = [name for name in sorted(set().union(*tables)) if is_shown(name)]
            kept = self._listed_names[about] = _Names(tuple(answers.readings), tables, names)
        return kept.names

    async def pods(self) -> PodNames | None:
        """Return the pods by address, read now or a few seconds ago; None if the console does not run in a pod.

        A page hardly waits for the API server: if no answer comes in time, the last list is used while it is young.
        """
        if self._pods is None:
            return None
        reading: Reading[PodList]
        try:
            async with asyncio.timeout(PODS_WAIT_S):
                reading = await self.collector.read("pods", self._pods.read, every_s=PODS_EVERY_S)
        except TimeoutError:
            now_s = self.collector.now_s()
            reading = Reading(None, "the API server has not answered yet", now_s)
        if reading.value is not None:
            self._listed = reading
        elif self._listed is not None and self.collector.age_s(self._listed) < PODS_KEPT_S:
            reading = self._listed
        return PodNames(reading.value, reading.unknown, self.collector.age_s(reading))

    async def queues(self, topic: str) -> Reading[set[MessageQueue]]:
        """Return the queues of a topic that can be read; empty if there is no such topic."""

        async def ask() -> set[MessageQueue]:
            return set((await unless_missing(self.admin.route(topic), NO_ROUTE)).subscribe)

        return await self.collector.read(("queues", topic), ask)

    async def groups(self) -> Answers[dict[str, SubscriptionGroupConfig]]:
        """Return the consumer groups of every broker group."""
        statuses = await self.statuses()
        marks = {name: status.groups for name, status in statuses.known()}
        return await self.of_each("groups", AdminClient.groups, every_s=GROUPS_S, marks=marks)

    def sources(self, *asked: Answers[Any]) -> tuple[Source, ...]:
        """Return the sources of some answers: for each broker group its oldest answer, and the first reason for a missing one."""
        found: dict[str, Source] = {}
        for answers in asked:
            for name, reading in answers.readings.items():
                age_s = round(self.collector.age_s(reading), 1)
                before = found.get(name)
                found[name] = Source(
                    name=name,
                    age_seconds=age_s if before is None else max(age_s, before.age_seconds),
                    unknown=(before.unknown if before is not None else "") or reading.unknown,
                )
        return tuple(found[name] for name in sorted(found))


async def _topics(client: AdminClient) -> dict[str, TopicConfig]:
    return {
        topic: config
        for topic, parts in (await client.topic_configs()).items()
        for config in parts.values()
    }


class Standstills:
    """The queues that stood still at the last reading. They are kept when a leader changes, because a new leader starts without them."""

    def __init__(self) -> None:
        self._known: dict[str, dict[tuple[str, str, int, int], BlockedReport]] = {}

    def reported(self, name: str, status: StatusReport) -> StatusReport:
        """Return a status with the standstills that a new leader cannot know yet, and with the earliest known start of each."""
        known = self._known.get(name, {})
        blocked = () if status.examined is None else status.examined.blocked
        rows = {_place(row): _older(row, known.get(_place(row))) for row in blocked}
        # If the leader names a queue at another offset, the queue has moved on.
        named = {place[:3] for place in rows}
        kept = {
            place: row
            for place, row in known.items()
            if status.blocked_unknown and place[:3] not in named
        }
        self._known[name] = {**rows, **kept}
        changes: dict[str, object] = {"kept": tuple(kept.values())}
        if status.watch is not None:
            changes["watch"] = status.watch.model_copy(update={"blocked": tuple(rows.values())})

        return status.model_copy(update=changes)


def _place(row: BlockedReport) -> tuple[str, str, int, int]:
    return (row.group, row.topic, row.queue, row.offset)


def _older(row: BlockedReport, before: BlockedReport | None) -> BlockedReport:
    if before is None or before.since >= row.since:
        return row
    return row.model_copy(update={"since": before.since})


class Rates:
    """Rates computed from the counters of a leader's last statuses."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[tuple[float, dict[str, int]]]] = {}
        self._leaders: dict[str, tuple[int | None, int | None]] = {}

    def note(self, broker: str, reading: Reading[StatusReport]) -> None:
        """Add a reading. A repeated reading changes nothing; the counters of another process or leader start again."""
        if reading.value is None:
            return
        samples = self._samples.setdefault(broker, deque(maxlen=SAMPLES_MAX))
        counters, leader = reading.value.counters, (reading.value.leader, reading.value.term)
        if self._leaders.get(broker) != leader:
            samples.clear()  # each replica counts for itself
            self._leaders[broker] = leader
        if samples and samples[-1][0] == reading.at_s:
            return
        if samples and any(counters.get(n, 0) < count for n, count in samples[-1][1].items()):
            samples.clear()  # the process restarted
        samples.append((reading.at_s, counters))

    def per_second(self, broker: str, counter: str, now_s: float) -> Figure:
        """Return the growth rate of a counter over the last readings, which span ten seconds while somebody looks."""
        samples = [
            each for each in self._samples.get(broker, ()) if now_s - each[0] <= 3 * SAMPLES_MAX
        ]
        if len(samples) < 2:
            return Figure(unknown="a rate needs two readings a second apart")
        (begin_s, first), (end_s, last) = samples[0], samples[-1]
        grown = last.get(counter, 0) - first.get(counter, 0)

        return Figure(value=round(grown / (end_s - begin_s), 1))


def add(figures: list[Figure]) -> Figure:
    """Return the sum of figures: unknown if all are unknown, a lower bound if some are."""
    known = [each.value for each in figures if each.value is not None]
    reasons = [each.unknown for each in figures if each.value is None]
    reasons += ["a part is unknown" for each in figures if each.at_least]
    if not known and reasons:
        return Figure(unknown=reasons[0])

    return bounded(sum(known), reasons[0] if reasons else "")
