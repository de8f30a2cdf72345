"""Cases: the same for a seed and a number, and of everything that is served."""

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import pytest

from orderlymq_protocol.body.declaration import JsonModel
from orderlymq_protocol.frame.codec import FrameDecoder, FrameError
from orderlymq_protocol.header.declaration import REQUEST_HEADERS
from tests.hostile.cases import CaseKind, Generator, _Draft
from tests.hostile.catalogue import questions, served
from tests.hostile.findings import Findings
from tests.hostile.inprocess import InProcess
from tests.hostile.shapes import FirstChoice, header_fields, models, sample


def test_a_case_follows_from_its_seed_and_number_alone() -> None:
    """Law: seed and number make the case, whatever was made before it."""
    one, other, another = Generator(5), Generator(5), Generator(6)
    numbers = [0, 300, one.systematic - 1, one.systematic, one.systematic + 999]

    backwards = [other.case(number) for number in reversed(numbers)]

    assert [one.case(number) for number in numbers] == backwards[::-1]
    assert one.case(numbers[-1]) != another.case(numbers[-1])


def test_the_first_cases_ask_for_every_code_that_is_served_and_are_answered() -> None:
    """Law: a code that broker or name server serves is reached without being named here."""
    generator = Generator(1)
    count = len(questions())
    asked = {(case.server, case.code) for case in map(generator.case, range(count))}
    # Some of a seed's requests are oneway; what is asked again is not, by another seed.
    runners = [InProcess(seed, Findings()) for seed in (1, 2, 3)]

    for runner in runners:
        list(runner.run(0, count))

    assert served() <= asked
    answered = set[tuple[object, int]]().union(*(runner.reached for runner in runners))
    assert served() <= answered


@pytest.mark.parametrize("name", sorted(models()))
def test_a_whole_body_can_be_made_of_every_declaration(name: str) -> None:
    """Law: what the sweep begins with is what the declaration reads, with every member."""
    cls: type[JsonModel] = models()[name]

    value = sample(FirstChoice(), cls)

    assert len(value) == len(dataclasses.fields(cls))  # type: ignore[arg-type]
    assert isinstance(cls.from_json_value(value), cls)


@pytest.mark.parametrize("code", sorted(REQUEST_HEADERS))
def test_every_field_of_a_declared_header_is_swept(code: int) -> None:
    """Law: a field that a table declares is among those that are spoiled."""
    declared = dataclasses.fields(REQUEST_HEADERS[code])  # type: ignore[arg-type]

    assert len(header_fields(code)) == len(declared)


def test_cases_of_every_kind_are_made_and_most_are_frames() -> None:
    """Law: what is done to a request does not make it noise: most of it is read and judged by a handler."""
    generator = Generator(3)
    kinds: dict[CaseKind, list[bool]] = {kind: [] for kind in CaseKind}

    for number in range(generator.systematic, generator.systematic + 1_500):
        case = generator.case(number)
        try:
            readable = bool(FrameDecoder().receive_data(case.frame))
        except FrameError:
            readable = False
        kinds[case.kind].append(readable)

    assert all(kinds.values())
    outcomes = [each for found in kinds.values() for each in found]
    assert sum(outcomes) > 0.9 * len(outcomes)


class Repeats(random.Random):
    """Takes the way that repeats a field, as often and as long as it can be."""

    def random(self) -> float:
        return 0.99

    def choice(self, seq: Sequence[Any]) -> Any:  # type: ignore[override]
        return seq[-1]


def test_a_field_that_is_repeated_again_and_again_stays_bounded() -> None:
    """Law: no case takes the machine's memory, whatever its seed: 2,000 times a name three times is 48 GB."""
    question = next(each for each in questions() if "topic" in each.fields)
    draft = _Draft(Repeats(), question, CaseKind.FIELD, list(models()))

    draft._spoil_fields()

    assert 1 << 20 < max(len(each) for each in draft._ext.values()) < 32 << 20
