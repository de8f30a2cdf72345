import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orderlymq_broker import settings as broker_settings
from orderlymq_broker.__main__ import check
from orderlymq_broker.replication.replicainstance import sticks_ms
from orderlymq_nameserver.settings import NameServerSettings
from orderlymq_operator.local.directory import DataDirectory
from orderlymq_operator.local.processes import name_server_program, replica_program
from orderlymq_operator.plan.settings import broker_options, revision
from orderlymq_operator.resources.cluster.cluster import Config
from orderlymq_operator.resources.cluster.rollout import LIVE_SETTINGS
from orderlymq_operator.resources.quantities import Duration, Quantity
from orderlymq_runtime.settingsfile import ServerAddress, read_settings
from tests.operator.examples import cluster


def _load_replica(tmp_path: Path, **spec: Any) -> broker_settings.BrokerSettings:
    directory = DataDirectory(tmp_path)
    directory.create()
    program = replica_program(cluster(**spec), "demo-1", 2, directory, nodes=[1, 2, 3], join=False)
    file = tmp_path / "settings.json"
    file.write_text(program.settings)
    return broker_settings.load(file)


def test_the_broker_reads_the_file_that_is_written_for_it(tmp_path: Path) -> None:
    """Law: the broker reads the written file with the intended addresses, identity and members."""
    address = broker_settings.Address

    found = _load_replica(tmp_path, groups=2)

    assert (found.cluster, found.group, found.node_id, found.join) == ("demo", "demo-1", 2, False)
    assert found.peers == {node: address("127.0.0.1", 12920 + node) for node in (1, 2, 3)}
    assert (found.address, found.http) == (
        address("127.0.0.1", 10921),
        address("127.0.0.1", 13922),
    )
    assert found.name_servers == [address("127.0.0.1", 9876), address("127.0.0.1", 9877)]
    assert found.data_dir == tmp_path / "replicas" / "demo-1-2"
    assert found.cluster_secret == DataDirectory(tmp_path).cluster_secret.read_bytes()


def test_every_option_is_a_setting_of_the_broker() -> None:
    """Law: each option is a setting of the broker, which would silently ignore a misspelt one."""
    options = broker_options(cluster())

    assert options.keys() <= set(broker_settings.BrokerSettings.__struct_fields__)
    parts = {
        "raft": broker_settings.RaftSettings,
        "timers": broker_settings.TimerSettings,
        "storage": broker_settings.StorageSettings,
    }
    for name, struct in parts.items():
        assert options[name].keys() <= set(struct.__struct_fields__)


def test_defaults_of_the_manifest_are_the_defaults_of_the_broker(tmp_path: Path) -> None:
    """Law: defaults of manifest and broker are the same, although they are written twice (the packages cannot share code)."""
    found = _load_replica(tmp_path)

    assert found.raft == broker_settings.RaftSettings()
    assert found.timers == broker_settings.TimerSettings()
    share = (20 << 30) * 60 // 100
    assert found.storage == broker_settings.StorageSettings(retention_size=share)
    assert (found.auto_create_topic, found.auto_create_group) == (True, True)


@pytest.mark.parametrize(
    ("spec", "part", "field", "value"),
    [
        ({"flushDiskType": "ASYNC_FLUSH"}, "storage", "flush", "ASYNC_FLUSH"),
        ({"retention": {"time": "2h"}}, "storage", "retention_ms", 7_200_000),
        ({"retention": {"size": "1Gi"}}, "storage", "retention_size", 1 << 30),
        ({"storage": {"size": "10Gi"}}, "storage", "retention_size", 6 << 30),
        ({"lock": {"leaseSeconds": 40}}, "timers", "lock_lease_ms", 40_000),
        ({"config": {"clientExpiry": "20s"}}, "timers", "client_expiry_ms", 20_000),
        ({"config": {"messageDelayLevel": "1s 2s"}}, "timers", "delay_levels", "1s 2s"),
        ({"config": {"transactionTimeOut": "1s"}}, "timers", "transaction_timeout_ms", 1_000),
        (
            {"config": {"transactionCheckInterval": "2s"}},
            "timers",
            "transaction_check_interval_ms",
            2_000,
        ),
        ({"config": {"transactionCheckMax": 3}}, "timers", "transaction_check_max", 3),
        ({"config": {"maxMessageSize": "1Mi"}}, "storage", "body_size_max", 1 << 20),
        ({"config": {"diskMaxUsedSpaceRatio": 75}}, "storage", "disk_refuse_ratio", 0.75),
        ({"config": {"diskMaxUsedSpaceRatio": 75}}, "storage", "disk_resume_ratio", 0.73),
        ({"config": {"dedupWindowCount": 5}}, "storage", "dedup_window_count", 5),
        ({"config": {"dedupWindowTime": "1s"}}, "storage", "dedup_window_ms", 1000),
        ({"config": {"tailCacheSize": "1Mi"}}, "storage", "tail_cache_size", 1 << 20),
        ({"config": {"blockCacheSize": "1Mi"}}, "storage", "block_cache_size", 1 << 20),
        ({"config": {"raftElectionTimeout": "1s"}}, "raft", "election_ms", 1000),
        ({"config": {"raftHeartbeat": "20ms"}}, "raft", "tick_ms", 10),
        ({"config": {"transactionTimeOut": 7000}}, "timers", "transaction_timeout_ms", 7_000),
        ({"config": {"maxMessageSize": 65536}}, "storage", "body_size_max", 65_536),
        ({"config": {"registerNameServerPeriod": 10_000}}, "timers", "register_ms", 10_000),
        ({"config": {"fileReservedTime": 48}}, "storage", "retention_ms", 48 * 3_600_000),
        ({"config": {"flushDiskType": "ASYNC_FLUSH"}}, "storage", "flush", "ASYNC_FLUSH"),
        (
            {"config": {"rocketmq.broker.rebalance.lockMaxLiveTime": 40_000}},
            "timers",
            "lock_lease_ms",
            40_000,
        ),
    ],
)
def test_each_field_reaches_its_setting(
    tmp_path: Path, spec: dict[str, Any], part: str, field: str, value: object
) -> None:
    """Law: each field reaches its setting, and each one that is not live changes the revision, so replicas restart."""
    ((name, said),) = spec.items()
    path = f"{name}.{next(iter(said))}" if isinstance(said, dict) else name

    assert getattr(getattr(_load_replica(tmp_path, **spec), part), field) == value
    assert (revision(cluster(**spec)) == revision(cluster())) is (path in LIVE_SETTINGS)


