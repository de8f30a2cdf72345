"""Pipeline dead-letters: why messages of a group were given up, by key, and which of them were overtaken."""

from collections import Counter
from typing import Any, Final

from orderlymq.cli.session import iso
from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.jobs.deadletters.letters import dead_letters, mark_overtaken
from orderlymq_spark.options import Connect
from orderlymq_spark.run.outcome import Outcome, SparkStarter
from orderlymq_spark.specs import DeadLetterSpec

_TOP: Final = 10


def run(_name: str, spec: DeadLetterSpec, spark: SparkStarter) -> Outcome:
    """Make the report."""
    access = access_to(Connect(spec.bootstrap))
    letters = dead_letters(access, spec.group)
    if letters:
        mark_overtaken(spark(), access, spec.group, letters)
    topics = Counter(letter.topic for letter in letters)
    tries = Counter(letter.message.reconsume_times for letter in letters)
    keys = Counter(letter.message.key for letter in letters)
    times = [letter.message.store_timestamp for letter in letters]
    data: dict[str, Any] = {
        "group": spec.group,
        "deadLetters": len(letters),
        "byTopic": dict(topics),
        "byTries": {str(number): count for number, count in sorted(tries.items())},
        "byKey": [{"key": key, "count": count} for key, count in keys.most_common(_TOP)],
        "overtaken": sum(letter.overtaken is True for letter in letters),
        "originGone": sum(letter.origin is None for letter in letters),
        "firstAt": iso(min(times)) if times else None,
        "lastAt": iso(max(times)) if times else None,
        "letters": [
            {
                "place": f"{m.queue.broker_name}:{m.queue.queue_id}@{m.queue_offset}",
                "topic": letter.topic,
                "key": m.key,
                "messageId": m.message_id,
                "origin": None if letter.origin is None else [*letter.origin[0], letter.origin[1]],
                "overtaken": letter.overtaken,
                "tries": m.reconsume_times,
            }
            for letter in letters
            for m in (letter.message,)
        ],
    }
    lines = [f"{len(letters)} dead letters of {spec.group}"]
    lines += [f"  from {topic}: {count}" for topic, count in topics.most_common()]
    lines += [f"  after {number} tries: {count}" for number, count in sorted(tries.items())]
    lines += [f"  key {key}: {count}" for key, count in keys.most_common(_TOP)]
    lines.append(f"  overtaken by a later message of their key: {data['overtaken']}")
    if data["originGone"]:
        lines.append(f"  whose origin has aged out: {data['originGone']}")
    return Outcome("\n".join(lines), data)
