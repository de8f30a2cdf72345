"""Parts of a text as Arrow values, without an object for each."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.int64]


def text_slices(
    content: bytes | pa.Buffer, starts: Numbers, ends: Numbers, kind: pa.DataType
) -> pa.Array:
    """Return parts of a text as values of *kind*, which is binary or string; its bytes are not checked.

    Args:
        content: less than 2 GiB.
        starts: of the parts, which follow each other and do not overlap.
        ends: of the parts.
        kind: of the values.
    """
    count = len(starts)
    if not count:
        return pa.array([], kind)
    # The parts and what lies between them are one array over the text as it is; every other value is taken.
    places = np.empty(2 * count, np.int32)
    places[0::2], places[1::2] = starts, ends
    buffers = [None, pa.py_buffer(places), pa.py_buffer(content)]
    both = pa.Array.from_buffers(kind, 2 * count - 1, buffers)
    return both.take(pa.array(np.arange(0, 2 * count, 2)))
