"""
A client that repeatedly makes topics and groups, uses and deletes them, while others use them as well.

It sends, repeats earlier sends after short and long times, takes locks, commits offsets, and reads what is stored.
The answers must belong to the present life of a topic; the laws are in ``lives.py`` and ``window.py``.
"""

from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Final

from orderlymq.connection.wire import is_stored
from orderlymq.consumer.group.requests import commit_request, fence, lock_request, read_locks
from orderlymq.errors import OrderlyMQError
from orderlymq.message import Message
from orderlymq.producer.requests import SendOptions, read_send_result, send_request
from orderlymq.settings import ProducerSettings
from orderlymq_protocol.body.catalogue import ConsumerData, HeartbeatData, SubscriptionData
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.catalogue import (
    CreateTopicHeader,
    DeleteSubscriptionGroupHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
)
from orderlymq_raft import Role
from orderlymq_runtime.remoting.client import RemotingError
from tests.sim.clients.accounts import OPERATOR
from tests.sim.clients.client import Client
from tests.sim.invariants.lives import RECYCLED
from tests.sim.timeline import MS, SECOND

if TYPE_CHECKING:
    from tests.sim.world import World

GROUP: Final = "gatherers"
QUEUES: Final = 2
LEASE_MS: Final = 3_000
TIMEOUT_US: Final = SECOND
RETRY_US: Final = 100 * MS
ATTEMPTS: Final = 10
_OPTIONS: Final = SendOptions(
    "recyclers",
    ProducerSettings(
        create_topic_key="no-such-topic",  # a deleted topic is not created again by a send
        compress_message_body_over_bytes=1 << 20,
    ),
)
Answer = RemotingCommand | RemotingError | None
# The next step: a request, or a pause of so many microseconds.
Steps = Generator[RemotingCommand | int, Answer, None]
Asking = Generator[RemotingCommand | int, Answer, RemotingCommand | None]


