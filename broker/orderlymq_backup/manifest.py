"""
The manifest of a backup: for each broker group the files of its store at one position of its log.

    backups/ID.manifest     lists the files of the backup; written last, so a backup without it does not exist
    blobs/AB/ABCD...        a file by the SHA-256 of its bytes, shared by all backups that have it

A position is consistent: it includes every message up to one raft index, with offsets, locks, parked keys,
delays, transactions and accounts at that index. The positions of several broker groups are only of about the
same time. All input is treated as hostile: sizes, names and numbers are limited, and the text is compared
with its digest before it is decoded. Pure.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from orderlymq_backup.errors import BackupDamaged, BackupError, TargetRefused
from orderlymq_broker.server.backups import Digest, Name
from orderlymq_broker.state.integerranges import Position
from orderlymq_protocol.decodeerrors import UNREADABLE

# The format of a backup with a label. Releases that know no labels can read backups without one.
FORMAT: Final = 2
_UNLABELLED: Final = 1
# The manifest is read and decoded as a whole.
MANIFEST_SIZE_MAX: Final = 64 << 20
GROUPS_MAX: Final = 1_000
LABEL_MAX: Final = 64
FILES_MAX: Final = 100_000
# All broker groups together. A file takes up to 214 bytes of a manifest, which has room for these and its groups.
BACKUP_FILES_MAX: Final = 300_000
# CURRENT has the name of one file, and is read as a whole.
CURRENT_SIZE_MAX: Final = 64

_HEAD: Final = re.compile(rb"orderlymq-backup ([0-9]{1,9}) ([0-9a-f]{64})\n")
_BLOB: Final = re.compile(r"blobs/(?P<begin>[0-9a-f]{2})/(?P=begin)[0-9a-f]{62}")
_KEY: Final = re.compile(r"backups/(?P<id>[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8})\.manifest")

BackupId = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}\Z")]
# The files of a RocksDB store; no name can leave its folder.
StoreFileName = Annotated[
    str,
    msgspec.Meta(pattern=r"^([0-9]{1,20}\.(sst|blob|log)|MANIFEST-[0-9]{1,20}|CURRENT)\Z"),
]


class BackupFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of a store: the digest under which its bytes are stored, and that of its end, by which a later backup knows it."""

    name: StoreFileName
    size: Position
    sha256: Digest
    tail: Digest


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One broker group at one position; fields as in `orderlymq_broker.server.backups.Copy`."""

    cluster: Name
    group: Name
    node: Position
    index: Position
    term: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    physical_end: Position
    taken_ms: Position
    files: Annotated[tuple[BackupFile, ...], msgspec.Meta(min_length=1, max_length=FILES_MAX)]

    @property
    def size_bytes(self) -> int:
        """Return the total size of all files in bytes."""
        return sum(file.size for file in self.files)


class Backup(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """A complete backup.

    Attributes:
        began_ms, ended_ms: wall clock of the machine that made it.
        release: version of the program that made it.
        new_bytes: bytes that no earlier backup in the same place had.
        salvaged: made from disks of a broker group without a majority, so it may lack acknowledged messages.
        label: its purpose, such as the UID of an object; several attempts for one purpose have the same label.
    """

    id: BackupId
    cluster: Name
    began_ms: Position
    ended_ms: Position
    release: Annotated[str, msgspec.Meta(max_length=64)]
    new_bytes: Position
    salvaged: bool = False
    label: Annotated[str, msgspec.Meta(max_length=LABEL_MAX)] = ""
    parts: Annotated[tuple[Part, ...], msgspec.Meta(min_length=1, max_length=GROUPS_MAX)]

    @property
    def size_bytes(self) -> int:
        """Return the total size of all files of all broker groups in bytes."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def spread_ms(self) -> int:
        """Return the time between the earliest and the latest position of the broker groups."""
        times = [part.taken_ms for part in self.parts]
        return max(times) - min(times)

    def part_for(self, group: str, groups: Sequence[str]) -> Part:
        """Return the part that *group*, one of the new cluster's *groups*, is restored from.

        Broker groups keep their place in the list of names as clients sort it, because that list is part of
        the order of a topic.

        Raises:
            TargetRefused: the cluster has another number of broker groups.
        """
        parts = sorted(self.parts, key=lambda part: part.group)
        wanted = sorted(groups)
        if len(parts) != len(wanted) or group not in wanted:
            raise TargetRefused(
                f"backup {self.id} has {len(parts)} broker groups, the new cluster has "
                f"{len(wanted)}: set spec.groups to {len(parts)}"
            )
        return parts[wanted.index(group)]


