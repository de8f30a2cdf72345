"""
The data directory of a local cluster: the desired state, which replicas exist, and who supervises it.

Rules: its content is enough to continue after a restart of the machine. A file is replaced as a whole or not at all.
One supervisor at a time holds the directory by a file lock, which the kernel releases however the process ends.

    cluster.json     desired state and existing replicas         supervisor.json  where the supervisor answers
    supervisor.lock  held by a supervisor, or a command that starts or ends one; names its process
    operator.secret  secret that the supervisor signs with       operator.starts  the token of the last supervisor
    cluster.secret   secret by which brokers and name servers recognize each other
    settings/        settings files of the processes             run/             process ids of the children
    logs/            one file per process                        replicas/        data of the replicas
    name-servers/    key-value files                             removed/         data of removed replicas
    restoring        exists while replicas are restored from a backup
"""

import asyncio
import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from orderlymq.connection.administrator import (
    CLUSTER_SECRET_FILE,
    OPERATOR_SECRET_FILE,
    SETTINGS_DIRECTORY,
    SUPERVISOR_FILE,
)
from orderlymq_operator.local.errors import FailedError, HeldError, RefusedError, in_words
from orderlymq_operator.resources.kinds import (
    KINDS,
    Cluster,
    ConsumerGroup,
    Desired,
    Topic,
    User,
    resources_of,
)
from orderlymq_protocol.operatortoken import token_after
from orderlymq_runtime.durablefiles import replace_file
from orderlymq_runtime.security.clustersecret import ClusterSecretError, make_cluster_secret

FORMAT: Final = 1
_OWNER_ONLY: Final = 0o700


