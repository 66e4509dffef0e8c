"""The nulls beside the official measurement: what of ISS - Raw-ISS is left without word order or training."""

from collections.abc import Iterator, Sequence

from sparse_control.records.paths import NULL_NAMES, Null
from sparse_control.records.read import ModelRecords
from sparse_control.tables.columns import Column, Row, decimal, signed
from sparse_control.tables.official import MATCHED, OWN, SWEPT, mean_pair, pairs_at, swept
from sparse_control.tables.table import Table

TAKEN_AWAY: dict[Null, str] = {  # as captions say it
    "shuffled_tokens": "Jacobians over windows of shuffled tokens",
    "redrawn_weights": "every weight matrix of the model redrawn",
}
NAMES = ("official", *NULL_NAMES)
COMMON, EACH = "validated in all", "validated in each"


def _nulls(model: ModelRecords) -> Iterator[Row]:
    """ISS, Raw-ISS and their difference, officially and in every null, at each regularisation.

    A null is another freeze, so that other layers may be validated; the first rows are of the layers that are
    validated everywhere, the next of each one's own validated layers, the last of single layers.
    """
    found = {"official": model.iss.summary}
    found |= {name: model.nulls[name].summary for name in NULL_NAMES if name in model.nulls}
    summaries = {name: summary for name, summary in found.items() if summary is not None}
    if "official" not in summaries or len(summaries) == 1:
        return
    common = sorted(set.intersection(*(set(summary.validated_layers) for summary in summaries.values())))
    shared = sorted(set.intersection(*(set(summary.window) for summary in summaries.values())))
    layers: dict[str, dict[str, Sequence[int]]] = {
        COMMON: dict.fromkeys(summaries, common),
        EACH: {name: summary.validated_layers for name, summary in summaries.items()},
        **{str(layer): dict.fromkeys(summaries, [layer]) for layer in shared},
    }
    values = sorted(set.intersection(*map(swept, summaries.values())))
    for where, chosen in layers.items():
        for lam, lam_rel in ((OWN, None), (MATCHED, None), *((SWEPT, value) for value in values)):
            row: Row = {"layers": where, "lam": lam, "lam_rel": lam_rel}
            for name, summary in summaries.items():
                means = mean_pair(pairs_at(summary, lam, lam_rel), chosen[name], summary.validated_layers)
                row |= {f"{name}_{key}": value for key, value in means.items()}
                row[f"{name}_layers"] = " ".join(map(str, chosen[name])) or None
            yield row


def _regularisation(row: Row) -> str:
    return {OWN: "own", MATCHED: "of ISS"}.get(row["lam"]) or f"{row['lam_rel']:g}"


def _layers(row: Row) -> str:
    """The layers of the mean, where they are the same in all."""
    layers = {row[f"{name}_layers"] for name in NAMES} - {None}
    same = len(layers) == 1 and row["layers"] in (COMMON, EACH)
    return f"{row['layers']}: {layers.pop()}" if same else row["layers"]


def _aggregates(rows: list[Row]) -> list[Row]:
    """Means over layers at every regularisation, single layers at that of ISS."""
    return [row for row in rows if row["layers"] in (COMMON, EACH) or row["lam"] == MATCHED]


def _of(name: str) -> tuple[Column, ...]:
    short = name.partition("_")[0]
    return (
        decimal(f"{name}_iss", f"{short}\nISS"),
        decimal(f"{name}_raw_iss", f"{short}\nRaw"),
        signed(f"{name}_difference", f"{short}\nΔ"),
    )


NULLS_BESIDE_OFFICIAL = Table(
    name="nulls",
    title="What the nulls leave of ISS − Raw-ISS",
    caption=(
        "ISS, Raw-ISS and their difference (Δ) officially, with Jacobians of a corpus whose tokens are shuffled, "
        "and in a model whose weight matrices are redrawn; with each metric's own regularisation, with that of "
        "ISS for both, and over the sweep. Every null climbs the ladder and is frozen by itself, so the layers "
        "that are validated may differ; nulls.csv has single layers at every regularisation."
    ),
    section="Jacobian-Transported ISS, 11",
    group="iss",
    reads=("summary", "nulls.summary"),
    rows=_nulls,
    fields=(
        *("layers", "lam", "lam_rel"),
        *(f"{name}_{value}" for name in NAMES for value in ("iss", "raw_iss", "difference")),
        *(f"{name}_layers" for name in NAMES),
    ),
    columns=(
        Column("Layers", _layers, "l"),
        Column("λ rel", _regularisation),
        *(column for name in NAMES for column in _of(name)),
    ),
    printed=_aggregates,
)

TABLES = (NULLS_BESIDE_OFFICIAL,)