def refuse_more(files: int) -> None:
    """Refuse a backup with more files than a manifest can list.

    Raises:
        BackupError: it has more than `BACKUP_FILES_MAX`.
    """
    if files > BACKUP_FILES_MAX:
        raise BackupError(
            f"the broker groups have {files} files, a backup can have at most {BACKUP_FILES_MAX}: "
            "let retention keep fewer messages (spec.retention of the Cluster)"
        )


def encode(backup: Backup) -> bytes:
    """Return the bytes of a manifest."""
    text = msgspec.json.encode(backup)
    form = FORMAT if backup.label else _UNLABELLED
    return b"orderlymq-backup %d %s\n%s" % (form, hashlib.sha256(text).hexdigest().encode(), text)


def decode(data: bytes, backup_id: str) -> Backup:
    """Return the backup that `encode` encoded as *data*, which is stored under *backup_id*.

    Raises:
        BackupDamaged: it is not a manifest, differs from what was written, or is too large.
    """
    if len(data) > MANIFEST_SIZE_MAX:
        raise BackupDamaged(
            f"backup {backup_id}: the manifest is larger than {MANIFEST_SIZE_MAX} bytes"
        )
    head = _HEAD.match(data)
    if head is None:
        raise BackupDamaged(f"backup {backup_id}: the manifest has no head; use another backup")
    if int(head[1]) not in (_UNLABELLED, FORMAT):
        raise BackupDamaged(
            f"backup {backup_id} has format {int(head[1])}, this release reads {FORMAT}: use the "
            "release that made it"
        )
    text = data[head.end() :]
    if hashlib.sha256(text).hexdigest().encode() != head[2]:
        raise BackupDamaged(f"backup {backup_id}: the manifest differs from what was written")
    try:
        backup = msgspec.json.decode(text, type=Backup)
    except UNREADABLE as error:
        raise BackupDamaged(f"backup {backup_id}: the manifest cannot be read: {error}") from error
    _check(backup, backup_id)
    return backup


def _check(backup: Backup, backup_id: str) -> None:
    if backup.id != backup_id:
        raise BackupDamaged(f"backup {backup_id}: the manifest belongs to backup {backup.id}")
    groups = [part.group for part in backup.parts]
    if len(set(groups)) != len(groups):
        raise BackupDamaged(f"backup {backup_id}: a broker group is listed twice")
    for part in backup.parts:
        sizes = {file.name: file.size for file in part.files}
        is_named = 0 < sizes.get("CURRENT", 0) <= CURRENT_SIZE_MAX
        if len(sizes) != len(part.files) or not is_named or not part.index:
            raise BackupDamaged(f"backup {backup_id}: the files of {part.group} are not a store")


def manifest_key(backup_id: str) -> str:
    """Return the key of a backup's manifest."""
    return f"backups/{backup_id}.manifest"


def id_of(key: str) -> str | None:
    """Return the id of the backup whose manifest has the key *key*, None for any other key."""
    found = _KEY.fullmatch(key)
    return None if found is None else found["id"]


def blob_key(sha256: str) -> str:
    """Return the key of the bytes with this digest."""
    return f"blobs/{sha256[:2]}/{sha256}"


def is_blob(key: str) -> bool:
    """Return whether *key* is a result of `blob_key`, so that its file can only belong to a backup."""
    return _BLOB.fullmatch(key) is not None
