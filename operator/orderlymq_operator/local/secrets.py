"""Secrets that a manifest names on this machine: a User's secret in a file or the environment, and the files of TLS."""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from orderlymq_operator.plan.actions import Refuse
from orderlymq_operator.resources.cluster.cluster import Cluster
from orderlymq_operator.resources.manifests.reader import Manifest
from orderlymq_operator.resources.user import User, fingerprint, usable_secret
from orderlymq_runtime.security.tls import TlsError, TlsFiles, client_context, server_context

_ADVICE: Final = "create it, or name another file"
_SIZE_MAX: Final = 1 << 20  # bytes: long certificate chains have tens of KiB


def read_secret(user: User) -> str | None:
    """Return the secret; None if there is none that brokers accept."""
    source = user.spec.secret_from
    text = ""
    if source is None:
        return None  # only Kubernetes can store a generated secret
    if source.file is not None:
        try:
            text = _content(source.file).decode()
        except (OSError, UnicodeDecodeError):
            return None
    elif source.env is not None:
        text = os.environ.get(source.env, "")
    return usable_secret(text)


def fingerprints(users: Iterable[User]) -> dict[str, str | None]:
    """Return the fingerprint of each User's secret by its name; None if the secret cannot be read."""
    secrets = [(user, read_secret(user)) for user in users]
    return {
        user.metadata.name: None if secret is None else fingerprint(user.access_key, secret)
        for user, secret in secrets
    }


def unusable_files(cluster: Cluster, manifests: Iterable[Manifest]) -> list[Refuse]:
    """Return refusals for the files that *cluster* and the Users of *manifests* name and that cannot be used."""
    found = list(_unusable_tls(cluster))
    for user in (each.resource for each in manifests if isinstance(each.resource, User)):
        path = user.spec.secret_from.file if user.spec.secret_from else None
        if path is not None and (trouble := _trouble(path)):
            name = user.metadata.name
            found.append(Refuse("User", name, "spec.secretFrom.file", trouble, _ADVICE))
    return found


def _unusable_tls(cluster: Cluster) -> Iterator[Refuse]:
    name, tls = cluster.metadata.name, cluster.spec.tls
    named = {
        "certificateFile": tls.certificate_file,
        "keyFile": tls.key_file,
        "caFile": tls.ca_file,
    }
    paths = {key: Path(path) for key, path in named.items() if path and tls.mode != "Disabled"}
    troubles = {key: text for key, path in paths.items() if (text := _trouble(str(path)))}
    for key, text in troubles.items():
        yield Refuse("Cluster", name, f"spec.tls.{key}", text, _ADVICE)
    if not paths or troubles:
        return
    try:
        server_context(TlsFiles(paths.get("certificateFile"), paths.get("keyFile")))
        client_context(TlsFiles(ca=paths.get("caFile")))
    except TlsError as error:
        yield Refuse(
            "Cluster", name, "spec.tls", str(error), "the key must belong to the certificate"
        )


def _trouble(path: str) -> str:
    """Return why a file cannot be read; empty if it can."""
    try:
        _content(path)
    except FileNotFoundError:
        return f"{path} does not exist"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return ""


def _content(path: str) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: it cannot be read, is not a regular file (reading a pipe may wait for ever), or is too large.
    """
    with open(path, "rb", opener=_open_without_waiting) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", path)
        if found.st_size > _SIZE_MAX:
            raise OSError(errno.EFBIG, f"it is larger than {_SIZE_MAX >> 20} MiB", path)
        return file.read()


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
