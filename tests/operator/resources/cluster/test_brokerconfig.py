"""RocketMQ's keys in a manifest's `config`: accepted with RocketMQ's defaults, or refused with the reason."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orderlymq_broker.settings import load
from orderlymq_operator.plan.settings import broker_options
from orderlymq_operator.resources.cluster.cluster import Cluster, Config
from orderlymq_protocol.brokerkeys import BROKER_KEYS, BrokerKey, Kind, Use, why_not
from tests.operator.examples import cluster

TAKEN = [key for key in BROKER_KEYS.values() if key.use in (Use.LIVE, Use.START)]
NUMBERS = [key for key in TAKEN if key.kind is Kind.INTEGER]
OTHERS = [key for key in BROKER_KEYS.values() if key not in TAKEN]


def written(key: BrokerKey, text: str) -> Any:
    """Return a value as a person writes it who copies it from broker.conf into YAML."""
    if key.kind is Kind.BOOLEAN:
        return text == "true"
    return int(text) if key.kind is Kind.INTEGER else text


@pytest.mark.parametrize("key", TAKEN, ids=lambda key: key.name)
def test_a_key_is_taken_under_its_name_with_rocketmqs_value(key: BrokerKey) -> None:
    """Law: a supported key accepts RocketMQ's default as RocketMQ writes it, plain numbers included."""
    found = cluster(config={key.name: written(key, key.default)})

    assert isinstance(found, Cluster)


@pytest.mark.parametrize("key", TAKEN, ids=lambda key: key.name)
def test_the_default_is_rocketmqs_or_said_to_be_ours(key: BrokerKey) -> None:
    """Law: a key's documented default (RocketMQ's, or our own if marked so) changes nothing in the replicas' settings."""
    said = cluster(config={key.name: written(key, key.ours or key.default)})

    assert broker_options(said) == broker_options(cluster())


@pytest.mark.parametrize("key", OTHERS, ids=lambda key: key.name)
def test_a_key_without_a_meaning_is_refused_with_the_reason(key: BrokerKey) -> None:
    """Law: an unsupported key is refused with its name and what to do instead, as by code 25."""
    with pytest.raises(ValidationError) as caught:
        cluster(config={key.name: written(key, key.default)})

    assert f"{key.name} is a key of RocketMQ" in str(caught.value)
    assert why_not(key.name) in str(caught.value)


@pytest.mark.parametrize("key", NUMBERS, ids=lambda key: key.name)
def test_a_number_out_of_range_is_refused(key: BrokerKey) -> None:
    """Law: a number below its range is refused, and so are zero bytes or milliseconds."""
    with pytest.raises(ValidationError):
        cluster(config={key.name: key.low - 1})


@pytest.mark.parametrize("key", NUMBERS, ids=lambda key: key.name)
@pytest.mark.parametrize("end", ["low", "high"])
def test_brokers_start_with_both_ends_of_a_range(key: BrokerKey, end: str, tmp_path: Path) -> None:
    """Law: a broker starts with both ends of each range."""
    options = broker_options(cluster(config={key.name: getattr(key, end)}))
    address = {"host": "127.0.0.1", "port": 10_911}
    own = {"group": "demo-0", "node_id": 1, "peers": {"1": address}, "address": address}
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({**options, **own, "http": address, "data_dir": "data"}))

    assert load(path).cluster == "demo"


@pytest.mark.parametrize("size", ["8193Ki", 8 * 2**20 + 1, "9M", "1Gi"])
def test_a_message_above_what_brokers_take_is_refused_with_the_range(size: str | int) -> None:
    """Law: a message size above what brokers accept is refused with the range."""
    with pytest.raises(ValidationError, match=r"maxMessageSize .* is not between 1 and 8Mi"):
        cluster(config={"maxMessageSize": size})


@pytest.mark.parametrize(
    ("config", "spec"),
    [
        ({"fileReservedTime": 24}, {"retention": {"time": "48h"}}),
        ({"flushDiskType": "SYNC_FLUSH"}, {"flushDiskType": "ASYNC_FLUSH"}),
        ({"rocketmq.broker.rebalance.lockMaxLiveTime": 60_000}, {"lock": {"leaseSeconds": 40}}),
    ],
)
def test_one_thing_is_said_in_one_place(config: dict[str, Any], spec: dict[str, Any]) -> None:
    """Law: RocketMQ's key and our own field for the same thing cannot be set together."""
    with pytest.raises(ValidationError, match="remove one of them"):
        cluster(config=config, **spec)


def test_an_unknown_key_is_still_unknown() -> None:
    """Law: a misspelt key is unknown, not taken for a key of RocketMQ."""
    with pytest.raises(ValidationError, match="fileReservedTimes"):
        Config.model_validate({"fileReservedTimes": 3})
