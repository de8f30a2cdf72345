"""Encode stored messages for tests; brokers write a record from its parts instead."""

from orderlymq_protocol.message.record import (
    RecordTemplate,
    StoredMessage,
    encode_with_positions,
    pack_host,
)


def encode_record(message: StoredMessage) -> bytes:
    """Return the record of *message* with the message's own checksum, even if that is wrong."""
    template = RecordTemplate(
        topic=message.topic.encode(),
        queue_id=message.queue_id,
        body=message.body,
        properties=message.properties,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=pack_host(*message.born_host),
        store_timestamp=message.store_timestamp,
        store_host=pack_host(*message.store_host),
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
        checksum=message.body_crc,
    )
    return encode_with_positions(template, message.queue_offset, message.physical_offset)
