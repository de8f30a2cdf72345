"""
Messages: the bytes of stored records, batches, properties, tags, flags, ids and compressed bodies.

Not here: the commands that carry messages (frame, header, body). Begin with `record`, then `properties`.
"""
