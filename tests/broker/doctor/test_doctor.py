"""The doctor finds every kind of damage, changes nothing, and finds nothing in a healthy replica."""

import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from orderlymq_broker.doctor.command import doctor
from orderlymq_broker.doctor.log import FINDINGS_MAX
from orderlymq_broker.doctor.state import examine
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.records import (
    Append,
    Commit,
    OffsetsCommitted,
    QueueFloor,
    Record,
    RetentionAdvanced,
    TopicDeleted,
    TopicSet,
    encode_records,
)
from orderlymq_broker.state.statemachine import StateMachine
from orderlymq_broker.store import layout
from orderlymq_broker.store.entry import encode_entry, split_entry
from orderlymq_broker.store.kv import Batch, Family
from orderlymq_broker.store.layout import IndexKind
from orderlymq_broker.store.raftlog import RaftLogStore
from orderlymq_broker.store.replica import Identity, Replica, hold, open_replica
from orderlymq_broker.store.rocks import DirectoryInUse
from orderlymq_protocol.message.record import StoredMessage, body_crc
from orderlymq_protocol.message.tags import tags_code
from orderlymq_protocol.names import TRANS_HALF_TOPIC
from orderlymq_raft.types import Entry, HardState, Index, Membership, NodeId, Term
from tests.protocol.records import encode_record

OWNER = Identity("east", "group-a", 1)
HOST = ("127.0.0.1", 10911)


class Writer:
    """Writes to a store as a leader does: log entries, then their effects, in one ticket each."""

    def __init__(self, data_dir: Path) -> None:
        self.replica: Replica = open_replica(data_dir, OWNER)
        self.store = self.replica.store
        self.log = RaftLogStore(self.store, 1 << 20)
        self.state = BrokerState(self.store)
        self.machine = StateMachine(self.state)

    def enter(self, records: list[Record], messages: list[bytes], *, apply: bool = True) -> None:
        batch = Batch()
        index = self.log.last_index() + 1
        data = encode_entry(encode_records(records), messages, self.log.physical_end(), index)
        hard_state = HardState(Term(2), NodeId(1), Index(index))
        self.log.append(batch, [Entry(Term(2), Index(index), data)], hard_state)
        if apply:
            self.machine.apply(index, 2, split_entry(data), batch)
        self.store.write(batch, sync=False)

    def topic(self, name: str) -> None:
        self.enter([TopicSet(name, 4, 4)], [])

    def send(
        self,
        name: str,
        queue_id: int,
        count: int,
        *,
        apply: bool = True,
        filtered: bool = True,
        begin: int = 0,
    ) -> None:
        topic = self.state.topics.by_name[name]
        queue = topic.queue(queue_id)
        next_offset = queue.next_offset or begin
        records: list[Record] = []
        messages = []
        physical = self.log.physical_end()
        for number in range(count):
            stamp = self.log.last_index() * 1000 + number
            tag = f"tag-{number % 3}"
            keys = f"order-{number} customer-{queue_id}"
            unique = f"unique-{physical}"
            body = random.Random(physical).randbytes(400)
            message = encode_record(
                StoredMessage(
                    name,
                    queue_id,
                    0,
                    next_offset + number,
                    physical,
                    0,
                    stamp,
                    HOST,
                    stamp,
                    HOST,
                    0,
                    0,
                    body,
                    f"TAGS\x01{tag}\x02KEYS\x01{keys}\x02UNIQ_KEY\x01{unique}\x02".encode(),
                    body_crc(body),
                )
            )
            records.append(
                Append(
                    topic.id,
                    queue_id,
                    next_offset + number,
                    physical,
                    len(message),
                    tags_code(tag) if filtered else 0,
                    stamp,
                    unique,
                    keys,
                    f"identity-{physical}".encode(),
                )
            )
            messages.append(message)
            physical += len(message)
        self.enter(records, messages, apply=apply)

    def close(self) -> None:
        self.replica.close()


def fill(data_dir: Path) -> None:
    """A replica with two topics, commits, a compacted log and an entry that is not applied yet."""
    writer = Writer(data_dir)
    batch = Batch()
    writer.log.set_membership(batch, Membership(frozenset({NodeId(1)})))
    writer.store.write(batch, sync=False)
    writer.topic("orders")
    writer.topic("bills")
    writer.send("bills", 1, 2, begin=7)  # A copy of another cluster's queue.
    for round_ in range(6):
        for queue_id in range(3):
            writer.send("orders", queue_id, 5)
        writer.send("bills", 0, 2)
        if round_ == 2:
            batch = Batch()
            writer.log.compact(batch, Index(8))
            writer.store.write(batch, sync=False)
            writer.store.flush()
    writer.enter([OffsetsCommitted((Commit("billing", "orders", 1, 30),))], [])
    writer.send("orders", 0, 3, apply=False)
    writer.close()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    fill(tmp_path / "data")

    return tmp_path / "data"


