"""How requests are written: most as fast as they are read, some a few bytes at a time, and not to their end."""

import socket

from tests.hostile.lines import SLOW_BYTES_MAX, Line, exchange, paced

_FRAME = bytes(range(256)) * 40


def test_one_stream_in_a_hundred_is_slow_and_some_of_these_have_no_end() -> None:
    """Law: half frames and slow frames are sent to processes, too; seed and number make them."""
    found = [paced(1, number, _FRAME) for number in range(20_000)]

    slow = [(pace, said) for pace, said in found if pace]
    assert 100 < len(slow) < 300
    assert {pace for pace, _ in slow} == set(range(1, 8))
    assert all(_FRAME.startswith(said) and len(said) <= SLOW_BYTES_MAX for _, said in slow)
    assert all(said == _FRAME for pace, said in found if not pace)
    short = [paced(1, number, b"four")[1] for number in range(20_000)]
    assert {len(said) for said in short} == {0, 1, 2, 3, 4}
    assert found[:100] == [paced(1, number, _FRAME) for number in range(100)]


def test_a_slow_line_writes_a_few_bytes_in_each_turn() -> None:
    """Law: a turn sends no more than the pace of its line."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = Line(server.getsockname()[1], pace=3)
        accepted, _ = server.accept()
        line.out += b"0123456789"
        sizes = []
        while line.out:
            before = len(line.out)
            line.write()
            sizes.append(before - len(line.out))
        list(exchange([line], 1.0))
        with accepted:
            assert accepted.recv(100) == b"0123456789"
        line.close()

    assert sizes == [3, 3, 3, 1]
