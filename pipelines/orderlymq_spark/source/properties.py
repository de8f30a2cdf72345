"""
Parses the properties of many messages together in one buffer, as Arrow columns.

Rule: the result equals that of `orderlymq_protocol.message.properties.decode_properties` for each message. An entry
without a name or value is ignored, the last of two entries with one name counts, and invalid UTF-8 becomes U+FFFD.
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
    """The property entries of all messages, with access by name.

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
        """Find the name, the value and the message of every entry."""
        first, last = int(bounds[0]), int(bounds[-1])
        letters = np.frombuffer(self._text, np.uint8)[first:last]
        closed = np.flatnonzero(letters == _ENTRY_END) + first
        # Each message has one entry more than separators. Both lists are ordered, so begins and ends match when sorted.
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
        """Keep only the last of several entries with one name."""
        if not self._names:
            return
        pairs = self._parents * len(self._names) + self._codes
        # A stable sort keeps equal pairs in entry order. A table of messages by
        # names could be huge: each message may have other names.
        order = np.argsort(pairs, kind="stable")
        ordered = pairs[order]
        repeated = order[:-1][ordered[1:] == ordered[:-1]]
        if len(repeated):
            kept = np.ones(len(pairs), np.bool_)
            kept[repeated] = False
            self._parents, self._codes = self._parents[kept], self._codes[kept]
            self._splits, self._ends = self._splits[kept], self._ends[kept]

    def values(self, name: str) -> pa.Array:
        """Return one property of every message; null if a message lacks it."""
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
