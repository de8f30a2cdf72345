"""The accounts of a guarded group, and a client that signs what it asks as the group's operator."""

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
        """Return what a program of the SDK finds its credentials in."""
        return {"ORDERLYMQ_ACCESS_KEY": self.key, "ORDERLYMQ_SECRET_KEY": self.secret}

    def options(self) -> dict[str, str]:
        """Return the settings of a Java program."""
        return {"ak": self.key, "sk": self.secret}


#: Stands in the settings of every replica, and in no table.
OPERATOR: Final = Account("nemesis-operator", "the operator's secret")
#: Of every client that keeps its rights.
ORDINARY: Final = Account("ordinary-clients", "a secret that stays")


class SigningClient(RemotingClient):
    """Signs as the operator, so that it may do everything."""

    def __init__(self) -> None:
        super().__init__()
        self._signer = RequestSigner(OPERATOR.key, OPERATOR.secret)

    async def invoke(
        self, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        if is_signed(command.ext):  # by the cluster, for a name server
            return await super().invoke(address, command, timeout_s)
        return await self._signer.invoke(super().invoke, address, replace(command), timeout_s)