def digest(directory: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file()
    }


def edit(data_dir: Path, change: Callable[[Batch, Replica], None]) -> None:
    """Change a store as no broker would."""
    replica = open_replica(data_dir, OWNER)
    batch = Batch()
    change(batch, replica)
    replica.store.write(batch, sync=True)
    replica.close()


def test_a_healthy_replica_is_clean_and_untouched(data_dir: Path) -> None:
    """Law: a healthy replica has no findings, and the doctor changes no byte and no time stamp."""
    before = digest(data_dir)

    report = examine(data_dir)

    assert report.findings == []
    assert report.counts == {
        "raft entries": 21,
        "messages": 107,
        "queue entries": 104,
        "index entries": 312,
        "known sends": 104,
        "table rows": 5,
    }
    assert (report.clean, report.identity) == (True, OWNER)
    assert digest(data_dir) == before


@pytest.mark.parametrize(
    ("counts", "other"), [("store.new", "store"), ("store.new", "store.old"), ("store.old", None)]
)
def test_the_store_that_a_start_would_take_is_examined(
    data_dir: Path, counts: str, other: str | None
) -> None:
    """Law: if a replica was killed while it installed a snapshot, the store that a start would use is examined."""
    whole = examine(data_dir)
    (data_dir / "store").rename(data_dir / counts)
    if other is not None:
        former = Writer(data_dir.with_name("former"))
        former.close()
        (data_dir.with_name("former") / "store").rename(data_dir / other)
    before = digest(data_dir)

    found = examine(data_dir)

    assert digest(data_dir) == before
    assert (found.findings, found.counts, found.identity) == ([], whole.counts, OWNER)
    with hold(data_dir), pytest.raises(DirectoryInUse):
        examine(data_dir)


def test_a_killed_replica_is_clean_before_and_after_recovery(tmp_path: Path) -> None:
    """Law: data that is only in the write-ahead log of a killed replica is examined too."""
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom tests.broker.doctor.test_doctor import Writer\n"
        "writer = Writer(Path(sys.argv[1]))\nwriter.topic('orders')\n"
        "for _ in range(20):\n    writer.send('orders', 1, 5)\nos.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "data")], check=False)

    before = examine(tmp_path / "data")
    open_replica(tmp_path / "data", OWNER).close()
    after = examine(tmp_path / "data")

    assert (before.findings, after.findings) == ([], [])
    assert before.counts["messages"] == after.counts["messages"] == 100


def test_half_messages_with_tags_are_no_findings(tmp_path: Path) -> None:
    """Law: a half message has no tags code, whatever its tags, so that is no damage."""
    writer = Writer(tmp_path)
    writer.topic(TRANS_HALF_TOPIC)
    writer.send(TRANS_HALF_TOPIC, 0, 3, filtered=False)
    writer.close()

    assert examine(tmp_path).findings == []


def test_a_missing_tags_code_is_found(tmp_path: Path) -> None:
    """Law: a queue entry without the tags code of its message is damage, because consumers select by it."""
    writer = Writer(tmp_path)
    writer.topic("orders")
    writer.send("orders", 0, 1, filtered=False)
    writer.close()

    (found,) = examine(tmp_path).findings

    assert found.problem.startswith("has tags code 0, but its tag has")


def test_retention_and_a_topic_made_again_are_no_findings(tmp_path: Path) -> None:
    """Law: messages dropped by retention or with their topic are not reported as missing."""
    writer = Writer(tmp_path)
    writer.topic("orders")
    writer.topic("bills")
    ends = []
    for _ in range(4):
        writer.send("orders", 0, 5)
        writer.send("bills", 0, 5)
        ends.append(writer.log.physical_end())
    floor = ends[0]
    writer.enter([RetentionAdvanced((QueueFloor(1, 0, 7), QueueFloor(2, 0, 5)), floor=floor)], [])
    writer.enter([TopicDeleted("bills")], [])
    writer.topic("bills")
    writer.send("bills", 0, 2)
    writer.close()

    assert examine(tmp_path).findings == []


def flipped(value: bytes, position: int) -> bytes:
    changed = bytearray(value)
    changed[position] ^= 0x10

    return bytes(changed)


