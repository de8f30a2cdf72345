"""
The RocksDB options of each column family, and the reasons for them.

The rule: memory and write-ahead log are limited under any load, and message bodies are never rewritten after
their flush. The figures behind the choices come from ``bench/layers/store.py``.
"""

from typing import Final

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
)

from orderlymq_broker.settings import StorageSettings
from orderlymq_broker.store.kv import Family

# All memtables of a replica together. Under load, one flush writes at least half of it. That is large enough that
# bodies are flushed in runs of several seconds at 10 MiB/s, and small enough for a dozen replicas on a laptop.
MEMTABLES_SIZE_MAX: Final = 64 << 20
BODY_MEMTABLE_SIZE: Final = 32 << 20
MEMTABLE_SIZE: Final = 8 << 20

# The log that must be replayed after a crash takes half a second to read, and takes disk space in addition to the
# flushed files. Families that are seldom written keep it until it has this size.
WAL_SIZE_MAX: Final = 64 << 20

LEVEL_ZERO_FILES_SLOW: Final = 100
LEVEL_ZERO_FILES_STOP: Final = 200

# Large enough for a pull of 32 messages, whose neighbours belong to other queues, to need two or three reads and
# to leave the blocks for those queues in the cache. Heads and properties, which are much alike, also compress.
# Small enough for a look-up of a single message.
BODY_BLOCK_SIZE: Final = 16 << 10

# Files that stay open; a replica must live with the usual limit of 1024 per process.
OPEN_FILES_MAX: Final = 256

_NAMES: Final = {
    # RocksDB requires a family called "default"; every ticket writes META.
    Family.META: "default",
    Family.RAFT_LOG: "raft_log",
    Family.MESSAGES: "messages",
    Family.CONSUME_QUEUE: "consume_queue",
    Family.KEY_INDEX: "key_index",
    Family.DEDUP: "dedup",
    Family.TABLES: "tables",
}


def column_name(family: Family) -> str:
    """Return the name of *family* inside RocksDB; it is part of the format."""
    return _NAMES[family]


def database_options(*, create: bool) -> Options:
    """Return the options of the whole database."""
    options = Options(raw_mode=True)
    options.create_if_missing(create)
    options.create_missing_column_families(create)
    options.set_db_write_buffer_size(MEMTABLES_SIZE_MAX)
    options.set_max_total_wal_size(WAL_SIZE_MAX)
    options.set_max_open_files(OPEN_FILES_MAX)
    options.set_max_background_jobs(2)
    # Only the end of the log may be torn, by a write that was not acknowledged. Earlier damage must stop the
    # start instead of dropping acknowledged writes.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_paranoid_checks(True)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_bytes_per_sync(1 << 20)

    return options


def family_options(settings: StorageSettings, *, create: bool) -> dict[str, Options]:
    """Return the options of every column family by its name; all families share one block cache."""
    cache = Cache(settings.block_cache_size)

    return {column_name(family): _options(family, cache, create=create) for family in Family}


def _options(family: Family, cache: Cache, *, create: bool) -> Options:
    options = database_options(create=create)
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    # Keep index and filter blocks inside the cache: otherwise they grow with the data, without limit.
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_format_version(5)
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_write_buffer_size(MEMTABLE_SIZE)
    # A writer is refused, not slowed down, when compaction lags (see `RocksStore.commit`). So the limits are
    # high: reads of the oldest entries get slower long before writes stop.
    options.set_level_zero_slowdown_writes_trigger(LEVEL_ZERO_FILES_SLOW)
    options.set_level_zero_stop_writes_trigger(LEVEL_ZERO_FILES_STOP)
    options.set_soft_pending_compaction_bytes_limit(0)
    options.set_arena_block_size(256 << 10)
    options.set_compression_type(DBCompressionType.lz4())
    # No bloom filters: the requested keys exist, except in look-ups by message key, which are range scans.
    if family is Family.MESSAGES:
        options.set_write_buffer_size(BODY_MEMTABLE_SIZE)
        # Bodies keep arriving while full memtables are written.
        options.set_max_write_buffer_number(4)
        # Physical offsets only grow, so flushed files never overlap and compaction moves them down unchanged.
        table.set_block_size(BODY_BLOCK_SIZE)
    options.set_block_based_table_factory(table)

    return options
