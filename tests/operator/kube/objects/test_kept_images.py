"""A Cluster may keep an older image, whose processes refuse settings files with unknown keys."""

from collections.abc import Iterator
from typing import Any

from orderlymq_operator.kube.objects.pods import broker_settings, name_server_settings
from tests.operator.kube.samples import cluster

BROKER_SINCE_0_1_0 = """
access.enable access.operator_key access.operator_secret_file access.signed_administration
address.host address.port auto_create_group auto_create_topic bind cluster cluster_secret_file data_dir
default_topic_queues enable_property_filter group http.host http.port join listen.host listen.port log_format log_level
name_servers node_id peers permission pod.name pod.namespace pod.siblings
raft.election_ms raft.heartbeat_ms raft.tick_ms raft_listen.host raft_listen.port reject_transactions
storage.block_cache_size storage.body_size_max storage.dedup_window_count storage.dedup_window_ms
storage.disk_refuse_ratio storage.disk_resume_ratio storage.flush storage.retention_ms storage.retention_size
storage.tail_cache_size
timers.client_expiry_ms timers.delay_levels timers.lock_lease_ms timers.recall_enable timers.register_ms
timers.timer_delay_max_ms timers.timer_enable timers.transaction_check_interval_ms timers.transaction_check_max
timers.transaction_timeout_ms
tls.ca tls.certificate tls.client_auth tls.key tls.mode trace_topic_enable
"""
NAME_SERVER_SINCE_0_1_0 = """
cluster_secret_file http.host http.port kv_path listen.host listen.port log_format log_level
tls.ca tls.certificate tls.client_auth tls.key tls.mode
"""


def test_a_cluster_that_asks_for_nothing_new_gets_no_new_key() -> None:
    """
    Law: images since 0.1.0 start with the files of any later operator, unless the spec asks for something new.

    A key of a later version, such as `address_quotas`, is written only if the spec asks for its effect.
    """
    brokers = broker_settings(cluster(), "demo-0", 1, address="a", first=1, replicas=1)

    assert set(_keys(brokers)) <= set(BROKER_SINCE_0_1_0.split())
    assert set(_keys(name_server_settings(cluster()))) <= set(NAME_SERVER_SINCE_0_1_0.split())


def _keys(settings: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in settings.items():
        if isinstance(value, dict) and name != "peers":
            yield from _keys(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
