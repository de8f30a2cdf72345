"""
The commands of `orderlymq backup`: create, salvage, list, show, verify, restore, hold, prune, delete.

Exit codes are those of the SDK's commands: 0 success; 1 failed or refused; 2 wrong usage; 3 no such backup; 4
no answer. The work is done in the other modules of this package.
"""

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from orderlymq.admin.client import AdminClient
from orderlymq.cli.exitcodes import ExitCode
from orderlymq.cli.session import (
    CommandFailed,
    connected,
    print_json,
    print_table,
    reporting,
)
from orderlymq.cli.table import Subcommands
from orderlymq_backup import catalogue, restore
from orderlymq_backup.create import create
from orderlymq_backup.errors import (
    BackupDamaged,
    BackupError,
    BackupNotFound,
    BackupNotNamed,
    TargetRefused,
)
from orderlymq_backup.manifest import LABEL_MAX, Backup
from orderlymq_backup.report import report_of, reported, write_report
from orderlymq_backup.salvage import salvage
from orderlymq_backup.storage import Storage, open_storage
from orderlymq_broker import settings as broker
from orderlymq_broker.store.kv import StoreError
from orderlymq_broker.store.replica import Identity
from orderlymq_runtime.process.ending import interrupted_by_termination
from orderlymq_runtime.settingsfile import SettingsError
from orderlymq_runtime.wallclock import machine_ms

_MIB: Final = 1 << 20
_PLACE: Final = "A folder, or s3://BUCKET/PREFIX."


_from: Final = click.option("--from", "place", required=True, metavar="PLACE", help=_PLACE)

_id: Final = click.option(
    "--id",
    "backup_id",
    help="The id of the backup; by default the newest one, if all backups are of one cluster.",
)

_report: Final = click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for the result or the error, as JSON of at most 4096 bytes.",
)

_workdir: Final = click.option(
    "--workdir",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help=(
        "Folder in which one broker group at a time is put together; by default the folder for "
        "temporary files."
    ),
)


