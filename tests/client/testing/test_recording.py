"""What the recording leaves open is no finding."""

from orderlymq import TransactionState, blocking
from orderlymq_testing.cluster import Cluster
from orderlymq_testing.plugin import orderlymq_cluster

__all__ = ["orderlymq_cluster"]


def test_messages_whose_send_was_not_seen_break_no_promise(orderlymq_cluster: Cluster) -> None:
    """Those of other processes, one-way sends and transactions."""
    orderlymq_cluster.create_topic("orders", queues=1)
    with blocking.TransactionProducer("shop", check=lambda _: TransactionState.COMMIT) as producer:
        producer.send("orders", "seen", key="k")
        producer.send_oneway("orders", "one way", key="k")
        producer.send_in_transaction(
            "orders", "transaction", key="k", execute=lambda _: TransactionState.COMMIT
        )
    texts = []
    with blocking.Consumer(
        "billing", topics="orders", ordered=True, consume_from="first"
    ) as consumer:
        for message in consumer:
            texts.append(message.text)
            if len(texts) == 3:
                break

    assert sorted(texts) == ["one way", "seen", "transaction"]
    assert orderlymq_cluster.verdict().kept
