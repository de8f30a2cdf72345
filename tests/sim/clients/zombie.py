"""
A consumer that continues after it has lost its queue: it checks neither its lease nor its clock.

It pulls and commits as its former client, over its own connection. The law (6 and the fence): once another client has
the queue, this one gets nothing and moves nothing.
"""

from functools import partial
from typing import TYPE_CHECKING, Final

from orderlymq.consumer.group.requests import PullOptions, commit_request, fence, pull_request
from orderlymq_protocol.body.catalogue import ConsumerData, HeartbeatData, SubscriptionData
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_runtime.remoting.client import RemotingError
from tests.sim.clients.client import Client
from tests.sim.timeline import MS, SECOND

if TYPE_CHECKING:
    from tests.sim.world import World

EVERY_US: Final = 250 * MS
LIFE_US: Final = 6 * SECOND
TIMEOUT_US: Final = SECOND


class Zombie(Client):
    """The remains of a member that held *queue* under *epoch* (None: an unmodified client)."""

    def __init__(
        self,
        world: "World",
        client_id: str,
        group: str,
        queue: MessageQueue,
        epoch: int | None,
        *,
        plain: bool,
        account: str,
    ) -> None:
        super().__init__(world, f"zombie of {client_id}", "10.0.6.1")
        self.account = account
        self._client_id = client_id
        self._group = group
        self._queue = queue
        self._epoch = epoch
        self._plain = plain
        self._until = world.timeline.now + LIFE_US
        self._subscription = SubscriptionData.of_tags(world.topic, "*", 1)

    def start(self) -> None:
        """Begin to pull and commit."""
        self.begin()
        self._go_on()

    def connected(self) -> None:
        """Say who it is; a commit that wants an answer would be a tool's on a connection without a heartbeat."""
        if self._plain:
            data = ConsumerData(self._group, subscription_data_set=(self._subscription,))
            body = HeartbeatData(self._client_id, (), (data,)).to_json()
            self.call(request(RequestCode.HEART_BEAT, None, body), TIMEOUT_US, lambda _: None)

    def _go_on(self) -> None:
        if self.timeline.now >= self._until or self.world.calm:
            self.forget_calls()
            self.end()
            return
        self.after(EVERY_US, "go on", self._go_on)
        if not self._has_lost():
            return
        model = self.world.laws.model
        key = (self._group, self._queue.topic, self._queue.queue_id)
        end = model.ends[self.world.topic_id, self._queue.queue_id]
        committed = model.offsets.get(key, 0)
        ext = {} if self._plain else fence(self._client_id, self._epoch)
        if self.timeline.random.random() < 0.5 and end:
            offset = self.timeline.random.randrange(committed, end + 1)
            command = commit_request(self._group, self._queue, offset, ext)
            self.call(command, TIMEOUT_US, partial(self._answered, "commit"))
            return
        command = pull_request(
            PullOptions(
                group=self._group,
                queue=self._queue,
                offset=max(0, committed - 1),
                count=8,
                subscription=self._subscription,
                commit_offset=end,
                fence=ext,
            )
        )
        self.call(command, TIMEOUT_US, partial(self._answered, "pull"))

    def _has_lost(self) -> bool:
        """Return whether another client has the queue, so that this one can never have it again."""
        key = (self._group, self._queue.topic, self._queue.queue_id)
        lock = self.world.laws.model.locks.get(key)
        return lock is not None and lock.client not in ("", self._client_id)

    def _answered(self, what: str, answer: RemotingCommand | RemotingError) -> None:
        if isinstance(answer, RemotingError) or not self._has_lost():
            return
        self.world.coverage[f"{what} of a zombie answered"] += 1
        self.world.laws.ensure(
            answer.code != ResponseCode.SUCCESS,
            "fence",
            f"{self.name}: a {what} of {self._queue} was served under epoch {self._epoch}",
        )
