"""The accounts of a guarded broker group, and a client that signs its requests as the operator."""

from dataclasses import dataclass, replace
from typing import Final

from orderlymq.connection.signatures import RequestSigner
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.signature import is_signed
from orderlymq_runtime.remoting.client import RemotingClient


@dataclass(frozen=True, slots=True)
class Account:
    """An access key and its secret."""

    key: str
    secret: str

    def environment(self) -> dict[str, str]:
        """Return the environment variables in which a program of the SDK finds its credentials."""
        return {"ORDERLYMQ_ACCESS_KEY": self.key, "ORDERLYMQ_SECRET_KEY": self.secret}

    def options(self) -> dict[str, str]:
        """Return the settings of a Java program."""
        return {"ak": self.key, "sk": self.secret}


#: Set in the settings of every replica, and stored in no table.
OPERATOR: Final = Account("nemesis-operator", "the operator's secret")
#: The account of every client that keeps its permissions.
ORDINARY: Final = Account("ordinary-clients", "a secret that stays")


class SigningClient(RemotingClient):
    """Signs as the operator, so that it may send any request."""

    def __init__(self) -> None:
        super().__init__()
        self._signer = RequestSigner(OPERATOR.key, OPERATOR.secret)

    async def invoke(
        self, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        if is_signed(command.ext):  # signed with the cluster's secret, for a name server
            return await super().invoke(address, command, timeout_s)
        return await self._signer.invoke(super().invoke, address, replace(command), timeout_s)
