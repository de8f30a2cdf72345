"""A leading broker without sockets, with topics, groups, members, locks and messages to attack."""

from typing import Final

from orderlymq_broker.core.effects import Caller
from orderlymq_broker.settings import AccessSettings
from orderlymq_broker.state.admin.accessrecords import AccountSet
from orderlymq_protocol.frame.command import RemotingCommand
from tests.broker.processors.adminshell import AdminShell, create_topic
from tests.broker.processors.driver import ALICE, settings
from tests.broker.processors.requests import create, heartbeat, lock, pull, send
from tests.hostile.shapes import CLIENTS, GROUPS, QUEUES, TOPICS

EXPIRY_MS: Final = 120_000
#: The first account has every permission; the second may only consume the first topic.
STRONG: Final = ("strong-account", "the strong one's secret")
WEAK: Final = ("weak-account", "the weak one's secret")


class BrokerWorld:
    """One leader with some state; with *guarded* it serves only signed requests."""

    def __init__(self, *, guarded: bool = False) -> None:
        self.shell = AdminShell()
        self._furnish()
        if guarded:
            store, log = self.shell.store, self.shell.log
            access = AccessSettings(enable=True, operator_key=STRONG[0], operator_secret=STRONG[1])
            self.shell = AdminShell(settings(access=access), store)
            self.shell.term, self.shell.log = 1, log
            self.shell.lead()

    def _furnish(self) -> None:
        shell = self.shell
        shell.lead()
        for topic in TOPICS[:2]:
            create_topic(shell, topic, QUEUES)
        create(shell, AccountSet(WEAK[0], WEAK[1], topic_perms={TOPICS[0]: "SUB"}))
        for client, group in zip(CLIENTS, GROUPS, strict=False):
            heartbeat(shell, client, group=group, topics=TOPICS[:2])
            lock(shell, client, 0, 1, group=group)
        for number in range(8):
            send(shell, TOPICS[0], b"paid", f"KEYS\x01k{number}\x02TAGS\x01paid", e=number % QUEUES)
        pull(shell, group=GROUPS[0])

    def ask(self, command: RemotingCommand, caller: Caller = ALICE) -> RemotingCommand | None:
        """Handle a request, let everything that it proposes be applied, and return the answer."""
        shell = self.shell
        shell.sent.clear()
        shell.run(shell.core.handle(command, caller, shell.now))
        shell.settle()
        for each in shell.sent:
            if each.command.is_response and each.command.opaque == command.opaque:
                return each.command
        return None
