"""All peers by name, ours first; ``--peers`` selects from them."""

from bench.peers.kafka import Kafka, KafkaFlushed
from bench.peers.nats import Nats, NatsSynced
from bench.peers.nodes import Peer
from bench.peers.ours import (
    OrderlyMQ,
    OrderlyMQCompiled,
    OrderlyMQCompiledOnTheWire,
    OrderlyMQEncrypted,
    OrderlyMQInMemory,
    OrderlyMQOnTheWire,
)
from bench.peers.rabbitmq import RabbitMQ
from bench.peers.rocketmq import RocketMQ
from bench.peers.rocketmq5 import RocketMQ5, RocketMQ5InMemory

PEERS: dict[str, type[Peer]] = {
    each.name: each
    for each in (
        OrderlyMQ,
        OrderlyMQInMemory,
        OrderlyMQOnTheWire,
        OrderlyMQEncrypted,
        OrderlyMQCompiled,
        OrderlyMQCompiledOnTheWire,
        RocketMQ,
        RocketMQ5,
        RocketMQ5InMemory,
        NatsSynced,
        Nats,
        RabbitMQ,
        Kafka,
        KafkaFlushed,
    )
}

#: Systems that a reader may miss, and why they are missing.
ABSENT: dict[str, str] = {
    "Redpanda": (
        "its server is a binary from the vendor's own repository; Maven Central, the Go module proxy and Debian, the sources of the"
        " other systems, do not have it"
    ),
    "Pulsar": (
        "Maven Central has its jars (`pulsar-broker` 5.0.1), but three copies need three brokers, three bookies and a metadata store."
        " The result of seven Java processes, where other systems have three, would depend mainly on the machine, and one standalone process keeps"
        " only one copy"
    ),
}
