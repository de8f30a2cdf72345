"""Secrets that a manifest names on this machine: a User's secret in a file or the environment, and the files of TLS."""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orderlymq_operator.plan.actions import Refuse
from orderlymq_operator.resources.cluster.cluster import Cluster
from orderlymq_operator.resources.manifests.reader import Manifest
from orderlymq_operator.resources.user import (
    SECRET_LENGTH_MIN,
    User,
    fingerprint,
    secret_trouble,
)
from orderlymq_protocol.sealedsecrets import SECRET_SIZE_MAX
from orderlymq_runtime.security.tls import TlsError, TlsFiles, client_context, server_context

_ADVICE: Final = "create it, or name another file"
_LONGER: Final = (
    f"write a secret of {SECRET_LENGTH_MIN} characters to {SECRET_SIZE_MAX} bytes into it"
)
_EXPORT: Final = (
    f"export a secret of {SECRET_LENGTH_MIN} characters to {SECRET_SIZE_MAX} bytes in it, "
    "and run the command again"
)
# A process keeps the environment that it started with.
_EXPORT_AND_RESTART: Final = (
    "the running supervisor needs it: run `orderlymq down`, export it, and run `orderlymq up`"
)
_SIZE_MAX: Final = 1 << 20  # bytes: long certificate chains have tens of KiB


def read_secret(user: User) -> str | None:
    """Return the secret; None if there is none that brokers accept."""
    found = _secret(user, running=True)
    return found if isinstance(found, str) else None


@dataclass(frozen=True, slots=True)
class Secrets:
    """What the places of Users' secrets hold, without the secrets.

    Attributes:
        fingerprints: fingerprint of each User's secret by the User's name; None if the secret cannot be used.
        troubles: why a secret cannot be used, and what to do, by the User's name.
    """

    fingerprints: dict[str, str | None]
    troubles: dict[str, str]


def look_at_secrets(users: Iterable[User]) -> Secrets:
    """Read the secrets of *users* in the running supervisor."""
    seen = Secrets({}, {})
    for user in users:
        name, found = user.metadata.name, _secret(user, running=True)
        if isinstance(found, Refuse):
            seen.fingerprints[name] = None
            seen.troubles[name] = f"{found.reason}; {found.advice}"
        else:
            seen.fingerprints[name] = fingerprint(user.access_key, found)
    return seen


def unusable_sources(
    cluster: Cluster, manifests: Iterable[Manifest], *, running: bool
) -> list[Refuse]:
    """Return refusals for what *cluster* and the Users of *manifests* name and that cannot be used.

    *running*: the caller is the running supervisor, whose environment does not change.
    """
    users = (each.resource for each in manifests if isinstance(each.resource, User))
    found = (_secret(user, running=running) for user in users)
    return [*_unusable_tls(cluster), *(each for each in found if isinstance(each, Refuse))]


def _secret(user: User, *, running: bool) -> str | Refuse:
    """Return the secret of *user*, or why brokers have no use for what its source holds."""
    source = user.spec.secret_from

    def refused(field: str, reason: str, advice: str) -> Refuse:
        return Refuse("User", user.metadata.name, f"spec.secretFrom{field}", reason, advice)

    if source is not None and source.file is not None:
        try:
            text = _content(source.file).decode()
        except UnicodeDecodeError:
            return refused(".file", f"{source.file} is not UTF-8 text", _LONGER)
        except OSError as error:
            return refused(".file", _why(source.file, error), _ADVICE)
        if trouble := secret_trouble(text):
            return refused(".file", f"the secret in {source.file} {trouble}", _LONGER)
        return text.strip()
    if source is not None and source.env is not None:
        place = f"the environment variable {source.env}"
        advice = _EXPORT_AND_RESTART if running else _EXPORT
        if source.env not in os.environ:
            return refused(".env", f"{place} is not set", advice)
        if trouble := secret_trouble(os.environ[source.env]):
            return refused(".env", f"the secret in {place} {trouble}", advice)
        return os.environ[source.env].strip()
    return refused("", "only Kubernetes makes and stores secrets", "set secretFrom.file or .env")


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
    except OSError as error:
        return _why(path, error)
    return ""


def _why(path: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path} does not exist"
    return f"{path} cannot be read: {error.strerror}"


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
