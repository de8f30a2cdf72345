"""
The replica's data on disk: an ordered key-value store with families, over RocksDB.

`snapshot` makes and installs snapshots. The meaning of a row for a request is in `state`. Begin with `kv`
(the store's interface), then `layout` (keys).
"""
