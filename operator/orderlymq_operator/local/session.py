"""
From manifests and a data directory to a running supervisor, in this process or in its own.

Rule: every check (a running supervisor, another cluster, a change that is not allowed, a taken port) comes before
anything is written.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from orderlymq_operator.local import keeper
from orderlymq_operator.local.control import ControlClient, ControlServer
from orderlymq_operator.local.directory import Contact, DataDirectory, State
from orderlymq_operator.local.errors import FailedError, HeldError, RefusedError, UnreachableError
from orderlymq_operator.local.processes import programs, refuse_taken_ports, refuse_wildcard_host
from orderlymq_operator.local.restoration import (
    BackupSource,
    refuse_half_restored,
    restore_replicas,
)
from orderlymq_operator.local.secrets import unusable_sources
from orderlymq_operator.local.supervisor import CLOSE_MAX_S, Supervisor
from orderlymq_operator.plan.actions import Observed
from orderlymq_operator.plan.refusals import of_change, refusals
from orderlymq_operator.resources.kinds import Desired
from orderlymq_operator.resources.manifests.combination import OtherClusterError, combine
from orderlymq_operator.resources.manifests.reader import Manifest

_POLL_S: Final = 0.05
# A running action may first have to end a process.
DOWN_TIMEOUT_S: Final = keeper.STOP_TIMEOUT_S + CLOSE_MAX_S


@contextmanager
def prepared(
    directory: DataDirectory, manifests: Sequence[Manifest], source: BackupSource | None = None
) -> Iterator[State]:
    """Hold *directory* and yield the state that its supervisor starts with; orphans of a crash are ended.

    A new cluster begins with the backup *source*, or empty.

    Raises:
        ManifestError: the manifests are wrong, or there are none and the directory is new.
        RefusedError: a check failed; see the module docstring.
        FailedError: the backup cannot be restored.
    """
    content = directory.read()  # first, so that a refused command leaves no folders behind
    before = directory.parse(content)
    if before is not None and source is not None:
        raise RefusedError(
            f"{directory} already has a cluster; restore the backup into another --data-dir"
        )
    desired = _desired(manifests, before)
    unusable = unusable_sources(desired.cluster, manifests, running=False)
    if unusable:
        raise RefusedError("\n".join(str(each) for each in unusable))
    if before is None:  # the address of an earlier cluster cannot be changed
        refuse_wildcard_host(desired.cluster)
        refuse_taken_ports(programs(directory, State(desired)))
    with directory.locked():
        if directory.read() != content:
            # An outdated list of replicas would begin a raft group again that has other replicas by now.
            raise RefusedError(f"{directory} was just changed by another command; try again")
        refuse_half_restored(directory)
        keeper.end_orphans(directory)
        state = State(desired, before.replicas if before else {})
        refuse_taken_ports(programs(directory, state))
        if source is not None:
            restore_replicas(directory, state, source)
        directory.save(state)
        yield state


def _desired(manifests: Sequence[Manifest], before: State | None) -> Desired:
    if before is None and not manifests:
        raise UnreachableError(
            "there is no cluster here yet; name its manifests with `orderlymq up -f FILE`"
        )
    if before is None:
        return combine(manifests, None)
    try:
        desired = combine(manifests, before.desired)
    except OtherClusterError as error:
        raise RefusedError(str(error)) from error
    found = refusals(desired, Observed(accepted=before.desired))
    if refused := of_change(found, desired, before.desired):
        raise RefusedError("\n".join(str(refusal) for refusal in refused))
    return desired


async def supervise(supervisor: Supervisor, directory: DataDirectory) -> None:
    """Run *supervisor* with its control address until it is asked to stop or is cancelled."""
    server = ControlServer(supervisor, directory, os.getpid())
    await server.start()
    try:
        await supervisor.run()
    finally:
        await asyncio.shield(server.close())


def spawn(directory: DataDirectory) -> subprocess.Popen[bytes]:
    """Start a supervisor process for the state in *directory*.

    It inherits the lock, so that no other process can take the directory in between.
    """
    path = directory.log("supervisor")
    keeper.rotate(path)
    command = [sys.executable, "-m", "orderlymq_operator.local", "--data-dir", str(directory)]
    command += ["--lock", str(directory.lock)]
    with path.open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - our own program with our own arguments
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(directory.lock,),
        )


@contextmanager
def inherited(directory: DataDirectory, lock: int) -> Iterator[State]:
    """Hold *directory* by the *lock* of the command that prepared it, and yield the state that it saved there."""
    with directory.locked(lock):
        state = directory.load()
        if state is None:
            raise FailedError(f"{directory} no longer has a cluster")
        yield state


def wait_for_contact(
    directory: DataDirectory, process: subprocess.Popen[bytes], timeout_s: float
) -> None:
    """Wait until the supervisor *process* answers.

    Raises:
        FailedError: it ended, or did not answer in time.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise FailedError(
                f"the supervisor ended with code {process.returncode}: {_last_line(directory)}"
            )
        contact = directory.contact()
        if contact is not None and contact.pid == process.pid:
            return
        time.sleep(_POLL_S)
    raise FailedError(
        f"the supervisor did not answer within {timeout_s:g} s and keeps trying; its log is {directory.log('supervisor')}, "
        "`orderlymq down` stops it"
    )


def stop(directory: DataDirectory) -> dict[str, Any]:
    """End the cluster of *directory*, even if another program started it; return what was ended.

    Raises:
        FailedError: another process still holds the directory after `DOWN_TIMEOUT_S`.
    """
    asked: Contact | None = None
    deadline = time.monotonic() + DOWN_TIMEOUT_S
    while directory.is_ours():
        try:
            with directory.locked_as_it_is():
                orphans = keeper.end_orphans(directory)
                directory.publish(None)
                return {"supervisor": asked is not None, "orphans": orphans}
        except HeldError as error:
            if time.monotonic() > deadline:
                raise FailedError(
                    f"the supervisor, or the command that starts it{error.owner}, did not end within {DOWN_TIMEOUT_S:g} s; "
                    f"see {directory.log('supervisor')}"
                ) from error
        # A supervisor that began a moment ago does not answer yet; one that is ending no longer answers.
        contact = directory.contact()
        if contact is not None and contact != asked:
            with suppress(UnreachableError):
                ControlClient(directory).down()
                asked = contact
        time.sleep(_POLL_S)
    return {"supervisor": False, "orphans": []}


def _last_line(directory: DataDirectory) -> str:
    path: Path = directory.log("supervisor")
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else f"see {path}"