def _names(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[str, ...]:
    """Return the broker groups of ``--groups``, none if it is not given."""
    names = () if text is None else tuple(dict.fromkeys(map(str.strip, text.split(","))))
    if not all(names):
        raise click.BadParameter("name the broker groups, separated by commas: g0,g1")

    return names


_groups: Final = click.option(
    "--groups",
    callback=_names,
    help=(
        "All broker groups, separated by commas; by default, those of the newest backup of this "
        "cluster must be registered."
    ),
)


@click.group(cls=Subcommands)
@click.pass_context
def backup(context: click.Context) -> None:
    """Make backups of a cluster, look at them, verify and restore them."""
    # A process that is asked to end releases its copies and removes the mark of a running backup.
    context.with_resource(interrupted_by_termination())


@backup.command("create")
@click.option("--to", "place", required=True, metavar="PLACE", help=_PLACE)
@_groups
@click.option(
    "--verify/--no-verify",
    envvar="ORDERLYMQ_BACKUP_VERIFY",
    show_envvar=True,
    default=True,
    show_default=True,
    help="Read the backup back before it counts, as `verify` does.",
)
@click.option(
    "--label",
    envvar="ORDERLYMQ_BACKUP_LABEL",
    show_envvar=True,
    default="",
    help=(
        f"What the backup is made for, in at most {LABEL_MAX} characters. If an earlier attempt "
        "with this label has made a backup, no other is made."
    ),
)
@_workdir
@_report
@connected
async def create_command(
    name_server: str,
    place: str,
    groups: tuple[str, ...],
    verify: bool,
    label: str,
    workdir: Path | None,
    report: Path | None,
    output: str,
) -> None:
    """Back up every broker group while it serves; only what no earlier backup in PLACE has is read."""
    if len(label) > LABEL_MAX:
        raise click.BadParameter(f"it has more than {LABEL_MAX} characters", param_hint="--label")
    with reported(report), _errors():
        storage = open_storage(place)
        async with AdminClient(name_server) as admin:
            check = partial(_verify, storage, workdir) if verify else None
            made = await create(
                admin, storage, _tell(output), groups=groups or None, check=check, label=label
            )
    write_report(report, report_of(made, verified=verify))
    if output == "json":
        print_json(_described(made))
    else:
        click.echo(
            f"Backup {made.id}: {made.size_bytes / _MIB:.1f} MiB, of which {made.new_bytes / _MIB:.1f} MiB are new"
        )


@backup.command("salvage")
@click.argument(
    "directories",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
)
@click.option("--to", "place", required=True, metavar="PLACE", help=_PLACE)
@_groups
@reporting
def salvage_command(
    directories: tuple[Path, ...], place: str, groups: tuple[str, ...], output: str
) -> None:
    """Make a backup from DIRECTORIES of stopped replicas whose group has lost its majority.

    Name all that are left, of every group. Nothing in them is changed. The backup may lack acknowledged messages, and the
    list marks it.
    """
    with _errors():
        made = salvage(open_storage(place), directories, _tell(output), groups or None)
    if output == "json":
        print_json(_described(made))
    else:
        click.echo(f"Backup {made.id} is salvaged; start a new cluster from it")


@backup.command("list")
@_from
@reporting
def list_command(place: str, output: str) -> None:
    """List the backups of a place, the newest last."""
    rows: list[dict[str, Any]] = []
    with _errors():
        storage = open_storage(place, exists=True)
        for backup_id in catalogue.ids(storage):
            try:
                rows.append(_described(catalogue.read(storage, backup_id)))
            except BackupNotFound:
                continue  # another program has deleted it since
            except BackupDamaged as error:
                rows.append({"id": backup_id, "problem": str(error)})
    if output == "json":
        print_json(rows)
        return
    columns = ["id", "cluster", "made", "groups", "MiB", "new MiB", "note"]
    print_table("", columns, [_row(each) for each in rows])


@backup.command("show")
@_from
@_id
@click.option(
    "--groups",
    callback=_names,
    help="Broker groups of a new cluster; check that the backup can be restored there.",
)
@_report
@reporting
def show_command(
    place: str,
    backup_id: str | None,
    groups: tuple[str, ...],
    report: Path | None,
    output: str,
) -> None:
    """Show what one backup holds."""
    with reported(report), _errors():
        found = catalogue.read(open_storage(place, exists=True), backup_id)
        for group in groups:
            found.part_for(group, groups)
    write_report(report, report_of(found))
    if output == "json":
        print_json(_described(found))
        return
    rows = [
        [each.group, each.index, each.size_bytes / _MIB, len(each.files)] for each in found.parts
    ]
    click.echo(f"Backup {found.id}")  # a table would fold it, and a folded id cannot be copied
    print_table("", ["group", "entry", "MiB", "files"], rows)


@backup.command("verify")
@_from
@_id
@_workdir
@reporting
def verify_command(place: str, backup_id: str | None, workdir: Path | None, output: str) -> None:
    """Read a backup back: compare all bytes with their digests, open each store, check its state.

    A damaged file is removed, so that the next backup stores it again.
    """
    with _errors():
        storage = open_storage(place, exists=True)
        with catalogue.reading(storage, backup_id) as found:
            _verify(storage, workdir, found)
    if output == "json":
        print_json(_described(found))
    else:
        click.echo(f"Backup {found.id} is complete and can be restored")


def _verify(storage: Storage, workdir: Path | None, found: Backup) -> None:
    with tempfile.TemporaryDirectory(dir=workdir, prefix="orderlymq-verify-") as folder:
        try:
            restore.verify(storage, found, Path(folder))
        except TargetRefused as error:
            raise TargetRefused(f"{error}: name a folder with more space with --workdir") from error


@backup.command("restore")
@_from
@_id
@click.option(
    "--settings",
    "files",
    required=True,
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help=(
        "Settings file of a broker replica that has not started yet; repeat the option for "
        "several replicas."
    ),
)
@click.option(
    "--groups",
    required=True,
    callback=_names,
    help="All broker groups of the new cluster, separated by commas.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Skip replicas that were made from this backup and have not started since.",
)
@_report
@reporting
def restore_command(
    place: str,
    backup_id: str | None,
    files: tuple[Path, ...],
    groups: tuple[str, ...],
    resume: bool,
    report: Path | None,
    output: str,
) -> None:
    """Make the data directories of replicas from a backup, before they start for the first time.

    `orderlymq up --from-backup` does it for a cluster of this machine. Restore every replica of a group from the
    same backup, and each one once. Unless all of the cluster are restored together, --id must name it.
    """
    made = []
    with reported(report), _errors(), _another_backup():
        storage = open_storage(place, exists=True)
        replicas = [broker.load(file) for file in files]
        with catalogue.reading(storage, backup_id) as found:
            if backup_id is None:
                _refuse_others(replicas, groups, found.id)
            restore.refuse_early(found, machine_ms())
            for settings in replicas:
                identity = Identity(settings.cluster, settings.group, settings.node_id)
                part = found.part_for(settings.group, groups)
                target = restore.Target(
                    settings.data_dir,
                    identity,
                    frozenset(settings.peers),
                    frozenset(groups),
                    settings.storage.retention_size,
                )
                if not (resume and restore.is_restored(part, target)):
                    restore.restore(storage, part, target)
                made.append(
                    {"replica": f"{settings.group}-{settings.node_id}", "entry": part.index}
                )
                _tell(output)(
                    f"{settings.group}-{settings.node_id}: restored up to entry {part.index}"
                )
    write_report(report, report_of(found))
    if output == "json":
        print_json({**_described(found), "replicas": made})


def _refuse_others(
    replicas: Sequence[broker.BrokerSettings], groups: Sequence[str], newest: str
) -> None:
    """Refuse to choose a backup if replicas remain, because another backup may be the newest when they are restored."""
    here = {(each.group, each.node_id) for each in replicas}
    there = {(each.group, node) for each in replicas for node in each.peers} - here
    missing = {group for group, _ in there} | set(groups) - {group for group, _ in here}
    if missing:
        raise BackupNotNamed(
            f"replicas of {', '.join(sorted(missing))} are not restored by this command, and "
            "another backup may be the newest one when they are: name the same backup for all "
            f"with --id; the newest is now {newest}"
        )


@backup.command("hold")
@_from
@click.option("--id", "backup_id", required=True, help="Which backup.")
@reporting
def hold_command(place: str, backup_id: str, output: str) -> None:
    """Keep one backup from being deleted until this program is asked to end.

    For the time between the restores of a cluster's replicas. A place that cannot be written to takes no mark of it.
    """
    with _errors(), catalogue.reading(open_storage(place, exists=True), backup_id) as found:
        if output == "json":
            print_json(_described(found))
        else:
            click.echo(f"Backup {found.id} is kept until this program ends")
        threading.Event().wait()


@backup.command("prune")
@_from
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    required=True,
    help="How many backups to keep of each cluster.",
)
@reporting
def prune_command(place: str, keep: int, output: str) -> None:
    """Delete all but the newest backups of each cluster, and the files that only they needed."""
    with _errors():
        gone = catalogue.prune(open_storage(place, exists=True), keep, machine_ms(), _tell(output))
    if output == "json":
        print_json({"deleted": gone})
    else:
        click.echo(f"deleted {len(gone)}, kept the newest {keep} of each cluster")