def _ends(kind: Any) -> list[Any]:
    """Return a field's smallest, largest and many other values, as far as its type tells them."""
    if kind in (Duration, Duration | None):
        return ["1ms", "2ms", "1s", "60s", "1h", "999999999h999999999h"]
    if kind in (Quantity, Quantity | None):
        return ["1", "1Ki", "4Mi", "999999999999999Pi"]
    return [number for exponent in range(63) for number in (-(1 << exponent), 1 << exponent)]


@pytest.mark.parametrize("name", Config.model_fields)
def test_a_broker_starts_with_whatever_a_cluster_may_say(tmp_path: Path, name: str) -> None:
    """Law: a broker starts with every value that a manifest may have."""
    field = Config.model_fields[name]
    taken = []
    for value in _ends(field.annotation):
        try:
            cluster(config={field.alias or name: value})
        except ValidationError:
            continue
        taken.append(value)
        check(_load_replica(tmp_path, config={field.alias or name: value}))

    assert taken or field.annotation not in (int, Duration, Quantity)


@pytest.mark.parametrize(
    ("heartbeat", "election"), [("1ms", "2ms"), ("100ms", "200ms"), ("30s", "60s")]
)
def test_the_shortest_election_timeout_is_one_for_the_broker(
    tmp_path: Path, heartbeat: str, election: str
) -> None:
    """Law: manifest and broker have the same shortest election timeout."""
    found = _load_replica(
        tmp_path, config={"raftHeartbeat": heartbeat, "raftElectionTimeout": election}
    )

    check(found)
    assert sticks_ms(found.raft) < 1 << 31
    with pytest.raises(ValidationError, match="at most 60s"):
        cluster(config={"raftElectionTimeout": "60001ms"})


def test_what_needs_no_restart_keeps_the_revision() -> None:
    """Law: more replicas or groups do not change the revision, so running ones are not restarted."""
    wanted = cluster(groups=2, replicasPerGroup=5)

    assert revision(wanted) == revision(cluster())


def test_the_name_server_reads_the_file_that_is_written_for_it(tmp_path: Path) -> None:
    """Law: the name server reads the written file; the second one listens one port higher and has its own file."""
    directory = DataDirectory(tmp_path)
    directory.create()
    program = name_server_program(cluster(), 1, directory)
    file = tmp_path / "settings.json"
    file.write_text(program.settings)

    assert read_settings(file, NameServerSettings) == NameServerSettings(
        listen=ServerAddress("127.0.0.1", 9877),
        http=ServerAddress("127.0.0.1", 13901),
        kv_path=tmp_path / "name-servers" / "1.json",
        cluster_secret_file=directory.cluster_secret,
        cluster_secret=directory.cluster_secret.read_bytes(),
    )
    assert json.loads(program.settings)["log_format"] == "text"


def test_quotas_of_addresses_are_written_where_they_are_wanted() -> None:
    """Law: quotas per address are written only if wanted; older brokers do not know them, and no replica restarts."""
    wanted = cluster(address_quotas={"requestsPerSecond": 500, "bytesPerSecond": "10Mi"})

    assert "address_quotas" not in broker_options(cluster())
    assert broker_options(wanted)["address_quotas"] == {
        "requests_per_s": 500,
        "bytes_per_s": 10 << 20,
        "connections": 0,
    }
    assert revision(wanted) != revision(cluster())
