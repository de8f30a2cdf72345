"""
The secret of a cluster: replicas and name servers prove with it that they belong together.

It is text in its own file, which the local backend or the operator makes. A program that knows it is accepted as
a process of the cluster, so only the cluster's own processes may read the file.
"""

import hmac
import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from orderlymq_runtime.durablefiles import sync_path
from orderlymq_runtime.security.secretfile import read_secret

# Shorter secrets could be guessed; longer ones come from a wrong file.
SECRET_SIZE_MIN: Final = 32
SECRET_SIZE_MAX: Final = 1024
_NEW_SECRET_BYTES: Final = 32

# Purpose of the key with which brokers and operators sign requests to name servers, and the name of that signer.
NAME_SERVERS: Final = "names"


class ClusterSecretError(ValueError):
    """The file holds no secret of a cluster; the text names the file and what to do."""


def read_cluster_secret(path: Path) -> bytes:
    """Return the secret in *path*, without white space around it.

    Raises:
        ClusterSecretError: the file cannot be read, or does not hold 32 to 1024 bytes.
    """
    sizes = range(SECRET_SIZE_MIN, SECRET_SIZE_MAX + 1)
    cure = "write 32 or more random characters into it"
    return read_secret(path, "cluster_secret_file", sizes, ClusterSecretError, cure)


def new_cluster_secret() -> str:
    """Return a secret for a new cluster."""
    return secrets.token_hex(_NEW_SECRET_BYTES)


def make_cluster_secret(path: Path) -> bytes:
    """Return the secret in *path*; if the file is missing, make it first, readable by its owner only.

    If several processes make it, one wins. The file has its whole content from the beginning.

    Raises:
        ClusterSecretError: the file holds no secret, or cannot be made.
    """
    if not os.path.lexists(path):
        try:
            _make(path)
        except OSError as error:
            raise ClusterSecretError(f"cluster_secret_file {path}: {error.strerror}") from error
    return read_cluster_secret(path)


def _make(path: Path) -> None:
    """Write a new secret next to *path*, and give it that name unless another process was first."""
    descriptor, fresh = tempfile.mkstemp(prefix=path.name + ".", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(new_cluster_secret())
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        os.unlink(fresh)
    sync_path(path.parent)


def derived_key(secret: bytes, purpose: str) -> bytes:
    """Return the 32-byte key of one purpose, so that a proof for one purpose is not valid for another."""
    return hmac.digest(secret, b"orderlymq:" + purpose.encode(), "sha256")
