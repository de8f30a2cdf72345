"""
The start of a new cluster from a backup: the replicas' directories are made before any process starts.

Rule: all or nothing. If a replica cannot be restored, or the user interrupts, the directories of the others are
deleted again. A mark exists until all are complete, so that the leftovers of a killed program are refused. The
restoring program is `orderlymq backup restore`; it knows the brokers' files, and this package does not.
"""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orderlymq_operator.local.directory import DataDirectory, State
from orderlymq_operator.local.errors import FailedError, RefusedError
from orderlymq_operator.local.processes import replica_program
from orderlymq_runtime.durablefiles import replace_file
from orderlymq_runtime.process.ending import interrupted_by_termination

_ID: Final = re.compile(r"[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class BackupSource:
    """A backup: the place where it is kept, and its id; None for the newest."""

    place: str
    backup_id: str | None = None

    @classmethod
    def parse(cls, text: str) -> "BackupSource":
        """Parse ``PLACE`` or ``PLACE@ID``; raises RefusedError if what follows the place is no id."""
        place, _, backup_id = text.rpartition("@")
        if place and _ID.fullmatch(backup_id):
            return cls(place, backup_id)
        if place and Path(place).is_dir() and not Path(text).exists():
            raise RefusedError(
                f"{backup_id!r} is not the id of a backup; `orderlymq backup list --from {place}` shows the ids"
            )

        return cls(text)


def restore_replicas(directory: DataDirectory, state: State, source: BackupSource) -> None:
    """Restore the directories of all replicas of *state* from the backup.

    Raises:
        RefusedError: a replica has a directory already.
        FailedError: the backup cannot be restored; no directory is left.
    """
    cluster = state.desired.cluster
    nodes = range(1, cluster.spec.replicas_per_group + 1)
    programs = [
        replica_program(cluster, group, node, directory, nodes=nodes, join=False)
        for group in cluster.group_names
        for node in nodes
    ]
    folders = [directory.replica(program.name) for program in programs]
    for folder in folders:
        if folder.exists():
            raise RefusedError(f"{folder} exists; a backup is restored into a new data directory")
    command = [sys.executable, "-m", "orderlymq_backup", "restore", "--json"]
    command += ["--from", source.place, "--groups", ",".join(cluster.group_names)]
    if source.backup_id is not None:
        command += ["--id", source.backup_id]
    for program in programs:
        replace_file(directory.settings(program.name), program.settings.encode())
        command += ["--settings", str(directory.settings(program.name))]
    try:
        with interrupted_by_termination():
            replace_file(directory.restoring, source.place.encode())
            _run(command)
    except BaseException:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        if not any(folder.exists() for folder in folders):
            directory.restoring.unlink(missing_ok=True)
        raise
    directory.restoring.unlink()


def refuse_half_restored(directory: DataDirectory) -> None:
    """Refuse a directory whose restore was killed; the caller holds the directory's lock."""
    if directory.restoring.exists():
        raise RefusedError(
            f"a restore into {directory} was interrupted, so its replicas are incomplete: delete {directory}, and run "
            "`orderlymq up --from-backup` again"
        )


def _run(command: list[str]) -> None:
    with subprocess.Popen(  # noqa: S603 - our own program
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            output, errors = process.communicate()
        except BaseException:
            process.kill()
            process.wait()
            raise
    if process.returncode:
        raise FailedError(f"the backup was not restored: {_reason(output, errors)}")


def _reason(output: str, errors: str) -> str:
    try:
        return str(json.loads(output)["error"])
    except (ValueError, KeyError, TypeError):
        lines = errors.strip().splitlines()
        return (
            lines[-1]
            if lines
            else "the program printed nothing; check that orderlymq-server is installed completely"
        )
