"""Stream a log file: its lines in order, one key per file, many lines per send, and a reader that follows."""

import tempfile
from pathlib import Path

from orderlymq import Message
from orderlymq.blocking import LitePullConsumer, Producer

file = Path(tempfile.mkdtemp()) / "web.log"
file.write_text("".join(f"GET /orders/{number} 200\n" for number in range(1, 101)))

with Producer("log-shipper") as producer:
    lines = [
        Message(topic="logs", body=line.encode(), tags="web")
        for line in file.read_text().splitlines()
    ]
    for start in range(0, len(lines), 40):
        producer.send_batch(lines[start : start + 40], key=file.name)

reader = LitePullConsumer("log-readers", consume_from="first")
reader.subscribe("logs", "web")
with reader:
    seen = []
    while len(seen) < 100:
        seen += [message.text for message in reader.poll(1)]
    reader.commit()  # the messages of the last poll are done, too
print(f"{len(seen)} lines, first {seen[0]!r}, last {seen[-1]!r}")
