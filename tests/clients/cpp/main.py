"""
Small programs that use the wheel ``rocketmq``, which contains Apache's C++ client; tests/clients starts them.

Every result is one JSON object per line on standard output.
"""

import json
import os
import stat
import sys
import threading
import time
from collections import Counter
from typing import Any

from rocketmq.client import (
    Message,
    MessageModel,
    Producer,
    PullConsumer,
    PushConsumer,
    RecvMessage,
    dll,
)
from rocketmq.exceptions import RocketMQException, ffi_check

ENDLESS = 10**9
DONE, LATER = 0, 1  # CONSUME_SUCCESS, RECONSUME_LATER
output = threading.Lock()


def event(kind: str, **values: Any) -> None:
    line = json.dumps({"event": kind, "at": time.monotonic_ns(), **values})
    with output:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def settle(client: Any, options: dict[str, str]) -> None:
    """Set the name servers and the names of a producer or a consumer."""
    client.set_namesrv_addr(options["ns"])
    if "ak" in options:
        client.set_session_credentials(options["ak"], options["sk"], "")


def written(options: dict[str, str], key: str, n: int) -> Message:
    message = Message(options["topic"])
    message.set_keys(key)
    message.set_tags(options.get("tags", "TagP"))
    message.set_property("colour", "grün")
    message.set_body(f"{key}:{n}".ljust(int(options.get("size", 0)), "."))
    if "delay" in options:
        message.set_delay_time_level(int(options["delay"]))
    return message


def send(options: dict[str, str]) -> None:
    """Send messages one after the other: sync, orderly, oneway, async or as one batch."""
    producer = Producer(options.get("group", "cpp-producers"), timeout=3000)
    settle(producer, options)
    if "instance" in options:
        dll.SetProducerInstanceName(producer._handle, options["instance"].encode())
    producer.start()
    event("started")
    count, keys = int(options.get("count", 10)), int(options.get("keys", 1))
    kind = options.get("kind", "orderly" if keys > 1 else "sync")
    waiting = threading.Semaphore(0)
    if kind == "batch":
        result = producer.send_batch([written(options, "key-0", n) for n in range(count)])
        event("ack", key="key-0", body=-1, status=result.status.name, offset=result.offset)
        count = 0
    for n in range(count):
        key = f"key-{n % keys}"
        time.sleep(int(options.get("pause", 0)) / 1000)
        event("send", key=key, body=n)
        while True:
            try:
                send_one(producer, kind, written(options, key, n), key, n, waiting)
                break
            except RocketMQException as refused:
                if options.get("retry") != "true":
                    event("failed", key=key, body=n, text=str(refused))
                    break
                time.sleep(0.1)
    if kind == "async":
        for _ in range(count):
            waiting.acquire()
    producer.shutdown()
    event("finished")


def send_one(
    producer: Producer, kind: str, message: Message, key: str, n: int, waiting: threading.Semaphore
) -> None:
    number, chosen = int(key.removeprefix("key-")), ""

    def choose(queues: int, _: object, __: object) -> int:
        nonlocal chosen
        chosen = f"clients-0:{number % queues}"
        return number % queues

    def acknowledged(result: Any) -> None:
        status, offset = result.status.name, result.offset
        event("ack", key=key, body=n, status=status, offset=offset, queue=chosen)
        waiting.release()

    def failed(error: Exception) -> None:
        event("failed", key=key, body=n, text=str(error))
        waiting.release()

    if kind == "oneway":
        producer.send_oneway(message)
    elif kind == "async":
        producer.send_async(message, acknowledged, failed)
    elif kind == "orderly":
        acknowledged(producer.send_orderly(message, number, queue_selector=choose))
    else:
        acknowledged(producer.send_sync(message))


def described(message: RecvMessage) -> dict[str, Any]:
    return {
        "body": message.body.decode().rstrip("."),
        "size": len(message.body),
        "queue": f"clients-0:{message.queue_id}",
        "offset": message.queue_offset,
        "topic": message.topic,
        "keys": (message.keys or b"").decode(),
        "tags": (message.tags or b"").decode(),
        "colour": (message["colour"] or b"").decode(),
        "reconsume": message.reconsume_times,
        "born": message.born_timestamp,
        "stored": message.store_timestamp,
    }


def tags(options: dict[str, str]) -> bytes:
    return options.get("tags", "*").encode()


def consume(options: dict[str, str]) -> None:
    """Consume until enough messages are done, the time is over, or standard input is closed."""
    model = (
        MessageModel.BROADCASTING
        if options.get("model") == "broadcasting"
        else MessageModel.CLUSTERING
    )
    consumer = PushConsumer(
        options["group"], orderly=options.get("mode") != "concurrently", message_model=model
    )
    settle(consumer, options)
    if "instance" in options:
        consumer.set_instance_name(options["instance"])
    consumer.set_thread_count(int(options.get("threads", 4)))
    tries: Counter[str] = Counter()
    remaining = [int(options.get("expected", ENDLESS))]
    over = threading.Event()

    def listener(_: object, handle: int) -> int:
        shown = described(RecvMessage(handle))
        event("deliver", **shown)
        time.sleep(int(options.get("work", 0)) / 1000)
        body = shown["body"]
        if options.get("fail", "\0") in body:
            tries[body] += 1
            if tries[body] <= int(options.get("times", ENDLESS)):
                event("fail", **shown)
                return LATER
        event("done", **shown)
        remaining[0] -= 1
        if remaining[0] == 0:
            over.set()
        return DONE

    # Not by `subscribe`, whose callback reports success for a listener that raises.
    ffi_check(dll.Subscribe(consumer._handle, options["topic"].encode(), tags(options)))
    consumer._register_callback(listener)
    consumer.start()
    event("started")

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    if stat.S_ISFIFO(os.fstat(0).st_mode):
        threading.Thread(target=wait_for_the_end, daemon=True).start()
    over.wait(float(options.get("seconds", 30)))
    consumer.shutdown()
    event("finished")


def pull(options: dict[str, str]) -> None:
    """Read every queue to its end."""
    consumer = PullConsumer(options["group"])
    settle(consumer, options)
    consumer.start()
    event("started")
    for message in consumer.pull(options["topic"], options.get("tags", "*")):
        event("pulled", **described(message))
    consumer.shutdown()
    event("finished")


if __name__ == "__main__":
    programs = {"send": send, "consume": consume, "pull": pull}
    programs[sys.argv[1]](dict(word.split("=", 1) for word in sys.argv[2:]))