@pytest.mark.long
@pytest.mark.parametrize(
    "family",
    [Family.MESSAGES, Family.CONSUME_QUEUE, Family.KEY_INDEX, Family.RAFT_LOG],
)
def test_any_flipped_byte_of_a_value_is_found(data_dir: Path, family: Family) -> None:
    """Law: any flipped byte in messages, queue entries, index rows and raft entries is found."""
    chance = random.Random(int(family))
    for _ in range(12):
        undo: list[tuple[bytes, bytes]] = []

        def damage(batch: Batch, replica: Replica, undo: list[tuple[bytes, bytes]] = undo) -> None:
            pairs = replica.store.scan(family, b"", b"\xff" * 20, limit=1 << 40)
            # Only messages whose raft entry is still there.
            pairs = pairs[-60:] if family is Family.MESSAGES else pairs
            key, value = chance.choice(pairs)
            undo.append((key, value))
            batch.put(family, key, flipped(value, chance.randrange(len(value))))

        edit(data_dir, damage)
        report = examine(data_dir)
        edit(data_dir, lambda batch, _, undo=undo: batch.put(family, *undo[0]))  # type: ignore[misc] # mypy cannot infer a lambda with a default

        assert not report.clean, f"{family.name} {undo[0][0].hex()}"
    assert examine(data_dir).findings == []


@pytest.mark.parametrize(
    "family", [Family.MESSAGES, Family.CONSUME_QUEUE, Family.KEY_INDEX, Family.RAFT_LOG]
)
@pytest.mark.parametrize("which", [0, 40, -4])
def test_a_missing_entry_is_found(data_dir: Path, family: Family, which: int) -> None:
    """Law: a missing entry is found at the start, in the middle and at the end."""

    def damage(batch: Batch, replica: Replica) -> None:
        pairs = replica.store.scan(family, b"", b"\xff" * 20, limit=1 << 40)
        if family is Family.KEY_INDEX:
            # Only messages whose raft entry is still there can be checked against it.
            pairs = sorted(pairs, key=lambda pair: pair[0][-8:])[-100:]
        batch.delete(family, pairs[which % len(pairs)][0])

    edit(data_dir, damage)

    assert not examine(data_dir).clean


@pytest.mark.parametrize("suffix", [".sst", ".blob"])
def test_a_flipped_byte_in_a_file_is_found(data_dir: Path, suffix: str) -> None:
    """Law: damage in any file of the store is found by RocksDB's checksums."""
    chance = random.Random(len(suffix))
    for path in sorted((data_dir / "store").glob(f"*{suffix}")):
        whole = path.read_bytes()
        # Not in the footer, whose padding has no checksum.
        path.write_bytes(flipped(whole, chance.randrange(len(whole) - 60)))

        report = examine(data_dir)

        path.write_bytes(whole)
        assert not report.clean, path.name
    assert examine(data_dir).findings == []


def test_a_flipped_byte_in_the_write_ahead_log_is_found(tmp_path: Path) -> None:
    """Law: damage in the write-ahead log of a killed process is found."""
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom tests.broker.doctor.test_doctor import Writer\n"
        "writer = Writer(Path(sys.argv[1]))\nwriter.topic('orders')\n"
        "for _ in range(9):\n    writer.send('orders', 1, 5)\nos.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    (log,) = (path for path in (tmp_path / "store").glob("*.log") if path.stat().st_size)
    whole = log.read_bytes()

    for position in (50, len(whole) // 2, len(whole) - 1):
        log.write_bytes(flipped(whole, position))
        report = examine(tmp_path)
        assert [finding.check for finding in report.findings] == ["files"]
        assert "Corruption" in report.findings[0].problem
        assert str(tmp_path) in report.findings[0].problem


def test_a_gap_in_the_write_ahead_log_is_found(tmp_path: Path) -> None:
    """Law: a missing write-ahead log is reported, and the checks of what it cost go on."""
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom tests.broker.doctor.test_doctor import Writer\n"
        "writer = Writer(Path(sys.argv[1]))\nwriter.topic('orders')\n"
        "for _ in range(9):\n    writer.send('orders', 1, 5)\n    writer.replica.store._columns[0].flush()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    logs = sorted(path for path in (tmp_path / "store").glob("*.log") if path.stat().st_size)
    logs[len(logs) // 2].unlink()

    findings = examine(tmp_path).findings

    assert findings[0].check == "files"
    assert "the writes between them are lost" in findings[0].problem
    assert "raft log" in {each.check for each in findings}


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda batch: batch.put(Family.META, b"stranger", b""), "positions"),
        (lambda batch: batch.put(Family.META, layout.META_APPLIED, b"x"), "files"),
        (
            lambda batch: batch.put(
                Family.META,
                layout.META_APPLIED,
                layout.encode_applied(layout.Applied(999, 2, 10, 0)),
            ),
            "raft log",
        ),
        (lambda batch: batch.put(Family.TABLES, b"\xfe", b""), "tables"),
        (
            lambda batch: batch.put(
                Family.TABLES, layout.table_key(layout.Table.TOPICS, "x"), b"x"
            ),
            "tables",
        ),
        (
            lambda batch: batch.put(
                Family.TABLES,
                layout.table_key(layout.Table.OFFSETS, "billing", "orders", 1),
                msgspec.msgpack.encode(Commit("billing", "orders", 1, 31)),
            ),
            "tables",
        ),
        (lambda batch: batch.put(Family.DEDUP, layout.dedup_key(5), bytes(30)), "duplicate window"),
        (
            lambda batch: batch.put(
                Family.KEY_INDEX,
                layout.index_key(1, IndexKind.KEY, "order-77", 0),
                layout.encode_timestamp(2000),
            ),
            "index",
        ),
        (lambda batch: batch.put(Family.CONSUME_QUEUE, b"short", b""), "consume queues"),
    ],
)
def test_what_does_not_belong_there_is_found(
    data_dir: Path, change: Callable[[Batch], None], check: str
) -> None:
    """Law: each family is decoded and compared with the others, so that foreign data is found."""
    edit(data_dir, lambda batch, _: change(batch))

    assert check in {finding.check for finding in examine(data_dir).findings}


