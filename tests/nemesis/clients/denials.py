"""
An administrator that revokes the permissions of one client and restores them, and records the confirmations.

Each account is denied once. A request without an answer may still take effect, at any later time. A late grant would
undo a denial, so an account whose grant was not answered immediately is given up for another one. A late denial would
undo the restoration, so it is recorded for the laws (``rights.py``).
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from orderlymq.oracle.history import Recorder
from orderlymq.oracle.verdict import Kind
from orderlymq_operator.brokers.admin import AdminError
from tests.nemesis.clients.accounts import Account
from tests.nemesis.clients.programs import Client
from tests.nemesis.cluster import Cluster, NoLeaderError
from tests.nemesis.ground.processes import wait_until
from tests.nemesis.invariants.rights import GUARDED, Act, Denial

#: How long to retry a change of permissions; longer than a broker group needs after a power loss.
CHANGE_S: Final = 60.0
#: The longest wait for the client to be served, before its account is denied or given up.
SERVED_S: Final = 20.0
_AGAIN_S: Final = 0.2


@dataclass(slots=True)
class Administrator:
    """Changes the permissions of one client.

    Attributes:
        busy: held for a whole round, from `prepare` to `give_back`, because faults that take longer than
            planned overlap here.
    """

    cluster: Cluster
    recorder: Recorder
    client: Client
    busy: threading.Lock = field(default_factory=threading.Lock)
    _serial: int = 0
    _account: Account = field(default_factory=lambda: Account("", ""))

    def prepare(self) -> bool:
        """Give the client an unused account; return False if none could be made in time."""
        deadline = time.monotonic() + CHANGE_S
        while time.monotonic() < deadline:
            serial = self._serial + 1
            account = Account(f"prober-{serial}", f"secret {serial} of the prober")
            try:
                self.cluster.grant(account)
            except NoLeaderError:
                time.sleep(_AGAIN_S)
                continue
            except AdminError:
                self._serial = serial
                time.sleep(_AGAIN_S)
                continue
            self._serial = serial
            self._account = account
            self._note(Act.GRANTED)
            fresh = self.client.account_file.with_suffix(".new")
            fresh.write_bytes(msgspec.json.encode(account))
            os.replace(fresh, self.client.account_file)
            return True
        return False

    def deny(self, how: Denial) -> bool:
        """Revoke the permissions; return whether that was confirmed."""
        account = self._account
        changes: dict[Denial, Callable[[], None]] = {
            Denial.PERMISSION: lambda: self.cluster.grant(account, "DENY"),
            Denial.DELETED: lambda: self.cluster.delete_account(account),
            Denial.SECRET: lambda: self.cluster.grant(Account(account.key, "not to be guessed")),
        }
        self._note(Act.DENYING)
        deadline = time.monotonic() + CHANGE_S
        while time.monotonic() < deadline:
            try:
                changes[how]()
            except NoLeaderError:
                time.sleep(_AGAIN_S)
            except AdminError as error:
                self._note(Act.UNSURE)
                if how is Denial.DELETED and "there is no such account" in str(error):
                    # An earlier request was served, and its answer lost.
                    break
                time.sleep(_AGAIN_S)
            else:
                break
        else:
            return False
        self._note(f"{Act.DENIED}{how}")
        return True

    def give_back(self) -> bool:
        """Restore the permissions; return whether that was confirmed."""
        self._note(Act.RETURNING)
        deadline = time.monotonic() + CHANGE_S
        while time.monotonic() < deadline:
            try:
                self.cluster.grant(self._account)
            except (AdminError, NoLeaderError):
                time.sleep(_AGAIN_S)
            else:
                self._note(Act.RETURNED)
                return True
        return False

    def wait_until_served(self) -> bool:
        """Wait until the client is served under its present account."""
        return wait_until(lambda: self.client.was_served(self._account.key), SERVED_S)

    @property
    def account(self) -> str:
        """Return the present account's name."""
        return self._account.key

    def _note(self, what: str) -> None:
        facts = {"topic": GUARDED, "client": self._account.key}
        self.recorder.record(Kind.NOTED, detail=str(what), **facts)
