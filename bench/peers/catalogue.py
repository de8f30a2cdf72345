"""All peers by name, ours first: what ``--peers`` chooses from."""

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
        NatsSynced,
        Nats,
        RabbitMQ,
        Kafka,
        KafkaFlushed,
    )
}
