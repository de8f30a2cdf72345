"""A queue read from one offset to another."""

from orderlymq.connection.instance import ClientInstance
from orderlymq.consumer.group.queuereader import QueueReader
from orderlymq_protocol.body.messagequeue import MessageQueue
from tests.client.fakecluster import BROKER, running


async def test_a_part_of_a_queue_is_read_by_as_many_pulls_as_it_takes() -> None:
    """Law: a range is read by several pulls, without messages behind its end and without doubles;
    trimmed ones are skipped.
    """
    async with running() as cluster:
        for number in range(90):
            cluster.append("T", 0, b"%d" % number)
        cluster.trimmed["T", 0] = 7
        instance = ClientInstance(cluster.address)
        await instance.start()
        reader = QueueReader(instance, "G")
        read = reader.messages(MessageQueue("T", BROKER, 0), 5, 75)
        offsets = [message.queue_offset async for message in read]
        await instance.close()

    assert offsets == list(range(7, 75))