@dataclass(slots=True)
class State:
    """The state that a supervisor needs after it has lost everything but the disk.

    Attributes:
        replicas: by raft group, the nodes that were started and not removed, each with whether it joined later.
    """

    desired: Desired
    replicas: dict[str, dict[int, bool]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contact:
    """The address of a directory's supervisor, and the secret that it requires."""

    pid: int
    host: str
    port: int
    token: str


class DataDirectory:
    """Files of one local cluster; the module docstring lists them."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock: int | None = None

    def __str__(self) -> str:
        return str(self.path)

    def log(self, process: str) -> Path:
        """Return the log file of *process*."""
        return self.path / "logs" / f"{process}.log"

    def settings(self, process: str) -> Path:
        """Return the settings file of *process*."""
        return self.path / SETTINGS_DIRECTORY / f"{process}.json"

    def run_record(self, process: str) -> Path:
        """Return the file that holds the process id of *process*."""
        return self.path / "run" / f"{process}.json"

    def run_records(self) -> list[Path]:
        """Return the records of all processes that were started and whose end was not observed."""
        return sorted((self.path / "run").glob("*.json"))

    def replica(self, process: str) -> Path:
        """Return the data directory of a replica."""
        return self.path / "replicas" / process

    def kv_file(self, index: int) -> Path:
        """Return the key-value file of name server *index*."""
        return self.path / "name-servers" / f"{index}.json"

    @property
    def operator_secret(self) -> Path:
        """The file with the secret that the supervisor signs its own requests with."""
        return self.path / OPERATOR_SECRET_FILE

    @property
    def cluster_secret(self) -> Path:
        """The file with the secret by which the processes of the cluster recognize each other."""
        return self.path / CLUSTER_SECRET_FILE

    @property
    def restoring(self) -> Path:
        """The file that exists while replicas are restored from a backup; they are not complete then."""
        return self.path / "restoring"

    def read_operator_secret(self) -> str:
        """Return the operator secret; create it if there is none."""
        if not self.operator_secret.exists():
            replace_file(self.operator_secret, secrets.token_urlsafe(32).encode())
        return self.operator_secret.read_text(encoding="utf-8").strip()

    def count_start(self, seen: int = 0) -> int:
        """Return the token of a supervisor that starts, or whose brokers have *seen* a greater token.

        The token fences out earlier supervisors. The caller holds the directory's lock.
        """
        file = self.path / "operator.starts"
        text = file.read_text(encoding="utf-8", errors="replace").strip() if file.exists() else ""
        number = token_after([int(text)] if text.isdecimal() else [], time.time())
        number = max(number, seen + 1)
        replace_file(file, f"{number}\n".encode())
        return number

    def create(self) -> None:
        """Create the missing folders and secrets; only the owner may read them."""
        try:
            os.fspath(self.path).encode()
        except UnicodeEncodeError:  # a settings file could not contain it
            raise RefusedError(f"{str(self)!a} is not UTF-8; choose another --data-dir") from None
        try:
            self.path.mkdir(mode=_OWNER_ONLY, parents=True, exist_ok=True)
            for name in (SETTINGS_DIRECTORY, "logs", "run", "replicas", "name-servers", "removed"):
                folder = self.path / name
                folder.mkdir(exist_ok=True)
                folder.chmod(_OWNER_ONLY)
            make_cluster_secret(self.cluster_secret)
            self.read_operator_secret()
        except OSError as error:
            if os.path.isdir(error.filename):  # another user owns it
                raise FailedError(in_words(error)) from error
            raise FailedError(
                f"cannot create {error.filename}: {error.strerror}; choose another --data-dir"
            ) from error
        except ClusterSecretError as error:
            raise FailedError(str(error)) from error

    def set_aside(self, process: str) -> Path | None:
        """Move the data of a removed replica to `removed` and return the new place; None if there is no data."""
        source = self.replica(process)
        if not source.exists():
            return None
        try:
            return source.rename(_free_name(self.path / "removed", process))
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        # The replicas' folder is a link to another disk, and the data stays on that disk.
        removed = source.parent / "removed"
        removed.mkdir(mode=_OWNER_ONLY, exist_ok=True)
        return source.rename(_free_name(removed, process))

    # -- what is wanted ------------------------------------------------------------------------

    def load(self) -> State | None:
        """Return the saved state; None for a new directory.

        Raises:
            RefusedError: a later version wrote it, or it is not a data directory of OrderlyMQ.
        """
        return self.parse(self.read())

    def read(self) -> bytes | None:
        """Return the saved state as bytes; None for a new directory."""
        try:
            return self._cluster.read_bytes()
        except FileNotFoundError:
            return None

    def parse(self, content: bytes | None) -> State | None:
        """Return the state in the bytes that `read` returned.

        Raises:
            RefusedError: as for `load`.
        """
        if content is None:
            return None
        try:
            data = json.loads(content)
        except ValueError as error:
            raise _damaged(self._cluster, error) from error
        if not isinstance(data, dict):
            raise _damaged(self._cluster, "it contains no JSON object")
        if data.get("format") != FORMAT:
            raise RefusedError(
                f"{self.path} has data format {data.get('format')}, this version reads {FORMAT}; "
                "use the version that wrote it, or another --data-dir"
            )
        try:
            return _state_from(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(map(str, first["loc"]))
            raise RefusedError(
                f"{self._cluster}: {first['msg']} ({field}); use the version that wrote it, or restore the file"
            ) from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _damaged(self._cluster, error) from error

    @property
    def _cluster(self) -> Path:
        return self.path / "cluster.json"

    async def save_beside(self, state: State) -> None:
        """Save in a thread, because thousands of topics take long.

        A cancelled caller waits for the save to finish, so that no later save is overtaken.
        """
        saving = asyncio.create_task(asyncio.to_thread(self.save, state))
        try:
            await asyncio.shield(saving)
        except asyncio.CancelledError:
            await asyncio.wait({saving})
            raise

    def save(self, state: State) -> None:
        """Replace the saved state; it is durable when this returns."""
        desired = state.desired
        data = {
            "format": FORMAT,
            "cluster": desired.cluster.metadata.name,
            "manifests": resources_of(desired),
            "deleted_topics": sorted(desired.deleted_topics),
            "deleted_groups": sorted(desired.deleted_consumer_groups),
            "deleted_users": sorted(desired.deleted_users),
            "replicas": {
                group: [{"node": node, "join": join} for node, join in sorted(nodes.items())]
                for group, nodes in sorted(state.replicas.items())
            },
        }
        replace_file(self._cluster, json.dumps(data, indent=1).encode())

    # -- who supervises it ---------------------------------------------------------------------

    @contextmanager
    def locked(self, inherited: int | None = None) -> Iterator[None]:
        """Create what is missing in the directory and hold it while the block runs.

        Args:
            inherited: the `lock` of a process that held the directory for this one.

        Raises:
            HeldError: a supervisor runs on it, or a command starts or ends one.
        """
        self.create()
        if inherited is None:
            inherited = os.open(self._lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        else:
            os.set_inheritable(inherited, False)
        with self._holding(inherited):
            yield

    @contextmanager
    def locked_as_it_is(self) -> Iterator[None]:
        """Hold a directory that `is_ours` while the block runs; its file system may be read-only.

        Raises:
            HeldError: as for `locked`.
        """
        try:
            descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            descriptor = os.open(self._lock_file, os.O_RDONLY)
        with self._holding(descriptor):
            yield

    @contextmanager
    def _holding(self, descriptor: int) -> Iterator[None]:
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise HeldError(str(self), self._owner(descriptor)) from None
            with suppress(OSError):  # a full disk: holding it matters more than naming the holder
                os.pwrite(descriptor, f"{os.getpid():<20}\n".encode(), 0)
            self._lock = descriptor
            try:
                yield
            finally:
                self._lock = None
        finally:
            os.close(descriptor)

    def _owner(self, descriptor: int) -> str:
        """Return a text that names the process that holds the lock; empty if it is not recorded."""
        text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        contact = self.contact()
        pid = text if text.isdecimal() else str(contact.pid) if contact else ""
        return f" (process {pid})" if pid else ""

    @property
    def lock(self) -> int:
        """The descriptor by which this process holds the directory; a child that inherits it holds the directory too."""
        assert self._lock is not None, "only the process that holds the directory can pass it on"
        return self._lock

    def is_gone(self) -> bool:
        """Return whether the held directory was deleted or moved; another directory may be in its place."""
        if self._lock is None:
            return False
        try:
            found = self._lock_file.stat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # it cannot be read at the moment
            return False
        return not os.path.samestat(found, os.fstat(self._lock))

    @property
    def _lock_file(self) -> Path:
        return self.path / "supervisor.lock"

    def is_ours(self) -> bool:
        """Return whether a supervisor has ever held the directory."""
        return any(file.exists() for file in (self._cluster, self._lock_file))

    def publish(self, contact: Contact | None) -> None:
        """Record where the supervisor answers, or that there is none."""
        file = self.path / SUPERVISOR_FILE
        if contact is None:
            with suppress(OSError):  # read-only now: no process answers at the recorded address
                if not self.is_gone():
                    file.unlink()
            return
        facts = {
            "pid": contact.pid,
            "host": contact.host,
            "port": contact.port,
            "token": contact.token,
        }
        replace_file(file, json.dumps(facts).encode())

    def contact(self) -> Contact | None:
        """Return where the supervisor answers; None if there is none or it has just begun."""
        try:
            facts = json.loads((self.path / SUPERVISOR_FILE).read_bytes())
        except (OSError, ValueError):
            return None
        match facts:
            case {"pid": int(pid), "host": str(host), "port": int(port), "token": str(token)}:
                return Contact(pid, host, port, token)
            case _:
                return None


def _free_name(folder: Path, process: str) -> Path:
    number = 1
    while (found := folder / f"{process}.{number}").exists():
        number += 1
    return found


def _damaged(file: Path, why: object) -> RefusedError:
    return RefusedError(f"{file} is damaged ({why}); restore it or move it away")


def desired_from(data: dict[str, Any]) -> Desired:
    """Return the desired state that `resources_of` recorded."""
    found = [KINDS[item["kind"]].model_validate(item) for item in data["manifests"]]
    (cluster,) = (item for item in found if isinstance(item, Cluster))
    return Desired(
        cluster,
        tuple(item for item in found if isinstance(item, Topic)),
        tuple(item for item in found if isinstance(item, ConsumerGroup)),
        frozenset(data["deleted_topics"]),
        frozenset(data["deleted_groups"]),
        tuple(item for item in found if isinstance(item, User)),
        frozenset(data.get("deleted_users", ())),
    )


def _state_from(data: dict[str, Any]) -> State:
    replicas = {
        group: {int(item["node"]): bool(item["join"]) for item in nodes}
        for group, nodes in data["replicas"].items()
    }
    return State(desired_from(data), replicas)
