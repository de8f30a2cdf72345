"""
An administrator who takes the rights of one client away and gives them back, and notes what was confirmed.

Each account is denied once. What was asked for and not answered may still come about, however late: a grant
that is late would undo a denial, so an account whose grant was not answered immediately is left alone for
another one; a denial that is late would undo the return, so that is noted for the laws (``rights.py``).
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

#: The time for which a change of rights is asked for; longer than a group needs after the power was lost.
CHANGE_S: Final = 60.0
#: The longest wait for the client to be served, before its account is denied or left.
SERVED_S: Final = 20.0
_AGAIN_S: Final = 0.2


@dataclass(slots=True)
class Administrator:
    """Changes the rights of one client.

    Attributes:
        busy: held for a whole round, from `prepare` to `give_back`; faults that take longer than planned
            meet here.
    """

    cluster: Cluster
    recorder: Recorder
    client: Client
    busy: threading.Lock = field(default_factory=threading.Lock)
    _serial: int = 0
    _account: Account = field(default_factory=lambda: Account("", ""))

    def prepare(self) -> bool:
        """Give the client an account that nobody has touched; False when none could be made in time."""
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
        """Take the rights away; return whether that was confirmed."""
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
                    # An earlier question was served, and its answer lost.
                    break
                time.sleep(_AGAIN_S)
            else:
                break
        else:
            return False
        self._note(f"{Act.DENIED}{how}")
        return True

    def give_back(self) -> bool:
        """Give the rights back; return whether that was confirmed."""
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
