"""
Commits to Iceberg tables under (appId, batch), each once even if repeated.

Files are written beforehand, under the table's data folder. One transaction adds the files, new columns, and the
application's progress. Rules: the table's state is read before each attempt, and the attempt succeeds only if there
was no other commit since. The application's last snapshot on the main branch stores its progress; the table's
properties store it if that snapshot has expired.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.dataset import dataset
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchPropertyException,
    NoSuchTableError,
    NotInstalledError,
    OAuthError,
    TableAlreadyExistsError,
    UnauthorizedError,
    ValidationError,
)
from pyiceberg.expressions import And, In
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.errors import SinkConflict
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.locations.location import Location
from orderlymq_spark.tables.commits import (
    check_ends,
    check_others,
    check_repeated,
    ends_of,
    ends_property,
    others_ends,
    parse_ends,
)
from orderlymq_spark.tables.icebergclasses import load_only_named_classes
from orderlymq_spark.tables.parquet import Part

# Errors of the catalogue's and the storage's libraries that another attempt would raise again.
REFUSALS: Final = (
    *(ValueError, TypeError, LookupError, ImportError),
    *(NotInstalledError, NoSuchPropertyException, ValidationError),
    *(BadRequestError, UnauthorizedError, ForbiddenError, OAuthError),
)
_BATCH: Final = "orderlymq.batch"
_TRIES: Final = 100  # attempts that may lose to other writers' commits
_FILE: Final = "file://"


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Return a catalogue by its name and properties, together with pyiceberg's own configuration for that name."""
    load_only_named_classes(properties)
    return load_catalog(name, **properties)


def open_table(catalog: Catalog, name: str, schema: pa.Schema) -> Table:
    """Return the table; create an empty one with these columns if it does not exist."""
    for _ in range(_TRIES):
        try:
            return catalog.load_table(name)
        except NoSuchTableError:
            catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        try:
            return catalog.create_table(name, _nullable(schema))
        except TableAlreadyExistsError:
            continue
    raise SinkConflict(f"other processes keep creating and dropping the Iceberg table {name}")


def data_folder(table: Table) -> Location:
    """Return the folder of the table's files.

    Raises:
        OptionError: Tasks cannot write to that place.
    """
    return location(table.location_provider().data_path.removeprefix(_FILE))


def append_files(
    catalog: Catalog, name: str, app_id: str, batch: int, parts: Sequence[Part]
) -> None:
    """Add written files to the table in one commit, unless it already has the batch.

    Raises:
        SinkConflict: The table was written from another checkpoint, lacks the batches before, has other types, or
            other writers commit all the time; nothing was changed.
    """
    where = f"the Iceberg table {name}"
    for _ in range(_TRIES):
        table = catalog.load_table(name)
        said = _said(table, app_id)
        ends = parse_ends(said, app_id)
        if ends is None and batch:
            raise SinkConflict(
                f"batch {batch} of {app_id} comes to {where}, which has none of the batches before it: another catalogue "
                "has them, the table was made again, or the pipeline had another name; name the catalogue or table that "
                "has them, or give this pipeline a new checkpoint"
            )
        if ends is not None and not parts:
            return
        ends = ends or {}  # a first batch without rows also commits its progress
        repeated = int(said.get(f"{_BATCH}.{app_id}", -1)) >= batch
        check_ends(where, app_id, batch, parts, ends, repeated=repeated)
        if repeated:
            check_repeated(where, dataset(_rows_at_ends(table, parts)), parts)
            return
        check_others(where, app_id, parts, others_ends(table.properties, app_id))
        said = {
            f"{_BATCH}.{app_id}": str(batch),
            **ends_property(app_id, {**ends, **ends_of(parts)}),
        }
        try:
            _commit(table, parts, said)
        except CommitFailedException:
            continue
        # The texts of these errors show the columns.
        except (ValidationError, ValueError) as error:
            raise SinkConflict(f"{where} does not take the files of a batch: {error}") from error
        return
    raise SinkConflict(
        f"other processes have written to {where} {_TRIES} times meanwhile; run the pipeline again"
    )


def snapshot_with(table: Table, queue: MessageQueue, offset: int, app_id: str) -> Snapshot | None:
    """Return the first snapshot in which an application has archived an offset; None if there is none yet.

    If older snapshots have expired, it is the first remaining one.
    """
    found = None
    for snapshot in _snapshots(table):
        ends = parse_ends(_summary(snapshot), app_id)
        if ends is None:
            continue
        if ends.get(queue, 0) <= offset:
            break
        found = snapshot
    return found


def _snapshots(table: Table) -> Iterable[Snapshot]:
    """Return the remaining snapshots of the main branch, newest first."""
    return ancestors_of(table.current_snapshot(), table.metadata)


def _summary(snapshot: Snapshot) -> Mapping[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _said(table: Table, app_id: str) -> Mapping[str, str]:
    """Return the properties that the table stores for an application."""
    summaries = map(_summary, _snapshots(table))
    return next((each for each in summaries if f"{_BATCH}.{app_id}" in each), table.properties)


def _commit(table: Table, parts: Sequence[Part], said: dict[str, str]) -> None:
    """Commit unless another writer has committed since the table was loaded."""
    # Otherwise pyiceberg would retry a losing commit after the winner's, without our checks of the new state.
    once = {**table.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": once})
    prefix = _FILE if table.location().startswith(_FILE) else ""
    with table.transaction() as change:
        with change.update_schema() as columns:
            for schema in {pq.read_schema(location(part.path).open()) for part in parts}:
                columns.union_by_name(_nullable(schema))
        change.set_properties(said)
        if parts:
            change.add_files(
                [f"{prefix}{part.path}" for part in parts],
                snapshot_properties=said,
                check_duplicate_files=False,
            )


def _nullable(schema: pa.Schema) -> pa.Schema:
    """Return the columns as nullable, so that a table can add them later and a file may lack them."""
    return pa.schema([field.with_nullable(True) for field in schema])


def _rows_at_ends(table: Table, parts: Sequence[Part]) -> pa.Table:
    """Return the rows at the first and last offset of each part; other queues' rows at these offsets may be among them."""
    wanted = And(
        In(term="topic", literals={each.part.queue.topic for each in parts}),
        In(term="queue_offset", literals={at for each in parts for at in each.ends_by_place()}),
    )
    names = {"topic", "broker", "queue_id", "queue_offset", *parts[0].ends[0]}
    chosen = tuple(field.name for field in table.schema().fields if field.name in names)
    return table.scan(row_filter=wanted, selected_fields=chosen).to_arrow()
