"""The bytes that a proposal counts, how long they count, and the bytes of an entry."""

import re
from collections import deque

import pytest

from orderlymq_broker.core.effects import Propose
from orderlymq_broker.core.entrybuilder import ENTRY_SIZE_USUAL, PROPOSAL_SIZE_MAX, next_group
from orderlymq_broker.core.messagedraft import APPEND_SIZE
from orderlymq_broker.state.records import DelayProgress, MemberLeft, Record, encode_records
from tests.broker.core.test_entrybuilder import ORDERS, message
from tests.broker.processors.driver import Shell
from tests.broker.processors.requests import create


def test_a_proposal_without_messages_counts_what_it_takes(shell: Shell) -> None:
    """Law: without messages, a proposal counts its encoded records; with messages, the stored messages and their records."""
    create(shell, ORDERS)
    entries = shell.core.context.entries
    records: list[Record] = [DelayProgress(1, 0, 2), MemberLeft("g", "c")]
    plain = Propose([*records])
    draft = message(shell.state.topics.by_name["orders"])
    sent = Propose([draft])

    assert (entries.admit(plain), entries.admit(sent)) == (None, None)

    assert plain.size == len(encode_records(records))
    assert sent.size == len(draft.stored) + APPEND_SIZE


def test_bytes_count_until_the_fate_of_their_proposal_is_known(shell: Shell) -> None:
    """Law: a proposal's bytes count until it is committed or lost; those of an earlier leadership no longer count,
    even if they end later.
    """
    create(shell, ORDERS)
    entries = shell.core.context.entries
    assert entries.uncommitted == 0
    proposals = []
    for body in (b"x", b"y" * 100, b"z"):
        draft = message(shell.state.topics.by_name["orders"], body=body)
        proposals.append(Propose([draft, DelayProgress(1, 0, 2)]))
        assert entries.admit(proposals[-1]) is None
    sizes = [each.size for each in proposals]
    counted = [entries.uncommitted]

    entries.settle(proposals[:1])
    counted.append(entries.uncommitted)
    entries.reset(7)
    entries.settle(proposals[1:2])
    counted.append(entries.uncommitted)
    assert entries.admit(proposals[0]) is None
    counted.append(entries.uncommitted)

    assert counted == [sum(sizes), sum(sizes[1:]), 0, sizes[0]]
    assert sizes[1] - sizes[0] == 99
    assert entries.physical_next == 7


def test_all_texts_of_a_record_count(shell: Shell) -> None:
    """Law: the unique key and the identity of a send count too, because they are in the message's record."""
    create(shell, ORDERS)
    sizes = []
    for unique_key, identity, keys in (("", b"", ""), ("abc", b"", ""), ("", b"12345", "kk")):
        properties = f"KEYS\x01{keys}\x02"
        draft = message(shell.state.topics.by_name["orders"], properties=properties)
        draft.unique_key, draft.identity = unique_key, identity
        proposal = Propose([(draft)])
        assert shell.core.context.entries.admit(proposal) is None
        sizes.append(proposal.size)

    assert [size - sizes[0] for size in sizes] == [0, 3, 5 + 2 * 2]


@pytest.mark.parametrize("over", [0, 1])
def test_a_proposal_may_be_as_large_as_the_limit(shell: Shell, over: int) -> None:
    """Law: a proposal may have exactly the limit's size, and not a byte more."""
    create(shell, ORDERS)
    entries = shell.core.context.entries
    orders = shell.state.topics.by_name["orders"]
    probe = Propose([(message(orders, body=b""))])
    assert entries.admit(probe) is None
    body = bytes(PROPOSAL_SIZE_MAX - probe.size + over)

    refusal = entries.admit(Propose([(message(orders, body=body))]))

    assert (refusal is not None) == bool(over)


def test_what_follows_a_message_at_the_limit_counts_too(shell: Shell) -> None:
    """Law: if the first message takes the whole limit, a second one is refused."""
    create(shell, ORDERS)
    entries = shell.core.context.entries
    orders = shell.state.topics.by_name["orders"]
    probe = Propose([message(orders, body=b"")])
    assert entries.admit(probe) is None
    whole = message(orders, body=bytes(PROPOSAL_SIZE_MAX - probe.size))

    assert entries.admit(Propose([whole, message(orders)])) is not None
    assert entries.admit(Propose([whole])) is None


def test_a_batch_above_the_limit_is_not_laid_out_to_its_end(shell: Shell) -> None:
    """Law: laying out a batch stops at the limit, so that the refusal costs no more however large the batch is."""
    create(shell, ORDERS)
    orders = shell.state.topics.by_name["orders"]
    drafts = [message(orders, body=bytes(1 << 20)) for _ in range(20)]

    refusal = shell.core.context.entries.admit(Propose([*drafts]))

    assert refusal is not None
    said = int(re.findall(r"[0-9]+", refusal.remark)[0])
    assert PROPOSAL_SIZE_MAX < said <= PROPOSAL_SIZE_MAX + (2 << 20)
    assert [hasattr(draft, "stored") for draft in drafts] == [True] * 16 + [False] * 4


def test_an_entry_takes_proposals_up_to_its_usual_size() -> None:
    """Law: proposals share an entry up to exactly its usual size; one byte more goes into the next."""
    for sizes, taken in (
        ([ENTRY_SIZE_USUAL - 1, 1, 1], 2),
        ([ENTRY_SIZE_USUAL, 1], 1),
        ([ENTRY_SIZE_USUAL + 1, 1], 1),
        ([1, ENTRY_SIZE_USUAL], 1),
        ([0, 0, 0], 3),
    ):
        assert len(next_group(deque(Propose([], size=size) for size in sizes))) == taken
