"""
Signatures and calls of administrators, in addition to the credentials and the TLS that every client may have.

Rule: a user who can read the files is an administrator. On a laptop they are in the data directory of the running
`orderlymq up`: ORDERLYMQ_DATA_DIR, else .orderlymq in the current directory. Credentials that are set take
precedence, and so does TLS that is switched on or off. Elsewhere ORDERLYMQ_CLUSTER_SECRET_FILE names a file with the
secret of the cluster, for changes at name servers.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from orderlymq.connection.credentials import Credentials
from orderlymq.errors import SettingError
from orderlymq_protocol.names import OPERATOR_ACCOUNT
from orderlymq_runtime.security.clustersecret import ClusterSecretError, read_cluster_secret
from orderlymq_runtime.security.tls import ContextSource, TlsError, TlsSettings
from orderlymq_runtime.sockets.addresses import split_address

DATA_DIRECTORY_VARIABLE: Final = "ORDERLYMQ_DATA_DIR"
CLUSTER_SECRET_VARIABLE: Final = "ORDERLYMQ_CLUSTER_SECRET_FILE"  # noqa: S105 - the name of a variable
DATA_DIRECTORY: Final = ".orderlymq"
# Files that the local backend writes: the address of its supervisor while it runs, and the two secrets.
SUPERVISOR_FILE: Final = "supervisor.json"
OPERATOR_SECRET_FILE: Final = "operator.secret"  # noqa: S105 - the name of a file
SETTINGS_DIRECTORY: Final = "settings"  # one file for each process
_TLS_FILES: Final = ("certificate", "key", "ca")
CLUSTER_SECRET_FILE: Final = "cluster.secret"  # noqa: S105 - the name of a file


def operator_credentials() -> Credentials:
    """Return the operator's account of the cluster that runs here; empty if none runs."""
    directory = _running()
    if directory is None:
        return Credentials()
    try:
        secret = (directory / OPERATOR_SECRET_FILE).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return Credentials()  # another user's file: brokers report what is missing
    return Credentials(OPERATOR_ACCOUNT, secret) if secret else Credentials()


def cluster_secret() -> bytes:
    """Return the secret of the cluster, empty if there is none.

    Raises:
        SettingError: The file that the environment names holds no secret.
    """
    named = os.environ.get(CLUSTER_SECRET_VARIABLE)
    try:
        if named:
            return read_cluster_secret(Path(named))
        directory = _running()
        file = None if directory is None else directory / CLUSTER_SECRET_FILE
        if file is not None and os.access(file, os.R_OK):
            return read_cluster_secret(file)
    except ClusterSecretError as error:
        raise SettingError(str(error)) from error
    return b""


def operator_tls(name_servers: Sequence[str]) -> ContextSource | None:
    """Return the TLS context for the cluster that runs here.

    Return None if the cluster is plain, or if none of *name_servers* is one of its processes.

    Raises:
        SettingError: A file of its spec.tls cannot be used.
    """
    directory = _running()
    for file in () if directory is None else (directory / SETTINGS_DIRECTORY).glob("*.json"):
        try:
            values = json.loads(file.read_bytes())
            listen = values["listen"]
            if (listen["host"], listen["port"]) not in map(split_address, name_servers):
                continue
            tls = values["tls"]
            certificate, key, ca = (Path(tls[name]) if tls[name] else None for name in _TLS_FILES)
            return TlsSettings(tls["mode"], certificate, key, ca).peer_contexts()
        except TlsError as error:
            raise SettingError(str(error)) from error
        except (OSError, ValueError, LookupError, AttributeError, TypeError):
            continue  # another user's file, or one of another release
    return None


def _running() -> Path | None:
    """Return the data directory of a running cluster; None if none runs."""
    directory = Path(os.environ.get(DATA_DIRECTORY_VARIABLE) or DATA_DIRECTORY)
    return directory if (directory / SUPERVISOR_FILE).exists() else None
