"""
A producer of transactions with our SDK that records each step before it sends it to the broker.

``python -m tests.nemesis.clients.transactions JSON``. The decision of a transaction is in its text
(``invariants/transactions.py``), so that each producer of the group gives the same answer. At the end of its standard
input it begins nothing more and keeps running to be asked; it ends at SIGTERM.
"""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Final

import msgspec

from orderlymq import (
    ClientSettings,
    Message,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)
from orderlymq.errors import OrderlyMQError, SendRefused
from orderlymq.oracle.history import Recorder
from orderlymq.oracle.verdict import Kind
from tests.nemesis.invariants.transactions import Step, checked_step, first_step, text_of

#: A new leader must soon know which producers it can ask; RocketMQ's 30 s are longer than a run's calm phase.
HEARTBEAT_S: Final = 1.0
#: The time that the local transaction takes, by turns: long enough to be killed in it.
WORK_S: Final = (0.0, 0.3, 0.1)

_STATES: Final = {
    Step.COMMIT: TransactionState.COMMIT,
    Step.CHECKED_COMMIT: TransactionState.COMMIT,
    Step.ROLLBACK: TransactionState.ROLLBACK,
    Step.CHECKED_ROLLBACK: TransactionState.ROLLBACK,
    Step.UNKNOWN: TransactionState.UNKNOWN,
}


class DealingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a producer of transactions."""

    process: str
    name_servers: str
    history: str
    topic: str
    group: str
    pause_s: float


class Dealer:
    """One process of the producer group."""

    def __init__(self, options: DealingOptions, recorder: Recorder) -> None:
        self._options = options
        self._recorder = recorder

    async def deal(self, producer: TransactionProducer, number: int) -> None:
        """Play one transaction; after any outcome the next one is a new transaction."""
        text = text_of(self._options.process, number)
        message = Message(topic=self._options.topic, body=text.encode())

        async def execute(_: Message) -> TransactionState:
            self._note(text, Step.HALF)
            await asyncio.sleep(WORK_S[number % len(WORK_S)])
            step = first_step(text)
            self._note(text, step)
            return _STATES[step]

        self._recorder.record(Kind.SEND, topic=self._options.topic, message=text)
        try:
            await producer.send_in_transaction(message, execute=execute)
        except OrderlyMQError as error:
            kind = Kind.REFUSED if isinstance(error, SendRefused) else Kind.UNKNOWN
            facts = {"topic": self._options.topic, "message": text}
            self._recorder.record(kind, detail=str(error)[:200], **facts)

    async def check(self, message: ReceivedMessage) -> TransactionState:
        """Answer for any process of the producer group."""
        text = message.body.decode()
        step = checked_step(text)
        self._note(text, step)
        return _STATES[step]

    def _note(self, text: str, step: Step) -> None:
        facts = {"topic": self._options.topic, "message": text}
        self._recorder.record(Kind.NOTED, detail=step.value, **facts)


async def play(options: DealingOptions) -> None:
    """Run transactions until the end of input, then answer checks until SIGTERM."""
    loop = asyncio.get_running_loop()
    stop, last = asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)

    def ended() -> None:
        loop.remove_reader(sys.stdin)
        last.set()

    # Nothing is written to it, so it is readable only at its end.
    loop.add_reader(sys.stdin, ended)
    with Recorder(Path(options.history), process=options.process) as recorder:
        dealer = Dealer(options, recorder)
        async with TransactionProducer(
            options.group,
            options.name_servers,
            check=dealer.check,
            client_settings=ClientSettings(heartbeat_broker_interval=HEARTBEAT_S),
        ) as producer:
            number = 0
            while not (stop.is_set() or last.is_set()):
                await dealer.deal(producer, number)
                number += 1
                await asyncio.sleep(options.pause_s)
            await stop.wait()


if __name__ == "__main__":
    asyncio.run(play(msgspec.json.decode(sys.argv[1], type=DealingOptions)))
