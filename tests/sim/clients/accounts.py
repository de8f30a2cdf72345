"""
An administrator that revokes permissions and restores them while clients work.

The law (checked in ``invariants/safety.py``): a request that was sent after a denial was confirmed, and
answered before the permission was restored, was refused. A denial is an account without permissions, no
account, or another secret.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_runtime.remoting.client import RemotingError
from tests.sim.clients.client import Client
from tests.sim.timeline import MS, SECOND

if TYPE_CHECKING:
    from tests.sim.world import World

OPERATOR: Final = "operator"
OPERATOR_SECRET: Final = "the operator's secret"
ACCOUNTS: Final = ("producers", "billing", "auditing")
TIMEOUT_US: Final = SECOND


class Administrator(Client):
    """Makes the accounts, and changes them when a fault requires it."""

    def __init__(self, world: "World") -> None:
        super().__init__(world, "administrator", "10.0.5.1")
        self.account = OPERATOR
        self._serial = 0
        self._good = 0
        self._denied: set[str] = set()

    @property
    def is_ready(self) -> bool:
        """Return whether all accounts were made."""
        return self._good >= len(ACCOUNTS)

    def start(self) -> None:
        """Make the accounts."""
        self.begin()
        for account in ACCOUNTS:
            self._restore(account, self._count)

    def heal(self) -> None:
        """Restore all permissions."""
        for account in sorted(self._denied):
            self._restore(account, lambda: None)

    def deny(self, account: str, how: str, for_us: int) -> None:
        """Revoke the permissions of *account* for some time."""
        if account in self._denied:
            return
        self._denied.add(account)
        self._serial += 1
        serial = self._serial
        if how == "delete":
            ext = {"accessKey": account}
            command = request(RequestCode.DELETE_ACL_CONFIG, ext)
        elif how == "another secret":
            ext = {"accessKey": account, "secretKey": f"secret {serial} of {account}"}
            command = request(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, ext)
        else:
            command = self._command(account, "DENY")

        def answered(answer: RemotingCommand | RemotingError) -> None:
            if isinstance(answer, RemotingCommand) and answer.code == 0 and account in self._denied:
                self.world.coverage["rights taken away"] += 1
                self.world.laws.denied[account] = serial

        self.call(command, TIMEOUT_US, answered)
        self.after(for_us, "give back", lambda: self._restore(account, lambda: None))

    def _restore(self, account: str, done: Callable[[], None]) -> None:
        """Give an account all permissions, with the secret that its clients know."""
        self.world.laws.denied.pop(account, None)
        self._denied.discard(account)

        def answered(answer: RemotingCommand | RemotingError) -> None:
            if account in self._denied:
                return
            if isinstance(answer, RemotingCommand) and answer.code == 0:
                done()
            else:
                self.after(100 * MS, "again", lambda: self._restore(account, done))

        self.call(self._command(account, "PUB|SUB"), TIMEOUT_US, answered)

    def _command(self, account: str, permission: str) -> RemotingCommand:
        ext = {
            "accessKey": account,
            "secretKey": self.world.secrets[account],
            "defaultTopicPerm": permission,
            "defaultGroupPerm": permission,
        }
        return request(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, ext)

    def _count(self) -> None:
        self._good += 1
