"""
The demo's access to the cluster of its data directory: the operator's account, and TLS if it is enforced.

Rule: only a user who can read the data directory gets access. The demo's processes get the secret in their
environment, which other users of the machine cannot see, and never on a command line.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from orderlymq.connection.credentials import FILE_VARIABLE
from orderlymq_operator.brokers.admin import Admin
from orderlymq_operator.local.directory import DataDirectory
from orderlymq_operator.local.processes import peer_contexts
from orderlymq_operator.resources.kinds import Cluster
from orderlymq_protocol.names import OPERATOR_ACCOUNT
from orderlymq_runtime.remoting.client import RemotingClient


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a cluster requires of its clients, and the credentials for it.

    Attributes:
        secret: secret of the operator's account; empty without access control.
        tls: variables that enable TLS in our clients; empty if the cluster serves plain ones.
    """

    cluster: Cluster | None = None
    secret: str = field(default="", repr=False)
    tls: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, directory: DataDirectory) -> "Credentials":
        """Return the credentials for the cluster of a data directory."""
        state = directory.load()
        if state is None:
            return cls()
        cluster = state.desired.cluster
        secret = directory.read_operator_secret() if cluster.spec.config.acl_enable else ""

        return cls(cluster, secret, _tls(cluster))

    def environment(self) -> dict[str, str]:
        """Return the environment for a process of the demo; a user's own credentials stay."""
        found = {**os.environ, **self.tls}
        if self.secret and "ORDERLYMQ_ACCESS_KEY" not in found and FILE_VARIABLE not in found:
            found |= {"ORDERLYMQ_ACCESS_KEY": OPERATOR_ACCOUNT, "ORDERLYMQ_SECRET_KEY": self.secret}

        return found

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[Admin]:
        """Yield a client that makes requests to the brokers as the cluster requires."""
        client = RemotingClient(tls=None if self.cluster is None else peer_contexts(self.cluster))
        try:
            yield Admin(client, OPERATOR_ACCOUNT if self.secret else "", self.secret)
        finally:
            await client.close()


def _tls(cluster: Cluster) -> dict[str, str]:
    tls = cluster.spec.tls
    if tls.mode != "Enforcing":
        return {}
    # No CA: with one, the SDK verifies the host name, and these processes call an address of this machine.
    found = {"ORDERLYMQ_TLS": "true", "ORDERLYMQ_TLS_CA": ""}
    if tls.client_auth != "None":
        found["ORDERLYMQ_TLS_CERTIFICATE"] = tls.certificate_file or ""
        found["ORDERLYMQ_TLS_KEY"] = tls.key_file or ""

    return found
