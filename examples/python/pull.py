"""Pull every queue of a topic to its end, keeping the offsets in the program."""

from orderlymq import PullStatus
from orderlymq.blocking import PullConsumer

with PullConsumer("reader") as consumer:
    for queue in consumer.fetch_queues("orders"):
        offset = 0
        while True:
            result = consumer.pull(queue, None, offset)
            for message in result.messages:
                print(queue.queue_id, message.queue_offset, message.text)
            offset = result.next_offset
            if result.status is PullStatus.NO_NEW_MSG:
                break
