"""Reports of a run: a text for people, JSON for programs, and a picture."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.nemesis.cluster import TOPIC
from tests.nemesis.faults import Outcome
from tests.nemesis.figures import SECOND, Figures, figures, gaps, lags_s
from tests.nemesis.invariants.breaches import of_topic
from tests.nemesis.picture import draw
from tests.nemesis.run import Record
from tests.nemesis.schedule import Ability, Kind

# The time after its end in which a fault may still have an effect.
_AFTER_NS: Final = 5 * SECOND
_FINDINGS_SHOWN: Final = 20


def write_reports(record: Record, where: Path) -> str:
    """Write report.txt, report.json and picture.png; return the text."""
    counted = figures(of_topic(record.events, TOPIC))
    text = as_text(record, counted)
    (where / "report.txt").write_text(text)
    (where / "report.json").write_text(json.dumps(as_json(record, counted), indent=1) + "\n")
    draw(record, counted, where / "picture.png")
    return text


def as_json(record: Record, counted: Figures) -> dict[str, Any]:
    """Return the run as plain values; times are seconds since its beginning."""
    verdict = record.verdict
    return {
        "seed": record.seed,
        "replicas": record.plan.replicas,
        "ground": record.ground,
        "abilities": _names(record.plan.abilities),
        "seconds_of_faults": record.plan.seconds,
        "seconds": round((record.ended - record.began) / SECOND, 1),
        "kept": record.kept,
        "counts": verdict.counts,
        "not_judged": verdict.not_judged,
        "beside": {
            ruling.name: {"counts": ruling.counts, "never_tried": list(ruling.untried)}
            for ruling in record.rulings
        },
        "findings": [
            *({"what": text} for text in record.findings),
            *(
                {"what": f"{each.defect}: {each.explanation}", "history": each.lines()}
                for each in verdict.findings
            ),
            *(
                {
                    "what": f"{ruling.name}: {each.explanation}: {each.message}",
                    "history": each.lines(),
                }
                for ruling in record.rulings
                for each in ruling.breaches
            ),
        ],
        "drained_s": record.drained_s,
        "delivery_lag_s": {
            group: dict(zip(("median", "p99", "worst"), _spread(lags), strict=True))
            for group, lags in lags_s(of_topic(record.events, TOPIC)).items()
        },
        "stores_failed": record.watch.stores_failed,
        "faults": [_fault(record, counted, outcome) for outcome in record.outcomes],
        "leaders": [[_since(record, at), node] for at, node in record.watch.leaders()],
        "gaps": [[_since(record, gap.began), round(gap.seconds, 3)] for gap in gaps(counted.acks)],
    }


def _fault(record: Record, counted: Figures, outcome: Outcome) -> dict[str, Any]:
    until = outcome.ended + _AFTER_NS
    return {
        "kind": outcome.fault.kind,
        "target": outcome.target,
        "at": _since(record, outcome.began),
        "lasted": round((outcome.ended - outcome.began) / SECOND, 3),
        "ack_gap_s": {
            family: round(counted.longest_gap_s(family, outcome.began, until), 3)
            for family in sorted(counted.acks)
        },
        "notes": outcome.notes,
    }


def as_text(record: Record, counted: Figures) -> str:
    """Return the report for people."""
    verdict = record.verdict
    kinds = Counter(outcome.fault.kind for outcome in record.outcomes)
    lines = [
        f"nemesis, seed {record.seed}, {record.plan.replicas} replicas, {record.ground}: "
        + ("the promise was kept" if record.kept else "FOUND SOMETHING"),
        f"  {record.plan.seconds:.0f} s of faults, {(record.ended - record.began) / SECOND:.0f} s "
        f"in all; can break: {', '.join(_names(record.plan.abilities)) or 'processes only'}",
        f"  {_numbers(verdict.counts)}",
        *(f"  {ruling.name}: {_numbers(ruling.counts)}" for ruling in record.rulings),
        *(
            f"  {ruling.name}, never tried: {', '.join(ruling.untried)}"
            for ruling in record.rulings
            if ruling.untried
        ),
        "  faults: " + ", ".join(f"{number} {kind}" for kind, number in kinds.most_common()),
        f"  leaders: {sum(node is not None for _, node in record.watch.leaders())} times another "
        f"or again; stores that failed and recovered: {record.watch.stores_failed}",
        f"  drained {record.drained_s} s after the last send"
        if record.drained_s is not None
        else "  not drained",
        *(
            f"  {group}: delivered {median:.2f} s after the acknowledgement in the median, "
            f"99 % within {most:.1f} s, all within {worst:.1f} s"
            for group, lags in lags_s(of_topic(record.events, TOPIC)).items()
            for median, most, worst in [_spread(lags)]
        ),
        "",
        "  fault                          at s   lasted  longest time without an acknowledgement",
        *(_line(record, counted, outcome) for outcome in record.outcomes),
    ]
    if verdict.not_judged:
        lines.append("  not judged: " + ", ".join(verdict.not_judged))
    return "\n".join([*lines, *_findings(record), ""])


def _findings(record: Record) -> list[str]:
    """Return the lines about findings, not more than a person reads."""
    found = [f"  FINDING {text}" for text in record.findings]
    verdict = record.verdict
    for each in verdict.findings[:_FINDINGS_SHOWN]:
        found.append(f"  FINDING {each.defect} {each.message} in {each.queue}: {each.explanation}")
        found += [f"      {line}" for line in each.lines()]
    if len(verdict.findings) > _FINDINGS_SHOWN:
        found.append(f"  … and {len(verdict.findings) - _FINDINGS_SHOWN} more in report.json")
    for ruling in record.rulings:
        for breach in ruling.breaches[:_FINDINGS_SHOWN]:
            found.append(f"  FINDING {ruling.name}: {breach.explanation}: {breach.message}")
            found += [f"      {line}" for line in breach.lines()]
        if len(ruling.breaches) > _FINDINGS_SHOWN:
            found.append(f"  … and {len(ruling.breaches) - _FINDINGS_SHOWN} more in report.json")
    return found


def _numbers(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items())


def _line(record: Record, counted: Figures, outcome: Outcome) -> str:
    lasted = (outcome.ended - outcome.began) / SECOND
    until = outcome.ended + _AFTER_NS
    waits = ", ".join(
        f"{family} {counted.longest_gap_s(family, outcome.began, until):.2f} s"
        for family in sorted(counted.acks)
    )
    notes = f"; {'; '.join(outcome.notes)}" if outcome.notes else ""
    kind: Kind = outcome.fault.kind
    return (
        f"  {kind:27} {_since(record, outcome.began):8.1f} {lasted:8.1f}  {waits}  "
        f"[{outcome.target}{notes}]"
    )


def _spread(lags: list[float]) -> tuple[float, float, float]:
    """Return median, 99th percentile and maximum of sorted values."""
    if not lags:
        return 0.0, 0.0, 0.0
    last = len(lags) - 1
    return round(lags[last // 2], 3), round(lags[last * 99 // 100], 3), round(lags[-1], 3)


def _since(record: Record, at: int) -> float:
    return round((at - record.began) / SECOND, 3)


def _names(abilities: Ability) -> list[str]:
    return [each.name.lower().replace("_", " ") for each in abilities if each.name]
