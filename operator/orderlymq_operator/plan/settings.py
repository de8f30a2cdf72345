"""
The broker settings that follow from a Cluster, as plain data, and their revision.

The keys are those of the broker's settings file; the backend adds addresses and identities. A change of the manifest
that leaves these settings equal needs no restart.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from orderlymq_operator.resources.cluster.cluster import Cluster
from orderlymq_operator.resources.cluster.rollout import LIVE_SETTINGS

# Messages get this share of the disk. With a tenth on top for keys and indexes, use stays below the first warning and
# leaves room for compaction and a snapshot.
_MESSAGES_SHARE_PERCENT: Final = 60
# Sends are accepted again when use has fallen this far below the limit; without the gap they would flap.
_DISK_RESUME_GAP: Final = 0.02
# Raft measures silence in whole ticks; two per heartbeat keep the error below half a heartbeat.
_TICKS_PER_HEARTBEAT: Final = 2
REVISION_LENGTH: Final = 12


def broker_options(cluster: Cluster) -> dict[str, Any]:
    """Return the settings that all replicas of *cluster* share, in the form of the settings file."""
    spec, config, live = cluster.spec, cluster.spec.config, live_options(cluster)
    heartbeat_ms = config.raft_heartbeat.milliseconds
    retention, growth = spec.retention, spec.storage.auto_grow
    size = retention.size or (growth.limit if growth else spec.storage.size)
    share = 100 if retention.size else _MESSAGES_SHARE_PERCENT
    return {
        **live,
        "cluster": cluster.metadata.name,
        "trace_topic_enable": config.trace_topic_enable,
        "access": {
            "enable": config.acl_enable,
            "signed_administration": config.signed_administration,
        },
        "tls": tls_options(cluster),
        "raft": {
            "tick_ms": max(1, heartbeat_ms // _TICKS_PER_HEARTBEAT),
            "heartbeat_ms": heartbeat_ms,
            "election_ms": config.raft_election_timeout.milliseconds,
        },
        "timers": {
            **live["timers"],
            "lock_lease_ms": config.lock_max_live_time or spec.lock.lease_seconds * 1000,
            "register_ms": config.register_name_server_period.milliseconds,
            "client_expiry_ms": config.client_expiry.milliseconds,
            "delay_levels": config.message_delay_level,
        },
        "storage": {
            **live["storage"],
            "flush": config.flush_disk_type or spec.flush_disk_type,
            "retention_size": size.size_bytes * share // 100,
            "dedup_window_count": config.dedup_window_count,
            "dedup_window_ms": config.dedup_window_time.milliseconds,
            "tail_cache_size": config.tail_cache_size.size_bytes,
            "block_cache_size": config.block_cache_size.size_bytes,
        },
        **_address_quotas(cluster),
        "log_level": config.log_level,
        "log_format": config.log_format,
    }


def live_options(cluster: Cluster) -> dict[str, Any]:
    """Return the part of `broker_options` that replicas reload while they run."""
    config = cluster.spec.config
    hours, limit = config.file_reserved_time, config.disk_max_used_space_ratio / 100
    return {
        "auto_create_topic": config.auto_create_topic_enable,
        "auto_create_group": config.auto_create_subscription_group,
        "enable_property_filter": config.enable_property_filter,
        "reject_transactions": config.reject_transaction_message,
        "default_topic_queues": config.default_topic_queue_nums,
        "permission": config.broker_permission,
        "timers": {
            "timer_enable": config.timer_wheel_enable,
            "timer_delay_max_ms": config.timer_max_delay_sec * 1000,
            "recall_enable": config.recall_message_enable,
            "transaction_timeout_ms": config.transaction_time_out.milliseconds,
            "transaction_check_interval_ms": config.transaction_check_interval.milliseconds,
            "transaction_check_max": config.transaction_check_max,
        },
        "storage": {
            "retention_ms": hours * 3_600_000
            if hours
            else cluster.spec.retention.time.milliseconds,
            "disk_refuse_ratio": limit,
            "disk_resume_ratio": round(limit - _DISK_RESUME_GAP, 2),
            "body_size_max": config.max_message_size.size_bytes,
        },
    }


def with_live_options(options: Mapping[str, Any], live: Mapping[str, Any]) -> dict[str, Any]:
    """Return the former *options* with the values of *live*.

    Keys that *options* lacks stay out, because an earlier broker may not know them.
    """
    return {
        key: with_live_options(value, live[key])
        if isinstance(value, dict) and isinstance(live.get(key), dict)
        else live.get(key, value)
        for key, value in options.items()
    }


def _address_quotas(cluster: Cluster) -> dict[str, Any]:
    """Return the setting if it is set: brokers of an earlier version do not know it."""
    limits = cluster.spec.address_quotas.limits()
    return {"address_quotas": limits._asdict()} if any(limits) else {}


def address_setting(host: str, port: int) -> dict[str, Any]:
    """Return an address in the form of settings files."""
    return {"host": host, "port": port}


def http_scheme(cluster: Cluster) -> str:
    """Return the URL scheme of the HTTP pages of the cluster's processes."""
    return "https" if cluster.spec.tls.mode == "Enforcing" else "http"


