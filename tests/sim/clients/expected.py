"""
The message that a listener must see next: an account of each queue in one generation of its fetcher.

Rule (law 4): the offsets under one lock follow each other from the one that the broker named. Only a ROLLBACK goes
back, to the first uncommitted offset. Shares no code with the SDK's core.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orderlymq.consumer.core.events import Deliver, OrderedResult
from orderlymq_protocol.body.messagequeue import MessageQueue

if TYPE_CHECKING:
    from tests.sim.world import World


@dataclass(slots=True)
class _Account:
    generation: int
    next: int
    uncommitted: int = -1  # first offset that a ROLLBACK brings back
    auto_commit: bool = True  # the listener's latest choice
    dead: set[int] = field(default_factory=set)  # dead letters are not consumed again


class Expected:
    """The accounts of one consumer process."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._accounts: dict[MessageQueue, _Account] = {}

    def begun(self, queue: MessageQueue, generation: int, offset: int) -> None:
        """Note where a new generation begins."""
        account = self._accounts.get(queue)
        if account is None or account.generation < generation:
            self._accounts[queue] = _Account(generation, offset)

    def check(self, client_id: str, deliver: Deliver) -> None:
        """Check the message that the listener is about to see."""
        queue = deliver.queue
        account = self._accounts.get(queue)
        offset = deliver.messages[0].queue_offset
        while account is not None and account.next in account.dead:
            account.next += 1
        self._world.laws.ensure(
            account is not None
            and account.generation == deliver.generation
            and account.next == offset,
            "consecutive",
            f"{client_id} gets {queue.queue_id}@{offset} in generation "
            f"{deliver.generation}, next is {account}",
        )

    def passed_by(self, queue: MessageQueue, generation: int, offset: int) -> None:
        """Note that a message became a dead letter."""
        account = self._accounts.get(queue)
        if account is None or account.generation != generation:
            return
        account.dead.add(offset)
        account.next = offset + 1
        if account.auto_commit:
            account.uncommitted = -1

    def listened(self, deliver: Deliver, result: OrderedResult, *, auto_commit: bool) -> None:
        """Note the listener's result."""
        account = self._accounts.get(deliver.queue)
        offset = deliver.messages[0].queue_offset
        if account is None or account.generation != deliver.generation:
            return
        account.auto_commit = auto_commit
        match result:
            case OrderedResult.SUCCESS if auto_commit:
                account.next, account.uncommitted = offset + 1, -1
            case OrderedResult.COMMIT:
                account.next, account.uncommitted = offset + 1, -1
            case OrderedResult.SUCCESS:
                if account.uncommitted < 0:
                    account.uncommitted = offset
                account.next = offset + 1
            case OrderedResult.ROLLBACK:
                self._world.coverage["rolled back"] += 1
                if account.uncommitted >= 0:
                    account.next, account.uncommitted = account.uncommitted, -1
            case OrderedResult.SUSPEND:
                pass
