"""How ISS on the benchmark is shown."""

from sparse_control.artifact.layout.columns import Column, Layout, decimal, interval, label, named, small, whole

LAYOUTS: dict[str, Layout] = {
    "official_iss": Layout(
        title="Official ISS and Raw-ISS",
        caption=(
            "ISS on Jacobian-transported states beside Raw-ISS (identity transport, an ablation and not the official "
            "metric), Raw-ISS at the regularisation of ISS, and the regularisations; mean over facts. The official "
            "number is the row of the validated layers; an unresolved layer has no ISS, and over all layers there is "
            "only the ablation. 95 % BCa intervals of the relation-clustered bootstrap (benchmark sampling alone) are "
            "for these two aggregate rows only."
        ),
        section="Jacobian-Transported ISS, 10, 11 and 18",
        group="iss",
        columns=(
            label("layer", "Layer"),
            label("status", "Status"),
            decimal("iss", "ISS"),
            interval("iss_bca", "95 % interval"),
            decimal("raw_iss", "Raw-ISS"),
            interval("raw_iss_bca", "95 % interval"),
            decimal("raw_iss_matched_lam", "Raw-ISS\nmatched λ"),
            small("lam_rel_iss", "λ rel\nISS"),
            small("lam_rel_raw", "λ rel\nRaw"),
            whole("n_facts", "Facts"),
        ),
    ),
    "relations": Layout(
        title="Heterogeneity between relations",
        caption=(
            "ISS (mean over validated layers) and Raw-ISS (over all layers asked for) of each relation, and its "
            "number of facts."
        ),
        section="Jacobian-Transported ISS, 18",
        group="iss",
        columns=(
            named("relation", "Relation"),
            decimal("iss", "ISS"),
            decimal("raw_iss", "Raw-ISS"),
            whole("n_facts", "Facts"),
        ),
    ),
    "lam_sweep": Layout(
        title="ISS over the regularisation",
        caption=(
            "ISS and Raw-ISS of each layer at each relative regularisation λ of the whitening; only the frozen λ is "
            "official."
        ),
        section="Jacobian-Transported ISS, 10.2",
        group="iss",
        columns=(
            whole("layer", "Layer"),
            Column("λ rel", lambda row: f"{row['lam_rel']:g}"),
            decimal("iss", "ISS"),
            decimal("raw_iss", "Raw-ISS"),
        ),
    ),
}
