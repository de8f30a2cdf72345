"""
A client whose permissions are revoked and restored: it sends requests all the time and records the answers.

``python -m tests.nemesis.clients.probe JSON``. A file holds the account that it signs with; the
administrator replaces the file (``denials.py``). It sends and pulls by turns; for the history both are
requests. It ends at SIGTERM.
"""

import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import msgspec

from orderlymq import ClientSettings, Message, Producer, ProducerSettings, PullConsumer
from orderlymq.errors import BrokerError, OrderlyMQError, SendRefused
from orderlymq.oracle.history import Recorder
from orderlymq.oracle.verdict import Kind
from orderlymq_protocol.body.messagequeue import MessageQueue
from tests.nemesis.clients.accounts import Account

#: Short, so that a request belongs to one time: it is not retried, the next one follows.
SEND_TIMEOUT_S: Final = 2.0


class ProbingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a probing client."""

    process: str
    name_servers: str
    history: str
    topic: str
    group: str
    account_file: str
    pause_s: float


class _Probe:
    """The clients of one account."""

    def __init__(self, options: ProbingOptions, account: Account, recorder: Recorder) -> None:
        keys = ClientSettings(access_key=account.key, secret_key=account.secret)
        self._options = options
        self._account = account
        self._recorder = recorder
        self.producer = Producer(
            "probing",
            options.name_servers,
            client_settings=keys,
            settings=ProducerSettings(retry_times_when_send_failed=0),
        )
        self.consumer = PullConsumer(options.group, options.name_servers, client_settings=keys)

    async def ask(self, number: int) -> None:
        """Send or pull, and record the answer."""
        options = self._options
        facts = {
            "topic": options.topic,
            "client": self._account.key,
            "message": f"{options.process}:{number}",
        }
        self._recorder.record(Kind.SEND, **facts)
        try:
            if number % 2:
                await self.consumer.pull(MessageQueue(options.topic, "g", 0), None, 0, count=1)
            else:
                message = Message(topic=options.topic, body=facts["message"].encode())
                await self.producer.send(message, timeout=SEND_TIMEOUT_S)
        except OrderlyMQError as error:
            refused = isinstance(error, SendRefused) or isinstance(error.__cause__, BrokerError)
            kind = Kind.REFUSED if refused else Kind.UNKNOWN
            self._recorder.record(kind, detail=str(error)[:300], **facts)
            return
        self._recorder.record(Kind.ACK, **facts)


async def probe(options: ProbingOptions) -> None:
    """Send requests until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    path = Path(options.account_file)
    number = 0
    with Recorder(Path(options.history), process=options.process) as recorder:
        while not stop.is_set():
            text = _account(path)
            one = _Probe(options, msgspec.json.decode(text, type=Account), recorder)
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(one.producer)
                await stack.enter_async_context(one.consumer)
                while not stop.is_set() and _account(path) == text:
                    await one.ask(number)
                    number += 1
                    await asyncio.sleep(options.pause_s)


def _account(path: Path) -> bytes:
    return path.read_bytes()  # one line; the file is replaced atomically


if __name__ == "__main__":
    asyncio.run(probe(msgspec.json.decode(sys.argv[1], type=ProbingOptions)))
