"""Book an item and announce it, both or neither: consumers see the message when the booking is committed."""

import sqlite3
import tempfile
from pathlib import Path

from orderlymq import TransactionState
from orderlymq.blocking import LitePullConsumer, TransactionProducer

FILE = Path(tempfile.mkdtemp()) / "bookings.db"
with sqlite3.connect(FILE) as database:
    database.execute("CREATE TABLE bookings (message TEXT PRIMARY KEY, item TEXT NOT NULL)")


def book(message):
    """Do the local transaction; record its outcome for `was_booked`."""
    item = message.body.decode()
    if item == "ghost":
        return TransactionState.ROLLBACK
    with sqlite3.connect(FILE) as database:
        database.execute("INSERT INTO bookings VALUES (?, ?)", (message.unique_key, item))
    return TransactionState.COMMIT


def was_booked(message):
    """Answer a broker that did not get the outcome; it may ask any process of the producer group."""
    with sqlite3.connect(FILE) as database:
        query = "SELECT 1 FROM bookings WHERE message = ?"
        found = database.execute(query, (message.message_id,)).fetchone()
    return TransactionState.COMMIT if found else TransactionState.ROLLBACK


with TransactionProducer("bookings", check=was_booked) as producer:
    for item in ("chair", "ghost", "table"):
        result = producer.send_in_transaction("booked", item, key="shop-1", execute=book)
        print(f"{item}: {result.state.name}")

consumer = LitePullConsumer("shipping", consume_from="first")
consumer.subscribe("booked")
with consumer:
    seen = []
    while len(seen) < 2:
        seen += [message.text for message in consumer.poll(1)]
    consumer.commit()  # the messages of the last poll are done, too
    print("announced:", ", ".join(seen))
