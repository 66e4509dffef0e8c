"""Numbers of stage D that follow from other saved ones, each computed again (source document of ISS, 10)."""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from math import log

from sparse_control.records.jacobian_iss import IssRecords
from sparse_control.records.jacobian_iss.freeze import MEAN_OF_SEEDS, FreezeManifest
from sparse_control.records.jacobian_iss.results import FactLayer, IssSummary, LayerSummary, SeedScore
from sparse_control.records.paths import ISS_FILES
from sparse_control.verify.finding import Finding, differ, same

EPSILON = 1e-8  # of the formula; stated in iss/score.py as well, of which this is the independent check
SLACK = 0.01  # share of a sweep's range by which a curve may bend more than its neighbours show
FACT_LAYERS, FACTS, SUMMARY = (ISS_FILES[field] for field in ("fact_layers", "facts", "summary"))


def broken_identities(iss: IssRecords) -> Iterator[Finding]:
    """Every number that is not what the numbers it follows from give; a file that is not there is passed over."""
    yield from _scores(iss)
    yield from _same_facts(iss)
    if iss.summary:
        yield from _sweep(iss.summary)
        yield from _accuracy(iss)


# --- rows -----------------------------------------------------------------------------------------------------------


def stability(s_plus: float, s_minus: float) -> float:
    """`ISS = (S+ - S-) / (1 - S- + eps)` (10.5)."""
    return (s_plus - s_minus) / (1 - s_minus + EPSILON)


def _scores(iss: IssRecords) -> Iterator[Finding]:
    """ISS of every row from its S+ and S-; one finding a layer and metric, which says how many rows are wrong."""
    wrong: dict[tuple[int, str], list[str]] = {}
    for number, row in enumerate(iss.fact_layers, start=1):
        for detail in _score(row, iss.freeze):
            wrong.setdefault((row.layer, row.metric), []).append(f"line {number}: {row.fact}: {detail}")
    for (layer, metric), details in wrong.items():
        yield FACT_LAYERS, f"{metric} at layer {layer}: {details[0]}{_more(details)}"


def _score(row: FactLayer, freeze: FreezeManifest | None) -> Iterator[str]:
    """What is wrong with one row.

    Where the mean over sketch seeds is reported, S+, S- and ISS are means of one another's seeds, and ISS of the means
    is another number. A row that keeps its seeds is checked seed by seed; one without them up to the deviation that
    the freeze allows of the seeds.
    """
    if row.iss is None:
        return
    for name in ("s_plus", "s_minus"):
        value = getattr(row, name)
        if value is None or not -1 - 1e-9 <= value <= 1 + 1e-9:  # means of cosines
            yield f"{name}: {value} is no mean of cosines"
            return
    if row.seeds is not None:
        yield from _of_seeds(row, row.seeds, freeze)
        return
    expected = stability(row.s_plus, row.s_minus)
    frozen = freeze.layers.get(str(row.layer)) if freeze else None
    averaged = row.metric == "ISS" and frozen is not None and frozen.reporting == MEAN_OF_SEEDS
    allowed = freeze.settings.validation.iss_seed_deviation if averaged else 0.0
    if not same(row.iss, expected) and abs(row.iss - expected) > allowed:
        yield f"iss: {row.iss}, but its s_plus and s_minus give {expected}"


def _of_seeds(row: FactLayer, seeds: Sequence[SeedScore], freeze: FreezeManifest | None) -> Iterator[str]:
    frozen = freeze.layers.get(str(row.layer)) if freeze else None
    if frozen is not None and [one.seed for one in seeds] != frozen.seeds:
        yield f"seeds: {[one.seed for one in seeds]}, but {ISS_FILES['freeze']} reports {frozen.seeds}"
    for one in seeds:
        if not same(one.iss, expected := stability(one.s_plus, one.s_minus)):
            yield f"seed {one.seed}: iss: {one.iss}, but its s_plus and s_minus give {expected}"
    for name in ("s_plus", "s_minus", "iss"):
        mean = statistics.fmean(getattr(one, name) for one in seeds)
        if not same(getattr(row, name), mean):
            yield f"{name}: {getattr(row, name)}, but its seeds give {mean}"


def _same_facts(iss: IssRecords) -> Iterator[Finding]:
    """Every layer and metric, and the means over layers, have the same facts under the same relations."""
    found: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for row in iss.fact_layers:
        found.setdefault((FACT_LAYERS, f"{row.metric} at layer {row.layer}"), set()).add((row.fact, row.relation))
    for row in iss.facts:
        found.setdefault((FACTS, row.metric), set()).add((row.fact, row.relation))
    for (file, what), facts in found.items():
        (_, first), expected = next(iter(found.items()))
        if odd := sorted(facts ^ expected):
            yield file, f"{what}: fact: {odd[0][0]} of {odd[0][1]} is not in both of it and {first}{_more(odd)}"


