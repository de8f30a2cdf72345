"""
Measures the time of one send in the broker core, without sockets, raft or disk.

``python bench/layers/core.py`` prints microseconds: of ``BrokerCore.handle`` for a 1 KiB send (310), of the entry and
``StateMachine.apply`` per message, of the replies, of pulls from the tail, and of a send while many pulls are held.
"""

import gc
import time
from pathlib import Path

from tests.broker.store.memory import MemoryStore

from orderlymq_broker.core.effects import Caller, Effect, Now, Propose
from orderlymq_broker.processors.dispatch import BrokerCore
from orderlymq_broker.settings import Address, BrokerSettings
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.records import (
    GroupSet,
    MemberSeen,
    Subscription,
    TopicSet,
)
from orderlymq_broker.state.statemachine import StateMachine
from orderlymq_broker.store.entry import split_entry
from orderlymq_broker.store.kv import Batch
from orderlymq_protocol.frame.command import RemotingCommand

COUNT = 20_480
ROUND = 2_048
BATCH = 64
QUEUES = 8
CALLER = Caller(1, "127.0.0.1", 50_000)
SETTINGS = BrokerSettings(
    cluster="bench",
    group="broker-a",
    node_id=1,
    peers={1: Address("127.0.0.1", 7001)},
    address=Address("127.0.0.1", 10911),
    http=Address("127.0.0.1", 8001),
    data_dir=Path("unused"),
)


class Bench:
    """A leader, and the loop that applies its proposals."""

    def __init__(self, *, order: bool) -> None:
        self.store = MemoryStore()
        self.state = BrokerState(self.store)
        self.machine = StateMachine(self.state)
        self.core = BrokerCore(SETTINGS, self.state, self.store)
        self.build_s = 0.0
        self.apply_s = 0.0
        self.reply_s = 0.0
        self.settle(self.core.become_leader(1, 0, self.now()))
        self.settle(
            [
                Propose(
                    [
                        TopicSet("orders", QUEUES, QUEUES, order=order),
                        GroupSet("billing"),
                        MemberSeen(
                            "billing",
                            "c",
                            "127.0.0.1:50000",
                            subscriptions=(Subscription("orders"),),
                        ),
                    ]
                )
            ]
        )

    def now(self) -> Now:
        """Return a constant time."""
        return Now(1_700_000_000_000, 1_000)

    def settle(self, effects: list[Effect]) -> None:
        """Apply proposals until none is left; time entries, apply and replies separately."""
        proposals = [effect for effect in effects if isinstance(effect, Propose)]
        while proposals:
            entries = self.core.context.entries
            started = time.thread_time()
            for each in proposals:
                refusal = entries.admit(each)
                assert refusal is None, refusal
            built = entries.build(proposals, 1)
            entries.proposed(built)
            self.build_s += time.thread_time() - started
            started = time.thread_time()
            outcomes = self.machine.apply(
                self.state.applied_index + 1, 1, split_entry(built.data), Batch()
            )
            self.apply_s += time.thread_time() - started
            started = time.thread_time()
            more = self.core.applied(outcomes, self.now())
            entries.settle(proposals)
            position = 0
            for each in proposals:
                if each.applied is not None:
                    more += each.applied(
                        outcomes[position : position + len(each.records)], self.now()
                    )
                position += len(each.records)
            self.reply_s += time.thread_time() - started
            proposals = [effect for effect in more if isinstance(effect, Propose)]


def sends(count: int) -> list[RemotingCommand]:
    return [
        RemotingCommand(
            310,
            number,
            ext={
                "a": "producers",
                "b": "orders",
                "c": "TBW102",
                "d": "4",
                "e": str(number % QUEUES),
                "f": "0",
                "g": "1700000000000",
                "h": "0",
                "i": f"KEYS\x01order-{number}\x02UNIQ_KEY\x01C0000202051E5FFD2B27654A{number:08X}\x02WAIT\x01true\x02TAGS\x01paid",
                "j": "0",
                "k": "false",
                "m": "false",
            },
            body=b"x" * 1024,
            version=409,
        )
        for number in range(count)
    ]


def measure_sends(*, order: bool) -> Bench:
    bench = Bench(order=order)
    commands = sends(COUNT)
    rounds: list[tuple[float, float, float, float]] = []
    for first in range(0, COUNT, ROUND):
        bench.build_s = bench.apply_s = bench.reply_s = handle_s = 0.0
        for start in range(first, first + ROUND, BATCH):
            effects: list[Effect] = []
            now = bench.now()
            started = time.thread_time()
            for command in commands[start : start + BATCH]:
                effects += bench.core.handle(command, CALLER, now)
            handle_s += time.thread_time() - started
            bench.settle(effects)
        rounds.append((handle_s, bench.build_s, bench.apply_s, bench.reply_s))
    # The best round excludes the effects of other processes.
    handle, build, apply, reply = (
        min(column) / ROUND * 1e6 for column in zip(*rounds, strict=True)
    )
    kind = "ordered topic" if order else "plain topic"
    print(
        f"{kind}: handle {handle:.2f} us, build {build:.2f} us, sum {handle + build + apply + reply:.2f} us, apply {apply:.2f} us, reply {reply:.2f} us "
        "per 1 KiB message"
    )
    return bench


def measure_pulls(bench: Bench) -> None:
    def pull(opaque: int, offset: int, count: int) -> RemotingCommand:
        return RemotingCommand(
            11,
            opaque,
            ext={
                "consumerGroup": "billing",
                "topic": "orders",
                "queueId": "0",
                "queueOffset": str(offset),
                "maxMsgNums": str(count),
                "sysFlag": "2",
                "commitOffset": "0",
                "suspendTimeoutMillis": "15000",
                "subscription": "*",
                "subVersion": "0",
                "expressionType": "TAG",
            },
        )

    now = bench.now()
    end = bench.state.topics.by_name["orders"].queues[0].next_offset
    for count in (1, 32):
        commands = [pull(number, end - count, count) for number in range(COUNT)]
        started = time.thread_time()
        for command in commands:
            bench.core.handle(command, CALLER, now)
        spent = time.thread_time() - started
        print(f"pull of {count} from the tail: {spent / COUNT * 1e6:.2f} us")
    for number in range(10_000):
        bench.core.handle(pull(number, end, 32), CALLER, now)
    commands = [command for command in sends(COUNT) if command.ext["e"] != "0"]
    effects: list[Effect] = []
    started = time.thread_time()
    for command in commands[:BATCH]:
        effects += bench.core.handle(command, CALLER, now)
    bench.settle(effects)
    spent = time.thread_time() - started
    print(f"send beside 10 000 held pulls: {spent / BATCH * 1e6:.2f} us in all")


if __name__ == "__main__":
    gc.freeze()
    measure_pulls(measure_sends(order=False))
    measure_sends(order=True)
