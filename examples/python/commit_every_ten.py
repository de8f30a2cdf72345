"""Commit ten messages at a time: after a crash, uncommitted messages come again."""

from orderlymq import OrderedResult
from orderlymq.blocking import Consumer

pending = {}


def listener(messages, context):
    context.auto_commit = False
    rows = pending.setdefault(context.queue, [])
    rows.extend(message.text for message in messages)
    if len(rows) < 10:
        return None  # continues without a commit
    print("stored", rows, flush=True)
    rows.clear()
    return OrderedResult.COMMIT


Consumer("ledger", topics="orders", ordered=True, consume_from="first", listener=listener).run()