def _more(findings: Sequence[object]) -> str:
    return f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""


# --- sweep ----------------------------------------------------------------------------------------------------------


def _sweep(summary: IssSummary) -> Iterator[Finding]:
    """Every layer has every swept regularisation once; what is measured at the frozen one lies on the swept curve."""
    counts = Counter((row.layer, row.lam_rel) for row in summary.sweep)
    expected = {(layer, lam_rel) for layer in summary.window for _, lam_rel in counts}
    if set(counts) != expected or max(counts.values(), default=1) > 1:
        yield SUMMARY, f"sweep: layer, lam_rel: {len(summary.sweep)} rows, but window and values make {len(expected)}"
        return
    validated = set(summary.validated_layers)
    for row in summary.sweep:
        if (row.iss is None) is (row.layer in validated):
            yield SUMMARY, f"sweep: layer {row.layer}, lam_rel {row.lam_rel:g}: iss: {row.iss}"
    for row in summary.per_layer:
        for field, lam_field, swept_field in (
            ("iss", "lam_rel_iss", "iss"),
            ("raw_iss", "lam_rel_raw", "raw_iss"),
            ("raw_iss_matched_lam", "lam_rel_iss", "raw_iss"),
        ):
            curve = _curve(summary, row, swept_field)
            yield from _on_curve(row, field, getattr(row, lam_field), curve)


def _curve(summary: IssSummary, row: LayerSummary, field: str) -> list[tuple[float, float]]:
    points = ((one.lam_rel, getattr(one, field)) for one in summary.sweep if one.layer == row.layer)
    return sorted((lam_rel, value) for lam_rel, value in points if value is not None and lam_rel > 0)


def _on_curve(
    row: LayerSummary, field: str, lam_rel: float | None, curve: Sequence[tuple[float, float]]
) -> Iterator[Finding]:
    value, what = getattr(row, field), f"per_layer: layer {row.layer}: {field}"
    if value is None or lam_rel is None:
        return
    if (swept := dict(curve).get(lam_rel)) is not None:
        yield from differ(SUMMARY, what, value, swept, f"the sweep at lam_rel {lam_rel:g} has")
    elif (bounds := between_neighbours(lam_rel, curve)) and not bounds[0] <= value <= bounds[1]:
        detail = f"{value}, but the sweep around lam_rel {lam_rel:g} gives {bounds[0]:.6g} to {bounds[1]:.6g}"
        yield SUMMARY, f"{what}: {detail}"


def between_neighbours(lam_rel: float, curve: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """The least and the largest value a measurement at `lam_rel` can have, by the swept ones around it.

    ISS is a smooth curve of log lam_rel, but not a monotone one: it may rise, fall, or turn between two swept values.
    It lies between the two neighbours, or beyond them by no more than the lines through the two swept values on
    either side go: where the curve bends one way only from the second neighbour on the left to the second on the
    right, that is exact. A hundredth of the range of the sweep is allowed on top, for a curve that bends both ways.

    Args:
        lam_rel: above 0 and none of those of the curve.
        curve: swept (lam_rel, value), the former ascending and above 0.

    Returns:
        None where `lam_rel` has no neighbour on both sides, or no second one on either.
    """
    left = [(log(at), value) for at, value in curve if at < lam_rel]
    right = [(log(at), value) for at, value in curve if at > lam_rel]
    if not left or not right or len(left) + len(right) < 3:
        return None
    lines = [_line(log(lam_rel), *points) for points in (left[-2:], right[:2]) if len(points) == 2]
    edges = left[-1][1], right[0][1]
    values = [value for _, value in curve]
    slack = SLACK * (max(values) - min(values))
    return min(*edges, max(lines)) - slack, max(*edges, min(lines)) + slack


def _line(x: float, first: tuple[float, float], second: tuple[float, float]) -> float:
    (x0, y0), (x1, y1) = first, second
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


# --- answers --------------------------------------------------------------------------------------------------------


def _accuracy(iss: IssRecords) -> Iterator[Finding]:
    """The overall share is the mean of the shares: every fact has as many prompts, and as many in every family."""
    accuracy = iss.summary.answer_accuracy
    facts = Counter(row.relation for row in iss.facts if row.metric == "Raw-ISS")
    if not facts:
        return
    if set(accuracy.per_relation) != set(facts):
        odd = sorted(set(accuracy.per_relation) ^ set(facts))
        yield SUMMARY, f"answer_accuracy: per_relation: {odd[0]} is not in both of it and {FACTS}{_more(odd)}"
        return
    weighted = sum(facts[relation] * share for relation, share in accuracy.per_relation.items())
    for field, expected in (
        ("per_relation", weighted / facts.total()),
        ("per_family", statistics.fmean(accuracy.per_family.values())),
    ):
        yield from differ(SUMMARY, "answer_accuracy: overall", accuracy.overall, expected, f"{field} gives")