class Recycler(Client):
    """One of several that share their topics, so that one deletes a topic that another uses."""

    def __init__(self, world: "World", number: int) -> None:
        super().__init__(world, f"recycler-{number}", f"10.0.8.{number}")
        self.account = OPERATOR
        self._sent: dict[str, list[tuple[str, int]]] = {}  # by topic: keys and their queues
        self._number = 0

    def start(self) -> None:
        """Begin."""
        self.begin()
        self._steps = self._live()
        self._go_on(None)

    def _go_on(self, answer: Answer) -> None:
        try:
            step = self._steps.send(answer)
        except StopIteration:
            return
        if isinstance(step, int):
            self.after(step, "think", partial(self._go_on, None))
        else:
            self.call(step, TIMEOUT_US, self._go_on)

    def _live(self) -> Steps:
        random = self.timeline.random
        while not self.world.calm:
            topic = random.choice(RECYCLED)
            yield from self._ask(self._creation(topic))
            epochs = yield from self._join(topic)
            for _ in range(random.randrange(5, 25)):
                yield from self._send(topic)
                yield random.randrange(5 * MS, 60 * MS)
                if random.random() < 0.2:
                    yield from self._look(topic)
            yield from self._commit(topic, epochs)
            yield from self._look(topic)
            if random.random() < 0.7:
                header = {"topic": topic}
                yield from self._ask(request(RequestCode.DELETE_TOPIC_IN_BROKER, header))
            else:
                yield from self._delete_group(topic)
            # A commit that is under way when its life ends arrives now.
            yield from self._commit(topic, epochs)

    def _delete_group(self, topic: str) -> Steps:
        """Delete the group, usually after giving back the own queues; it stays while the other recycler holds some."""
        random = self.timeline.random
        if random.random() < 0.8:
            queues = [MessageQueue(topic, "broker-a", queue) for queue in range(QUEUES)]
            code, client_id = RequestCode.UNLOCK_BATCH_MQ, f"{self.name}#1"
            yield from self._ask(lock_request(code, client_id, GROUP, queues, None))
        leaving = DeleteSubscriptionGroupHeader(GROUP, clean_offset=random.random() < 0.5)
        for _ in range(ATTEMPTS):
            answer = yield request(RequestCode.DELETE_SUBSCRIPTIONGROUP, leaving.to_ext())
            in_use = ResponseCode.ORDERLYMQ_GROUP_IN_USE
            if not isinstance(answer, RemotingCommand) or answer.code != in_use:
                return
            self.world.coverage["group in use"] += 1
            yield RETRY_US

    def _ask(self, command: RemotingCommand) -> Asking:
        """Ask once; return None if there is no answer, or one without success."""
        answer = yield command
        if isinstance(answer, RemotingCommand) and answer.code == ResponseCode.SUCCESS:
            return answer
        yield RETRY_US
        return None

    @staticmethod
    def _creation(topic: str) -> RemotingCommand:
        header = CreateTopicHeader(topic, "TBW102", QUEUES, QUEUES, 6, "SINGLE_TAG", order=True)
        return request(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())

    def _join(self, topic: str) -> Generator[RemotingCommand | int, Answer, dict[int, int]]:
        """Become a member of the group and take the free queues."""
        client_id = f"{self.name}#1"
        data = ConsumerData(GROUP, subscription_data_set=(SubscriptionData.of_tags(topic, "*", 1),))
        body = HeartbeatData(client_id, (), (data,)).to_json()
        yield from self._ask(request(RequestCode.HEART_BEAT, None, body))
        queues = [MessageQueue(topic, "broker-a", queue) for queue in range(QUEUES)]
        command = lock_request(RequestCode.LOCK_BATCH_MQ, client_id, GROUP, queues, LEASE_MS)
        answer = yield from self._ask(command)
        if answer is None:
            return {}
        granted, _ = read_locks(answer.body)
        return {queue.queue_id: epoch for queue, epoch in granted.items() if epoch is not None}

    def _send(self, topic: str) -> Steps:
        """Send a new message or repeat an earlier one, in this life of the topic or in another one."""
        random, laws = self.timeline.random, self.world.laws
        sent = self._sent.setdefault(topic, [])
        if sent and random.random() < 0.4:
            unique, queue_id = random.choice(sent[-40:])
        else:
            self._number += 1
            unique, queue_id = f"{self.name}.{self._number}", random.randrange(QUEUES)
            sent.append((unique, queue_id))
        message = Message(topic=topic, body=unique.encode(), key="k", unique_key=unique)
        queue = MessageQueue(topic, "broker-a", queue_id)
        number = laws.lives.number(topic)
        before = None if number is None else laws.window.known(number, unique)
        was_stored = number is not None and (number, unique) in laws.model.places
        answer = yield send_request(message, queue, _OPTIONS, 0)
        if not isinstance(answer, RemotingCommand) or not is_stored(answer.code):
            yield RETRY_US
            return
        try:
            offset = read_send_result(answer, unique, queue).queue_offset
        except OrderlyMQError:
            return
        if number is None or number != laws.lives.number(topic):
            return  # it is unknown which life was meant
        place = laws.model.at.get((number, queue_id, offset))
        laws.ensure(
            place == unique,
            "acknowledged",
            f"{unique} is acknowledged at {(queue_id, offset)} of {topic}, there stands {place}",
        )
        if before is not None and laws.window.known(number, unique) is before:
            self.world.coverage["repeat answered with its first place"] += 1
            laws.ensure(
                offset == before.offset,
                "window",
                f"{unique} is repeated at {offset}, the window knows it at {before.offset}",
            )
        elif was_stored:
            self.world.coverage["repeat after its window"] += 1

    def _look(self, topic: str) -> Steps:
        """Read the end and the committed offset of a queue; no answer may come from a former life."""
        laws, queue = self.world.laws, self.timeline.random.randrange(QUEUES)
        number, key = laws.lives.number(topic), (GROUP, topic, queue)
        if number is None:
            return
        ends = QueueHeader(topic, queue).to_ext()
        end = yield from self._ask_in_life(request(RequestCode.GET_MAX_OFFSET, ends))
        laws.ensure(
            end <= laws.model.ends[number, queue],
            "lives",
            f"queue {queue} of {topic} is said to end at {end}, in this life it does at "
            f"{laws.model.ends[number, queue]}",
        )
        header = QueryConsumerOffsetHeader(*key).to_ext()
        offset = yield from self._ask_in_life(request(RequestCode.QUERY_CONSUMER_OFFSET, header))
        laws.ensure(
            offset <= laws.model.offsets.get(key, 0),
            "lives",
            f"{key} is said to be at {offset}, in this life it is at {laws.model.offsets.get(key)}",
        )

    def _ask_in_life(
        self, command: RemotingCommand
    ) -> Generator[RemotingCommand | int, Answer, int]:
        """Ask for an offset; return 0 if there is none, or if a deletion is not applied by all leaders or comes meanwhile.

        A leader with a slow disk applies a deletion after its followers. No client has learned of
        the deletion until then.
        """
        lives = self.world.laws.lives
        deleted_at = lives.deleted_at
        for replica in self.world.replicas.values():
            if (
                replica.alive
                and replica.node.role is Role.LEADER
                and replica.state.applied_index < deleted_at
            ):
                return 0
        answer = yield from self._ask(command)
        if answer is None or lives.deleted_at != deleted_at:
            return 0
        return int(answer.ext["offset"])

    def _commit(self, topic: str, epochs: dict[int, int]) -> Steps:
        """Commit under the granted locks, even if another client holds them by now."""
        number = self.world.laws.lives.number(topic)
        for queue, epoch in epochs.items():
            end = 1 if number is None else self.world.laws.model.ends[number, queue]
            name = MessageQueue(topic, "broker-a", queue)
            command = commit_request(GROUP, name, max(end, 1), fence(f"{self.name}#1", epoch))
            yield from self._ask(command)
