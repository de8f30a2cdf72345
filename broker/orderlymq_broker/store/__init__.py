"""
The replica's bytes on disk: an ordered key-value store with families, over RocksDB.

A snapshot is made and taken over in `snapshot`. Not here: what a row means to a request (state). Begin with `kv` (the store as others see it), then `layout` (keys).
"""