def tls_options(cluster: Cluster) -> dict[str, Any]:
    """Return the TLS settings that brokers and name servers share."""
    tls = cluster.spec.tls
    return {
        "mode": tls.mode.lower(),
        "certificate": tls.certificate_file,
        "key": tls.key_file,
        "ca": tls.ca_file,
        "client_auth": tls.client_auth.lower(),
    }


def _without_live(cluster: Cluster) -> Cluster:
    """Return *cluster* with defaults in the settings that brokers reload while they run."""
    spec = cluster.spec
    parts: dict[str, Any] = {}
    for name in ("config", "retention"):
        part = getattr(spec, name)
        live = {
            field: about.get_default(call_default_factory=True)
            for field, about in type(part).model_fields.items()
            if f"{name}.{about.alias or field}" in LIVE_SETTINGS
        }
        parts[name] = part.model_copy(update=live)

    return cluster.with_spec(**parts)


def live_changes(old: Cluster, new: Cluster) -> Iterator[tuple[str, str]]:
    """Yield the changed settings that brokers reload, as (path below spec, sentence); leave out those without effect."""
    effective = broker_options(new)
    for path in LIVE_SETTINGS:
        part, _, alias = path.partition(".")
        former, latter = getattr(old.spec, part), getattr(new.spec, part)
        fields = type(latter).model_fields.items()
        field = next(name for name, about in fields if (about.alias or name) == alias)
        one = latter.model_copy(update={field: getattr(former, field)})
        if broker_options(new.with_spec(**{part: one})) != effective:
            was, now = (
                each.model_dump(mode="json", by_alias=True)[alias] for each in (former, latter)
            )
            yield path, f"{path} changes from {_value(was)} to {_value(now)}, without a restart"


def _value(value: object) -> str:
    """Return a setting in the notation of manifests."""
    return "unset" if value is None else value if isinstance(value, str) else json.dumps(value)


def name_server_options(cluster: Cluster) -> dict[str, Any]:
    """Return the settings that all name servers of *cluster* share, in the form of the settings file."""
    config = cluster.spec.config
    return {
        "tls": tls_options(cluster),
        "log_level": config.log_level,
        "log_format": config.log_format,
    }


def name_server_revision(cluster: Cluster) -> str:
    """Return a short text that differs if name servers must restart to apply *cluster*."""
    return revision_of(name_server_options(cluster))


def revision(cluster: Cluster) -> str:
    """Return a short text that differs if replicas must restart to apply *cluster*."""
    facts = {
        "options": broker_options(_without_live(cluster)),
        "name_servers": cluster.spec.name_servers.replicas,
    }
    return revision_of(facts)


def revision_of(facts: object, length: int = REVISION_LENGTH) -> str:
    """Return a short text that differs if *facts* differ; *facts* must be serializable as JSON."""
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
