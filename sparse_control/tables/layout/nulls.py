"""How the nulls and the medium model are shown beside the official measurement."""

from sparse_control.tables.layout.columns import EMPTY, Column, Layout, Row, decimal, fixed, label, signed, whole
from sparse_control.tables.nulls import COMMON, EACH
from sparse_control.tables.official import MATCHED, OWN

SHORT = {"official": "official", "shuffled_tokens": "shuffled", "redrawn_weights": "redrawn"}


def _regularisation(row: Row) -> str:
    if row["lam"] in (OWN, MATCHED):
        return {OWN: "own", MATCHED: "of ISS"}[row["lam"]]
    return f"{row['lam_rel']:g}"


def _places(row: Row) -> str:
    """The layers of the mean, where they are the same in all."""
    layers = {row[f"{name}_layers"] for name in SHORT} - {None}
    same = len(layers) == 1 and row["layers"] in (COMMON, EACH)
    return f"{row['layers']}: {layers.pop()}" if same else row["layers"]


def _aggregates(rows: list[Row]) -> list[Row]:
    """Means over layers at every regularisation, single layers at that of ISS."""
    return [row for row in rows if row["layers"] in (COMMON, EACH) or row["lam"] == MATCHED]


def _rank(name: str, heading: str) -> Column:
    def text(row: Row) -> str:
        if row[f"{name}_k"] is None:
            return "none"
        return f"{row[f'{name}_k']} ({fixed(row[f'{name}_k_over_d'], 2)})"

    return Column(heading, text)


LAYOUTS: dict[str, Layout] = {
    "nulls": Layout(
        title="What the nulls leave of ISS − Raw-ISS",
        caption=(
            "ISS, Raw-ISS and their difference (Δ) officially, with Jacobians of a corpus whose tokens are shuffled, "
            "and in a model whose weight matrices are redrawn; with each metric's own regularisation, with that of "
            "ISS for both, and over the sweep. Every null climbs the ladder and is frozen by itself, so the layers "
            "that are validated may differ; nulls.csv has single layers at every regularisation."
        ),
        section="Jacobian-Transported ISS, 11",
        group="iss",
        columns=(
            Column("Layers", _places, "l"),
            Column("λ rel", _regularisation),
            *(
                column
                for name, short in SHORT.items()
                for column in (
                    decimal(f"{name}_iss", f"{short}\nISS"),
                    decimal(f"{name}_raw_iss", f"{short}\nRaw"),
                    signed(f"{name}_difference", f"{short}\nΔ"),
                )
            ),
        ),
        printed=_aggregates,
    ),
    "rank_transfer": Layout(
        title="Does the rank transfer to a medium model? (Experiment B)",
        caption=(
            "Per representative depth the smallest rank k that meets all criteria on the small and on the medium "
            "model (k/d), and the errors of the medium model's estimator at the small model's rank, oversampling and "
            "power iterations: mean E_vec and C_vec, E_ISS, and the medians of the acceptance rule where that very "
            "setting was tried. The rank transfers where the medium model passes there; rank_transfer.csv says why "
            "not."
        ),
        section="Jacobian-Transported ISS, 7 and 16, Experiment B",
        group="iss",
        columns=(
            whole("depth", "Depth"),
            whole("small_layer", "Layer\nsmall"),
            _rank("small", "k (k/d)\nsmall"),
            whole("medium_layer", "Layer\nmedium"),
            _rank("medium", "k (k/d)\nmedium"),
            label("medium_status", "Status\nmedium"),
            decimal("medium_at_small_k_E_vec", "E_vec"),
            decimal("medium_at_small_k_C_vec", "C_vec", 4),
            decimal("medium_at_small_k_E_ISS", "E_ISS", 4),
            decimal("medium_at_small_k_median_cosine", "Median\ncosine", 4),
            decimal("medium_at_small_k_median_relative_error", "Median\nrel. error"),
            Column(
                "Transfers",
                lambda row: {None: EMPTY, True: "yes", False: "no"}[row["transfers"]],
                "l",
            ),
        ),
    ),
    "findings": Layout(
        title="Findings in numbers",
        caption="What the tables of ISS come to; the text quotes these cells and no other number.",
        section="Jacobian-Transported ISS, 16 and 18",
        group="iss",
        columns=(
            label("finding", "Finding"),
            Column("Value", lambda row: _finding(row["value"])),
            label("source", "Table"),
        ),
    ),
}


def _finding(value: object) -> str:
    return fixed(value, 4) if isinstance(value, float) else EMPTY if value is None else str(value)
