"""
The properties of many messages as Arrow columns, parsed together in one buffer.

Rule: what is found is what `orderlymq_protocol.message.properties.decode_properties` would find in each: an entry without name
or value is none, of two with one name the last counts, and bytes that are no UTF-8 become U+FFFD.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from orderlymq_protocol.message import properties as names
from orderlymq_spark.source.records import Numbers, text_slices

_ENTRY_END: Final = ord(names.PROPERTY_SEPARATOR)
_NAME_END: Final = ord(names.NAME_VALUE_SEPARATOR)


class PropertyTable:
    """All entries of all messages, and by name.

    Args:
        stored: the properties of each message, binary.
    """

    def __init__(self, stored: pa.Array) -> None:
        self._count = len(stored)
        try:
            text = stored.cast(pa.string())
        except pa.ArrowInvalid:
            decoded = [raw.decode(errors="replace") for raw in stored.to_pylist()]
            text = pa.array(decoded, pa.string())
        _, bounds, content = text.buffers()
        self._text = content or pa.py_buffer(b"")
        places = np.frombuffer(bounds, np.int32, self._count + 1, 4 * text.offset)
        self._split(places.astype(np.int64))
        self._drop_repeated()

    def _split(self, bounds: Numbers) -> None:
        """Find name and value of every entry, and whose it is."""
        first, last = int(bounds[0]), int(bounds[-1])
        letters = np.frombuffer(self._text, np.uint8)[first:last]
        closed = np.flatnonzero(letters == _ENTRY_END) + first
        # One entry more than there are separators; both lists are in order, so they fit together when sorted.
        begins = np.sort(np.concatenate((bounds[:-1], closed + 1)))
        ends = np.sort(np.concatenate((closed, bounds[1:])))
        counts = np.diff(np.searchsorted(closed, bounds)) + 1
        parents = np.repeat(np.arange(self._count), counts)
        named = np.append(np.flatnonzero(letters == _NAME_END) + first, last)
        splits = named[np.searchsorted(named, begins)]
        good = (splits > begins) & (splits + 1 < ends)
        self._parents = parents[good]
        self._splits, self._ends = splits[good], ends[good]
        found = text_slices(self._text, begins[good], self._splits, pa.string()).dictionary_encode()
        self._codes: npt.NDArray[np.int64] = found.indices.to_numpy().astype(np.int64)
        self._names: list[str] = found.dictionary.to_pylist()

    def _drop_repeated(self) -> None:
        """Of two entries with one name the last counts."""
        if not self._names:
            return
        pairs = self._parents * len(self._names) + self._codes
        # Stable: equal pairs stay in the order of the entries. No table of messages by names: each may have its own ones.
        order = np.argsort(pairs, kind="stable")
        ordered = pairs[order]
        repeated = order[:-1][ordered[1:] == ordered[:-1]]
        if len(repeated):
            kept = np.ones(len(pairs), np.bool_)
            kept[repeated] = False
            self._parents, self._codes = self._parents[kept], self._codes[kept]
            self._splits, self._ends = self._splits[kept], self._ends[kept]

    def values(self, name: str) -> pa.Array:
        """Return one property of every message; null where there is none."""
        if name not in self._names:
            return pa.nulls(self._count, pa.string())
        mine = np.flatnonzero(self._codes == self._names.index(name))
        found = text_slices(self._text, self._splits[mine] + 1, self._ends[mine], pa.string())
        if len(mine) == self._count:
            return found
        places = np.full(self._count, -1, np.int64)
        places[self._parents[mine]] = np.arange(len(mine))
        return found.take(pa.array(places, mask=places < 0))

    def maps(self) -> pa.Array:
        """Return all properties of every message."""
        sizes = np.bincount(self._parents, minlength=self._count)
        offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
        keys = pa.array(self._names, pa.string()).take(pa.array(self._codes))
        found = text_slices(self._text, self._splits + 1, self._ends, pa.string())
        return pa.MapArray.from_arrays(pa.array(offsets), keys, found)
