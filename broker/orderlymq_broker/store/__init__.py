"""Where bytes rest: an ordered key-value store with families, over RocksDB or in memory."""
