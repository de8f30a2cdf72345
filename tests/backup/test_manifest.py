"""Manifests: a written one is read again, and any other contents are refused with the wrong part named."""

from typing import Any

import msgspec
import pytest

from orderlymq_backup.errors import BackupDamaged, BackupError, TargetRefused
from orderlymq_backup.manifest import (
    BACKUP_FILES_MAX,
    FILES_MAX,
    GROUPS_MAX,
    MANIFEST_SIZE_MAX,
    Backup,
    BackupFile,
    Part,
    blob_key,
    decode,
    encode,
    id_of,
    refuse_more,
)

ID = "20261125T184314123Z-0badcafe"
DIGEST = "ab" * 32


def part(group: str = "demo-0", **changes: Any) -> Part:
    file = BackupFile(name="CURRENT", size=16, sha256=DIGEST, tail=DIGEST)
    facts = {
        "cluster": "demo",
        "group": group,
        "node": 1,
        "index": 7,
        "term": 2,
        "physical_end": 900,
        "taken_ms": 1_000,
        "files": (file,),
    }
    return Part(**{**facts, **changes})


def backup(*parts: Part) -> Backup:
    return Backup(
        id=ID,
        cluster="demo",
        began_ms=1,
        ended_ms=2,
        release="0.1.0",
        new_bytes=16,
        parts=parts or (part(),),
    )


def forged(**changes: Any) -> bytes:
    """Return a manifest with other contents and a valid digest."""
    made = backup()
    facts = msgspec.to_builtins(made)
    (only,) = facts["parts"]
    (file,) = only["files"]
    for name, value in changes.items():
        holder = next(each for each in (file, only, facts) if name in each)
        holder[name] = value
    import hashlib  # noqa: PLC0415 - only here

    text = msgspec.json.encode(facts)
    return b"orderlymq-backup 1 " + hashlib.sha256(text).hexdigest().encode() + b"\n" + text


def test_what_is_written_is_read_again() -> None:
    """Law: decode returns what was encoded."""
    made = backup(part("demo-0"), part("demo-1", taken_ms=1_250))

    assert decode(encode(made), ID) == made
    assert made.spread_ms == 250


def test_a_label_alone_makes_another_format() -> None:
    """Law: older programs read a backup without a label; for one with a label they say that they are too old."""
    plain = backup()
    labelled = msgspec.structs.replace(plain, label="u1")

    assert decode(encode(labelled), ID) == labelled
    assert encode(labelled).startswith(b"orderlymq-backup 2 ")
    assert encode(plain).startswith(b"orderlymq-backup 1 ")
    assert b"label" not in encode(plain)


def test_every_backup_that_is_not_refused_has_room_in_its_manifest() -> None:
    """Law: a manifest can hold all files that a backup may have, with the longest names, sizes and groups."""
    refuse_more(BACKUP_FILES_MAX)
    files = tuple(
        BackupFile(name=f"{number:020}.blob", size=2**63 - 1, sha256=DIGEST, tail=DIGEST)
        for number in range(FILES_MAX)
    )
    large = [part(str(number), files=files) for number in range(BACKUP_FILES_MAX // FILES_MAX)]
    name = "\N{SNOWMAN}" * 255
    wide = part(
        name,
        cluster=name,
        **dict.fromkeys(("node", "index", "physical_end", "taken_ms"), 2**63 - 1),
    )

    size = len(encode(backup(*large))) + GROUPS_MAX * len(msgspec.json.encode(wide))

    assert size <= MANIFEST_SIZE_MAX
    with pytest.raises(BackupError, match="let retention keep fewer messages"):
        refuse_more(BACKUP_FILES_MAX + 1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "../../etc/passwd"}, "name"),
        ({"name": "/etc/passwd"}, "name"),
        ({"name": "LOCK"}, "name"),
        ({"name": "OPTIONS-000007"}, "name"),
        ({"name": "CURRENT\n"}, "name"),
        ({"sha256": "ab" * 32 + "\n"}, "sha256"),
        ({"name": "000001.sst"}, "not a store"),
        ({"size": 65}, "not a store"),
        ({"size": 0}, "not a store"),
        ({"size": -1}, "size"),
        ({"size": 2**63}, "size"),
        ({"size": True}, "size"),
        ({"sha256": "../" + "a" * 61}, "sha256"),
        ({"sha256": "AB" * 32}, "sha256"),
        ({"index": 0}, "not a store"),
        ({"index": "7"}, "index"),
        ({"term": 2**62 + 1}, "term"),
        ({"group": ""}, "group"),
        ({"group": "g" * 256}, "group"),
        ({"files": []}, "files"),
        ({"parts": []}, "parts"),
        ({"id": "20261125T184314123Z-0badcaff"}, "belongs to backup"),
        ({"id": "../x"}, "id"),
    ],
)
def test_a_forged_manifest_is_refused(changes: dict[str, Any], reason: str) -> None:
    """Law: names, ranges and shapes are checked, because a valid digest proves nothing."""
    with pytest.raises(BackupDamaged, match=reason):
        decode(forged(**changes), ID)


def test_what_a_manifest_does_not_have_is_refused() -> None:
    """Later formats have another version in the head, so an unknown field is damage."""
    assert decode(forged(), ID) == backup()
    twice = encode(backup(part(), part()))

    for data, reason in (
        (b"", "no head"),
        (b"orderlymq-backup 3 " + b"0" * 64 + b"\n{}", "format 3"),
        (encode(backup())[:-1], "differs from what was written"),
        (b"orderlymq-backup 1 " + b"0" * 64 + b"\n{}", "differs from what was written"),
        (twice, "twice"),
    ):
        with pytest.raises(BackupDamaged, match=reason):
            decode(data, ID)


def test_groups_keep_their_place() -> None:
    """Law: under a new cluster name, the group of each number is restored from the group with the same number."""
    made = backup(*(part(f"demo-{number}") for number in range(11)))
    groups = [f"new-{number}" for number in range(11)]

    assert [made.part_for(group, groups).group for group in groups] == [
        f"demo-{number}" for number in range(11)
    ]
    with pytest.raises(TargetRefused, match=r"spec\.groups to 11"):
        made.part_for("new-0", groups[:3])


def test_groups_are_sorted_as_clients_sort_them() -> None:
    """Law: the queue list of a topic keeps its order, regardless of the names of groups before and after."""
    for former, later in (
        (("shop-9", "shop-10"), ("new-0", "new-1")),
        (("demo-1", "demo-9", "demo-10"), ("east", "shop-10", "shop-9")),
    ):
        made = backup(*map(part, former))

        assert [made.part_for(group, later).group for group in sorted(later)] == sorted(former)


def test_only_manifests_of_backups_are_seen() -> None:
    """All other files in the folder are ignored."""
    assert id_of(f"backups/{ID}.manifest") == ID
    for key in ("backups/x.manifest", f"backups/a/{ID}.manifest", f"backups/{ID}", "backups/.."):
        assert id_of(key) is None
    assert blob_key(DIGEST) == f"blobs/ab/{DIGEST}"