def test_the_command_prints_a_report_and_exits_with_its_verdict(data_dir: Path) -> None:
    """Law: the exit code is 0 for clean, 1 for findings, 2 if the doctor could not look; JSON says the same."""
    runner = CliRunner()

    clean = runner.invoke(doctor, [str(data_dir)])
    edit(data_dir, lambda batch, _: batch.delete(Family.MESSAGES, layout.message_key(0)))
    damaged = runner.invoke(doctor, [str(data_dir), "--output", "json"])
    damaged_text = runner.invoke(doctor, [str(data_dir)])
    missing = runner.invoke(doctor, [str(data_dir / "nothing")])
    above = runner.invoke(doctor, [str(data_dir.parent), "--json"])

    assert (clean.exit_code, damaged.exit_code, damaged_text.exit_code) == (0, 1, 1)
    assert "node 1 of group 'group-a' in cluster 'east'" in clean.output
    assert "no problem was found" in clean.output
    report = json.loads(damaged.output)
    assert report["clean"] is False
    assert {"check", "place", "problem"} == set(report["findings"][0])
    advice = damaged_text.output.rpartition("If a majority of the group is healthy without this")[2]
    assert "move this directory away" in advice
    assert "Otherwise keep the directory" in advice
    assert "docs/howto/lost-majority.md" in advice
    assert (missing.exit_code, above.exit_code) == (2, 2)
    assert "no such directory" in missing.output
    assert str(data_dir) in json.loads(above.output)["error"]


def test_many_findings_of_one_check_hide_no_other(data_dir: Path) -> None:
    """Law: each check shows its first findings on lines of their own, however many another check has."""

    def damage(batch: Batch, _: Replica) -> None:
        for number in range(3 * FINDINGS_MAX):
            batch.put(Family.KEY_INDEX, b"key %d" % number, b"")
        batch.delete(Family.MESSAGES, layout.message_key(0))

    edit(data_dir, damage)

    report, shown = examine(data_dir), CliRunner().invoke(doctor, [str(data_dir)]).stdout

    assert report.findings_by_check["index"] >= 3 * FINDINGS_MAX
    assert len({each.check for each in report.findings}) == len(report.findings_by_check) > 1
    for check, count in report.findings_by_check.items():
        assert f"\n{check}: {count} finding" in shown
    assert f"... and {report.findings_by_check['index'] - FINDINGS_MAX} more" in shown
    assert all(f"  {each.place}: {each.problem}\n" in shown for each in report.findings)


def test_a_replica_in_use_is_not_examined(data_dir: Path) -> None:
    """Law: a replica in use is not examined, not even by its store's path, because changing files give false findings."""
    replica = open_replica(data_dir, OWNER)

    results = [CliRunner().invoke(doctor, [str(each)]) for each in (data_dir, data_dir / "store")]

    for result in results:
        assert result.exit_code == 2
        assert f"in use by process {os.getpid()}; stop that process first" in result.output
    replica.close()


def test_a_system_that_refuses_is_no_finding(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: if the system refuses, for example the folder for copies, the doctor says that it could not look, in JSON too."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "no such folder"))

    text = CliRunner().invoke(doctor, [str(data_dir)])
    as_json = CliRunner().invoke(doctor, [str(data_dir), "--json"])

    assert (text.exit_code, as_json.exit_code) == (2, 2)
    assert text.stderr.startswith("Error: ")
    assert "no such folder" in text.stderr
    told = json.loads(as_json.output)
    assert ("no such folder" in told["error"], told["exitCode"]) == (True, 2)


def test_an_interrupted_doctor_has_not_looked(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: after Ctrl-C the doctor reports that it could not look (code 2)."""

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "mkdtemp", interrupt)

    result = CliRunner().invoke(doctor, [str(data_dir), "--json"])

    assert result.exit_code == 2
    assert "interrupted" in json.loads(result.output)["error"]