@backup.command("delete")
@_from
@click.option("--id", "backup_id", required=True, help="Which backup.")
@_report
@reporting
def delete_command(place: str, backup_id: str, report: Path | None, output: str) -> None:
    """Delete one backup, and the files that only it needed; one that is gone already is no error."""
    with reported(report), _errors():
        gone = catalogue.delete(
            open_storage(place, exists=True), backup_id, machine_ms(), _tell(output)
        )
    if output == "json":
        print_json({"deleted": [backup_id] if gone else []})
    elif not gone:
        click.echo(f"{place} does not hold backup {backup_id}")


@contextmanager
def _errors() -> Iterator[None]:
    """Turn the errors of backups into a sentence and an exit code."""
    try:
        yield
    except BackupNotFound as error:
        raise CommandFailed(ExitCode.NOT_FOUND, str(error)) from error
    except (BackupError, SettingsError, StoreError, OSError) as error:
        raise CommandFailed(ExitCode.FAILED, str(error)) from error


@contextmanager
def _another_backup() -> Iterator[None]:
    """Say of a damaged backup how to restore another one."""
    try:
        yield
    except BackupDamaged as error:
        raise BackupDamaged(
            f"{error}. Restore another backup: `orderlymq backup list` shows the ids. Name one with --id, or as PLACE@ID "
            "to `orderlymq up --from-backup`"
        ) from error


def _tell(output: str) -> Callable[[str], None]:
    return click.echo if output == "text" else lambda _: None


def _described(found: Backup) -> dict[str, Any]:
    return {
        "id": found.id,
        "cluster": found.cluster,
        "beganMs": found.began_ms,
        "endedMs": found.ended_ms,
        "spreadMs": found.spread_ms,
        "release": found.release,
        "salvaged": found.salvaged,
        "sizeBytes": found.size_bytes,
        "newBytes": found.new_bytes,
        "groups": [
            {
                "group": part.group,
                "entry": part.index,
                "takenMs": part.taken_ms,
                "sizeBytes": part.size_bytes,
            }
            for part in found.parts
        ],
    }


def _row(described: dict[str, Any]) -> list[object]:
    if "problem" in described:
        return [described["id"], None, None, None, None, None, described["problem"]]
    made = datetime.fromtimestamp(described["beganMs"] / 1000, UTC)
    return [
        described["id"],
        described["cluster"],
        f"{made:%Y-%m-%d %H:%M:%S}",
        len(described["groups"]),
        described["sizeBytes"] / _MIB,
        described["newBytes"] / _MIB,
        "salvaged" if described["salvaged"] else None,
    ]
