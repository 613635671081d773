"""The memory that all RocksDB state of a process shares, and how the databases are tuned for it.

Of the limit, a half is RocksDB's block cache, which the write buffers are charged to; a quarter is for changes that are
on their way into the databases, as Python objects (`Share`); the rest covers what RocksDB does not account for:
compactions, iterators, buffers that are being flushed. Index and filter blocks live in the cache as well, so that they
cannot grow with the state.

There is no write-ahead log: checkpoints are the durability.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rocksdict import Options, WriteOptions

_BLOCK: Final = 8 << 10
_SMALLEST_FILE, _LARGEST_FILE = 2 << 20, 32 << 20
_FILTER_BITS: Final = 10
_INFO_LOG: Final = 1 << 20


class RocksDBMissing(ImportError):
    """The package that brings RocksDB is not installed."""

    def __init__(self) -> None:
        super().__init__("RocksDB state needs the package rocksdict: pip install penstock[rocksdb], on every worker")


def check_installed() -> None:
    try:
        import rocksdict  # noqa: F401
    except ImportError as error:
        raise RocksDBMissing() from error


class SharedMemory:
    """Of all databases of this process that were opened with the same limit."""

    def __init__(self, limit: int) -> None:
        check_installed()
        from rocksdict import Cache, WriteBufferManager

        self._limit = limit
        self._cache = Cache(limit // 2)
        self._buffers = WriteBufferManager.new_write_buffer_manager_with_cache(limit // 4, False, self._cache)
        self._shares: weakref.WeakSet[Share] = weakref.WeakSet()
        self.file_size = min(max(limit // 16, _SMALLEST_FILE), _LARGEST_FILE)

    def share(self) -> Share:
        """For one more map of changes."""
        share = Share(self)
        self._shares.add(share)
        return share

    @property
    def share_bytes(self) -> int:
        return self._limit // 4 // max(1, len(self._shares))

    def options(self) -> Options:
        from rocksdict import BlockBasedIndexType, BlockBasedOptions, DataBlockIndexType, DBCompressionType, Options

        table = BlockBasedOptions()
        table.set_block_cache(self._cache)
        table.set_block_size(_BLOCK)
        table.set_bloom_filter(_FILTER_BITS, False)
        table.set_cache_index_and_filter_blocks(True)
        table.set_index_type(BlockBasedIndexType.two_level_index_search())
        table.set_partition_filters(True)
        table.set_pin_top_level_index_and_filter(True)
        table.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
        table.set_data_block_hash_ratio(0.75)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_manager(self._buffers)
        options.set_write_buffer_size(2 * self.file_size)
        options.set_target_file_size_base(self.file_size)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_max_background_jobs(2)
        options.set_max_manifest_file_size(_INFO_LOG)
        options.set_max_log_file_size(_INFO_LOG)
        options.set_keep_log_file_num(1)
        options.set_stats_dump_period_sec(0)
        return options


class Share:
    """How many changed entries one map may hold as Python objects before they must have gone to its database.

    What an entry takes is known only once some were encoded, so the bound starts low, and at most doubles each time.
    """

    _FIRST: Final = 256
    _OVERHEAD: Final = 300
    """Bytes of a Python object beside its content: the key, the place in the dict, headers."""
    _FACTOR: Final = 3
    """What content takes as Python objects, compared to encoded."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self.entries = self._FIRST

    def learn(self, entries: int, encoded_bytes: int) -> None:
        """So many entries have just been encoded to so many bytes."""
        if entries:
            each = self._OVERHEAD + self._FACTOR * encoded_bytes // entries
            self.entries = max(self._FIRST // 4, min(2 * self.entries, self._memory.share_bytes // each))


_memories: weakref.WeakValueDictionary[int, SharedMemory] = weakref.WeakValueDictionary()


def shared_memory(limit: int) -> SharedMemory:
    """The one of this process; it lives as long as anybody uses it."""
    memory = _memories.get(limit)
    if memory is None:
        memory = _memories[limit] = SharedMemory(limit)
    return memory


def without_log() -> WriteOptions:
    from rocksdict import WriteOptions

    options = WriteOptions()
    # The stubs call it a method; it is a property.
    options.disable_wal = True  # type: ignore[method-assign, assignment]
    return options
