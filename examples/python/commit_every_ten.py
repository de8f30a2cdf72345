"""Commit ten messages at a time: what was not committed comes again after a crash."""

from orderlymq import OrderedResult
from orderlymq.blocking import Consumer

pending = {}


def listener(messages, context):
    context.auto_commit = False
    rows = pending.setdefault(context.queue, [])
    rows.extend(message.text for message in messages)
    if len(rows) < 10:
        return None  # goes on, without committing
    print("stored", rows, flush=True)
    rows.clear()
    return OrderedResult.COMMIT


Consumer("ledger", topics="orders", ordered=True, consume_from="first", listener=listener).run()
