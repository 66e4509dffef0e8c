"""Records in, data frames out: every table of the paper with unrounded values.

A cell that has no number is None and another column of its row says why; NaN never stands in a table. Rounding,
captions and column headings belong to `render`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import yaml
from pydantic import model_validator

from sparse_control.artifact import axes
from sparse_control.artifact.iss_files import ActionValidation, IssRecords, read_iss
from sparse_control.artifact.measurements import Measurement, read_all_measurements
from sparse_control.artifact.records import Name, Record, printable, validate
from sparse_control.errors import InputError
from sparse_control.files import read_text

NOT_SUPPORTED = "not supported by this model"
MEASURED = "measured"
VALIDATED, ASKED = "validated layers", "all layers"  # rows over the window: of ISS, and of the Raw-ISS ablation
ABLATION = "ablation only"  # status of the row over all layers, which has no official number by design


@dataclass(frozen=True, kw_only=True)
class Records:
    """Everything the tables are made of."""

    measurements: tuple[Measurement, ...] = ()
    iss: IssRecords = field(default_factory=IssRecords)
    published: dict[str, Any] = field(default_factory=dict)  # paper/published.yaml


class PublishedFigure(Record):
    """One cell of the source document."""

    task: Name
    condition: Literal["P", "F"]
    statistic: Name  # a column of our table
    selector: Name | None = None  # where it is not the document's usual one
    printed: Name | None = None  # the cell as printed
    note: Name | None = None  # what stands there instead of a number, or beside it


class Published(Record):
    """paper/published.yaml."""

    document: Name
    model: Name
    selector: Name  # unless an entry says otherwise
    tables: dict[Name, list[PublishedFigure]]

    @model_validator(mode="after")
    def _columns_exist(self) -> "Published":
        every = {statistic for columns, _ in AXES.values() for statistic in columns}
        for table, figures in self.tables.items():
            if table not in AXES and table != "summary":
                raise ValueError(f"tables: no table {table!r}; there are: {', '.join(AXES)}, summary")
            for index, figure in enumerate(figures):
                if figure.statistic not in (every if table == "summary" else AXES[table][0]):
                    raise ValueError(f"tables.{table}.{index}: statistic: no such column, got {figure.statistic!r}")
        return self


def read_published(project: Path) -> dict[str, Any]:
    """The figures of the source document, `paper/published.yaml`; empty where the project folder has none.

    Raises:
        InputError: the file is not YAML; or names the field and the value.
    """
    path = Path(project, "paper", "published.yaml")
    if not path.exists():
        return {}
    text = read_text(path)
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    return validate(Published, content, str(path)).model_dump(exclude_unset=True)


def read_records(root: Path, project: Path) -> Records:
    """Read every record below `root`, and the published figures of the project folder.

    Raises:
        InputError: names the file, the line, the field and the value.
    """
    return Records(
        measurements=tuple(read_all_measurements(root)), iss=read_iss(root), published=read_published(project)
    )


def _frame(columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a data frame of Python objects, so that whole numbers and None stay what they are."""
    return pd.DataFrame([[row.get(name) for name in columns] for row in rows], columns=list(columns), dtype=object)


# --- what was measured ----------------------------------------------------------------------------------------------

SETUP_COLUMNS = ("model", "quantity", "value")
SPLITS = ("fit", "evaluate", "reuse")


def setup(records: Records) -> pd.DataFrame:
    """Sizes of everything that was measured, as the records have them; one quantity a row."""
    freeze = records.iss.freeze
    models = {record.model for record in records.measurements} | ({freeze.model} if freeze else set())
    rows: list[dict[str, Any]] = []
    for model in sorted(models):
        quantities = {"model": model} | _weights(records, model)
        quantities |= _iss_setup(records) if freeze and freeze.model == model else {}
        quantities |= _protocol_setup([record for record in records.measurements if record.model == model])
        rows += [{"model": model, "quantity": name, "value": value} for name, value in quantities.items()]
    return _frame(SETUP_COLUMNS, rows)


def _weights(records: Records, model: str) -> dict[str, str]:
    summary = records.iss.summary
    found = [record.provenance.model for record in records.measurements if record.model == model]
    if summary and summary.model == model:
        found.append(summary.provenance.model)
    sha256 = next((str(entry["weights_sha256"]) for entry in found if entry.get("weights_sha256")), None)
    return {"weights, SHA-256": f"{sha256[:12]}..."} if sha256 else {}


def preset(records: Records) -> str | None:
    """The preset the ISS half was frozen at; None where nothing says so."""
    freeze = records.iss.freeze
    return freeze.settings.model_dump().get("preset") if freeze else None


def _iss_setup(records: Records) -> dict[str, str]:
    settings = records.iss.freeze.settings.model_dump()
    iss, corpus = settings["iss"], settings.get("corpus", {})
    facts = {(fact.relation, fact.fact) for fact in records.iss.facts}
    found: dict[str, str] = {}
    if name := preset(records):
        found["preset"] = name
    if records.iss.comparison:
        tokens = f" windows of {corpus['sequence_length']} tokens" if "sequence_length" in corpus else ""
        found["corpus of the exact reference, n"] = f"{records.iss.comparison.corpus_size}{tokens}"
    if {"calibration_relations", "facts_per_relation"} <= set(iss):
        found["calibration"] = f"{iss['calibration_relations']} relations, up to {iss['facts_per_relation']} facts each"
    found["benchmark"] = f"{len({relation for relation, _ in facts})} relations, {len(facts)} facts"
    if {"families", "templates"} <= set(iss):
        found["prompts of a fact"] = f"{iss['families']} families, {iss['templates']} templates each"
    if seeds := settings.get("estimator", {}).get("sketch_seeds"):
        found["sketch seeds"] = ", ".join(map(str, seeds))
    return found


def _protocol_setup(measurements: list[Measurement]) -> dict[str, str]:
    """Pairs over seeds; every selector and direction rule of a task and seed has the same ones."""
    if not measurements:
        return {}
    found = {"six-axis seeds": ", ".join(map(str, sorted({record.seed for record in measurements})))}
    for task in sorted({record.task for record in measurements}):
        gates = {record.seed: record.gate for record in measurements if record.task == task}.values()
        counts = {split: [getattr(gate, split) for gate in gates] for split in SPLITS}
        found[f"{task}: pairs kept of built"] = ", ".join(
            f"{split} {sum(count.kept for count in each)}/{sum(count.built for count in each)}"
            for split, each in counts.items()
        )
    prompts = {len(record.preservation.prompts) for record in measurements if record.supported}
    if prompts:
        found["off-target prompts"] = " or ".join(map(str, sorted(prompts)))
    return found


# --- internal state stability ---------------------------------------------------------------------------------------

ESTIMATOR_COLUMNS = (
    "model",
    "layer",
    "status",
    "k",
    "k_over_d",
    "p",
    "r",
    "r_is_d",
    "q",
    "n",
    "step",
    "median_cosine",
    "median_relative_error",
    "iss_rank_difference",
    "iss_seed_deviation",
    "rungs",
    "reason",
)


def estimator_validation(records: Records) -> pd.DataFrame:
    """Per layer the frozen rung, or the last one tried where none passed (ISS source document, 7.4 and 12)."""
    ordered = sorted(records.iss.actions, key=lambda row: (row.model, row.layer))  # stable: rungs keep their order
    rows = []
    for (model, layer), group in groupby(ordered, key=lambda row: (row.model, row.layer)):
        rungs = list(group)
        chosen = [rung for rung in rungs if rung.chosen]
        if len(chosen) > 1:
            raise InputError(
                f"per_model_action_validation.jsonl: layer {layer} of {model} has {len(chosen)} chosen rungs"
            )
        rows.append(
            _estimator_row((chosen or rungs)[-1], status="validated" if chosen else "unresolved", rungs=len(rungs))
        )
    return _frame(ESTIMATOR_COLUMNS, rows)


def width(rung: ActionValidation) -> int | None:
    """d, from k and k/d."""
    return round(rung.k / rung.k_over_d) if rung.k_over_d else None


def _estimator_row(rung: ActionValidation, *, status: str, rungs: int) -> dict[str, Any]:
    own = ("status", "rungs", "r_is_d")
    names = {"p": "oversampling", "q": "power_iterations", "n": "corpus_size"}
    row = {name: getattr(rung, names.get(name, name)) for name in ESTIMATOR_COLUMNS if name not in own}
    return row | {"status": status, "rungs": rungs, "r_is_d": rung.r == width(rung)}


RANK_MEANS = (
    "E_F",
    "E_vec",
    "C_vec",
    "E_vec_centred",
    "C_vec_centred",
    "E_ISS",
    "rho_fact",
    "svd_floor_E_F",
    "svd_floor_E_vec",
)
RANK_KEYS = ("layer", "estimator", "probe", "p", "q", "k", "r")
RANK_NOISE = ("E_vec_sd", "noise_floor_E_F", "noise_floor_E_vec")
RANK_COLUMNS = ("model", "n", *RANK_KEYS, "r_is_d", "seeds", *RANK_MEANS, *RANK_NOISE)


def rank_curve(records: Records) -> pd.DataFrame:
    """Experiment A: low-rank estimators against the full empirical reference, means over sketch seeds (5.4)."""
    comparison = records.iss.comparison
    if comparison is None:
        return _frame(RANK_COLUMNS, [])

    def key(row: Any) -> tuple[Any, ...]:
        return row.layer, row.estimator, row.probe, row.oversampling, row.power_iterations, row.k, row.r

    floors = {floor.layer: floor for floor in comparison.noise_floor}
    widths = {width(rung) for rung in records.iss.actions if rung.model == comparison.model}
    rows = []
    for values, group in groupby(sorted(comparison.rows, key=key), key=key):
        seeds = list(group)
        row: dict[str, Any] = dict(zip(RANK_KEYS, values, strict=True))
        row |= {"model": comparison.model, "n": comparison.corpus_size, "seeds": len(seeds)}
        row["r_is_d"] = row["r"] in widths
        for name in RANK_MEANS:
            row[name] = axes.mean_or_none([value for seed in seeds if (value := getattr(seed, name)) is not None])
        row["E_vec_sd"] = axes.deviation_or_none([seed.E_vec for seed in seeds])
        floor = floors.get(row["layer"])
        row |= {f"noise_floor_{name}": getattr(floor, name, None) for name in ("E_F", "E_vec")}
        rows.append(row)
    return _frame(RANK_COLUMNS, rows)


OFFICIAL_COLUMNS = (
    "model",
    "layer",
    "status",
    "iss",
    "iss_bca_low",
    "iss_bca_high",
    "iss_percentile_low",
    "iss_percentile_high",
    "raw_iss",
    "raw_iss_bca_low",
    "raw_iss_bca_high",
    "raw_iss_matched_lam",
    "lam_rel_iss",
    "lam_rel_raw",
    "n_facts",
)


def official_iss(records: Records) -> pd.DataFrame:
    """Official ISS beside Raw-ISS per layer and over the window (10.6, 11); layer means come from the facts' rows.

    An unresolved layer has Raw-ISS and no ISS. The intervals resample relations: benchmark sampling alone.
    """
    summary, raw = records.iss.summary, records.iss.raw
    if summary is None:
        return _frame(OFFICIAL_COLUMNS, [])
    by_layer: dict[tuple[str, int], dict[str, float | None]] = {}
    for fact in records.iss.fact_layers:
        if fact.model == summary.model:
            by_layer.setdefault((fact.metric, fact.layer), {})[fact.fact] = fact.iss
    rows: list[dict[str, Any]] = []
    for layer in sorted(summary.per_layer, key=lambda row: row.layer):
        rows.append(
            _over_layers(by_layer, summary.validated_layers, [layer.layer])
            | {
                "layer": str(layer.layer),
                "raw_iss_matched_lam": layer.raw_iss_matched_lam,
                "lam_rel_iss": layer.lam_rel_iss,
                "lam_rel_raw": layer.lam_rel_raw,
            }
        )
    rows.append(
        _over_layers(by_layer, summary.validated_layers, summary.validated_layers)
        | {"layer": VALIDATED}
        | _intervals("iss", summary.ISS)
    )
    rows.append(
        _over_layers(by_layer, summary.validated_layers, summary.window)
        | {"layer": ASKED, "status": ABLATION, "iss": None}
        | _intervals("raw_iss", raw)
    )
    return _frame(OFFICIAL_COLUMNS, [row | {"model": summary.model} for row in rows])


def _over_layers(
    by_layer: dict[tuple[str, int], dict[str, float | None]], validated: Sequence[int], layers: Sequence[int]
) -> dict[str, Any]:
    """Means over facts of the mean over `layers` (10.6); ISS only where every one of them is validated.

    A fact that is undefined in one of the layers is left out.
    """
    row: dict[str, Any] = {"status": "validated" if layers and set(layers) <= set(validated) else "unresolved"}
    for metric, name in (("Raw-ISS", "raw_iss"), ("ISS", "iss")):
        if metric == "ISS" and row["status"] == "unresolved":
            continue
        tables = [by_layer.get((metric, layer), {}) for layer in layers]
        facts = tables[0] if tables else {}
        values = [[table.get(fact) for table in tables] for fact in facts]
        means = [math.fsum(value) / len(value) for value in values if None not in value]
        row |= {name: axes.mean_or_none(means), "n_facts": len(means)}
    return row


def _intervals(name: str, source: Any) -> dict[str, Any]:
    if source is None:
        return {}
    kinds = ("bca", "percentile")
    return {
        f"{name}_{kind}_{end}": getattr(source, kind)[side]
        for kind in kinds
        for side, end in enumerate(("low", "high"))
    }


RELATION_COLUMNS = ("model", "relation", "iss", "raw_iss", "n_facts")


def relations(records: Records) -> pd.DataFrame:
    """ISS and Raw-ISS of each relation, from the facts' means (18, heterogeneity)."""
    rows = []
    ordered = sorted(records.iss.facts, key=lambda row: (row.model, row.relation))
    for (model, relation), group in groupby(ordered, key=lambda row: (row.model, row.relation)):
        facts = list(group)
        values = {
            metric: [fact.iss for fact in facts if fact.metric == metric and fact.iss is not None]
            for metric in ("ISS", "Raw-ISS")
        }
        rows.append(
            {
                "model": model,
                "relation": relation,
                "iss": axes.mean_or_none(values["ISS"]),
                "raw_iss": axes.mean_or_none(values["Raw-ISS"]),
                "n_facts": len({fact.fact for fact in facts}),
            }
        )
    return _frame(RELATION_COLUMNS, rows)


LAM_COLUMNS = ("model", "layer", "lam_rel", "iss", "raw_iss")


def lam_sweep(records: Records) -> pd.DataFrame:
    """ISS and Raw-ISS over the regularisation of the whitening (10.2)."""
    summary = records.iss.summary
    rows = sorted(summary.sweep, key=lambda row: (row.layer, row.lam_rel)) if summary else []
    return _frame(
        LAM_COLUMNS,
        ({"model": summary.model, **{name: getattr(row, name) for name in LAM_COLUMNS[1:]}} for row in rows),
    )


STABILITY_COLUMNS = ("model", "layer", "k", "p", "q", "metric", "seeds", "mean", "sd")


def seed_stability(records: Records) -> pd.DataFrame:
    """Mean and sample sd of each metric over sketch seeds (9), at the setting that `estimator_validation` shows."""
    settings = {
        (row["model"], row["layer"]): (row["k"], row["p"], row["q"])
        for row in estimator_validation(records).to_dict("records")
    }
    latest: dict[tuple[str, int, str], dict[str, Any]] = {}
    for row in records.iss.seed_stability:
        if settings.get((row.model, row.layer)) == (row.k, row.oversampling, row.power_iterations):
            latest[row.model, row.layer, row.metric] = {  # a setting tried again on a larger corpus comes later
                "model": row.model,
                "layer": row.layer,
                "k": row.k,
                "p": row.oversampling,
                "q": row.power_iterations,
                "metric": row.metric,
                "seeds": len(row.seeds),
                "mean": axes.mean_or_none(row.values),
                "sd": axes.deviation_or_none(row.values),
            }
    return _frame(STABILITY_COLUMNS, latest.values())


CORPUS_COLUMNS = ("model", "layer", "n", "cosine_to_2n", "iss_difference")


def corpus_convergence(records: Records) -> pd.DataFrame:
    """n corpus prompts against 2n (8.2)."""
    rows = records.iss.corpus_convergence
    return _frame(CORPUS_COLUMNS, ({name: getattr(row, name) for name in CORPUS_COLUMNS} for row in rows))


# --- six-axis protocol ----------------------------------------------------------------------------------------------

KEYS = ("model", "task", "selector", "condition")
HEAD = (*KEYS, "status", "n_seeds", "seeds_not_supported")


def _groups(records: Records) -> Iterable[tuple[dict[str, Any], list[Measurement]]]:
    """(model, task, selector, condition) in order, P before F, with the supported seeds."""

    def key(record: Measurement) -> tuple[Any, ...]:
        return record.model, record.task, record.selector, record.condition != "P", record.condition

    for _, group in groupby(sorted(records.measurements, key=lambda record: (*key(record), record.seed)), key=key):
        seeds = list(group)
        supported = [record for record in seeds if record.supported]
        head = {name: getattr(seeds[0], name) for name in KEYS}
        head |= {
            "status": MEASURED if supported else NOT_SUPPORTED,
            "n_seeds": len(supported),
            "seeds_not_supported": len(seeds) - len(supported),
        }
        yield head, supported


def _axis(
    records: Records, columns: Sequence[str], statistic: Callable[[list[Measurement]], dict[str, Any]]
) -> pd.DataFrame:
    rows = [head | (statistic(seeds) if seeds else {}) for head, seeds in _groups(records)]
    return _frame((*HEAD, *columns), rows)


def _reachability(seeds: list[Measurement]) -> dict[str, Any]:
    return axes.reachability([(s.evaluate.source, s.evaluate.target, s.evaluate.at_dose(1.0)) for s in seeds])


def _reversal(seeds: list[Measurement]) -> dict[str, Any]:
    return axes.signed_reversal([(s.evaluate.source, s.evaluate.target, s.reversal.reversed) for s in seeds])


def _dose(seeds: list[Measurement]) -> dict[str, Any]:
    curves = [(s.evaluate.doses, axes.curve(s.evaluate.source, s.evaluate.target, s.evaluate.patched)) for s in seeds]
    return axes.dose_response(curves)


def _feedback(seeds: list[Measurement]) -> dict[str, Any]:
    return axes.feedback(
        [
            {
                "target": end.target,
                "terminal_margin": end.terminal_margin,
                "initial_margin": end.initial_margin,
                "tolerance": s.feedback.tolerance,
                "readouts": end.readouts,
                "clipped": end.clipped,
                "diverged": end.stop_reason == "diverged",
            }
            for s in seeds
            for end in s.feedback.endpoints
        ]
    )


def _preservation(seeds: list[Measurement]) -> dict[str, Any]:
    return axes.preservation({s.seed: s.preservation.kl for s in seeds})


def _reuse(seeds: list[Measurement]) -> dict[str, Any]:
    return axes.reuse([(s.reuse.source, s.reuse.target, s.reuse.refit, s.reuse.frozen) for s in seeds])


REACHABILITY_COLUMNS = (
    "rel_tar_mean",
    "rel_tar_sd",
    "passes_0.30",
    "passes_0.35",
    "passes_0.40",
    "passes_0.45",
    "passes_0.50",
)
REVERSAL_COLUMNS = ("ratio_mean", "ratio_sd", "infinite", "undefined", "passes")
DOSE_COLUMNS = ("rho_mean", "ordered", "reversed", "undefined")
FEEDBACK_COLUMNS = (
    "hits",
    "endpoints",
    "mae",
    "readouts_mean",
    "already_met",
    "hits_not_already_met",
    "clipped",
    "diverged",
    "tolerance",
)
PRESERVATION_COLUMNS = ("n", "mean", "median", "p95", "max", "seed_mean_passes", "every_prompt_passes")
REUSE_COLUMNS = ("refit_mean", "refit_sd", "frozen_mean", "frozen_sd", "no_gap")


def reachability(records: Records) -> pd.DataFrame:
    """Rel_tar at dose 1: mean and sample sd over seeds, seeds at or below each threshold."""
    return _axis(records, REACHABILITY_COLUMNS, _reachability)


def signed_reversal(records: Records) -> pd.DataFrame:
    """Reversal ratio: mean and sample sd over seeds with a finite one; infinite and undefined ones counted."""
    return _axis(records, REVERSAL_COLUMNS, _reversal)


def dose_response(records: Records) -> pd.DataFrame:
    """Seeds whose progress is ordered by dose, ordered the wrong way, or constant."""
    return _axis(records, DOSE_COLUMNS, _dose)


def feedback(records: Records) -> pd.DataFrame:
    """Feedback endpoints over all seeds: hits, error, readouts; targets met at dose zero apart."""
    return _axis(records, FEEDBACK_COLUMNS, _feedback)


def preservation(records: Records) -> pd.DataFrame:
    """Off-target divergence over all prompt-seed observations, and the seeds that pass under both rules."""
    return _axis(records, PRESERVATION_COLUMNS, _preservation)


def reuse(records: Records) -> pd.DataFrame:
    """Recovery on unseen pairs, strengths refitted or frozen: mean and sample sd over seeds."""
    return _axis(records, REUSE_COLUMNS, _reuse)


AXES = {
    "reachability": (REACHABILITY_COLUMNS, _reachability),
    "signed_reversal": (REVERSAL_COLUMNS, _reversal),
    "dose_response": (DOSE_COLUMNS, _dose),
    "feedback": (FEEDBACK_COLUMNS, _feedback),
    "preservation": (PRESERVATION_COLUMNS, _preservation),
    "reuse": (REUSE_COLUMNS, _reuse),
}
SUMMARY_COLUMNS = (
    "rel_tar_mean",
    "passes_0.40",
    "ratio_mean",
    "passes",
    "ordered",
    "hits",
    "endpoints",
    "median",
    "seed_mean_passes",
    "refit_mean",
    "frozen_mean",
)


def summary(records: Records) -> pd.DataFrame:
    """Six numbers, not one: a task a row, an axis a column group; Coverage-Driver with evaluation-pair directions."""
    chosen = [r for r in records.measurements if (r.selector, r.condition) == ("coverage_driver", "P")]

    def statistic(seeds: list[Measurement]) -> dict[str, Any]:
        return {name: value for _, function in AXES.values() for name, value in function(seeds).items()}

    return _axis(Records(measurements=tuple(chosen)), SUMMARY_COLUMNS, statistic)


TOTALS = {
    "passes_0.40": "n_seeds",
    "passes": "n_seeds",
    "ordered": "n_seeds",
    "reversed": "n_seeds",
    "hits": "endpoints",
    "seed_mean_passes": "n_seeds",
    "every_prompt_passes": "n_seeds",
}
PUBLISHED_COLUMNS = (
    "source_table",
    "task",
    "selector",
    "condition",
    "statistic",
    "published",
    "published_note",
    "model",
    "ours",
    "ours_of",
)


def published(records: Records) -> pd.DataFrame:
    """The figures of the source document, on its own model, beside ours of the same task, selector and condition."""
    frames = {name: _axis(records, columns, statistic) for name, (columns, statistic) in AXES.items()}
    axis_of = {statistic: name for name, (columns, _) in AXES.items() for statistic in columns}
    models = sorted({record.model for record in records.measurements}) or [None]
    rows = []
    for table, entries in records.published.get("tables", {}).items():
        for entry in entries:
            selector = entry.get("selector", records.published.get("selector"))
            key = {"task": entry["task"], "selector": selector, "condition": entry["condition"]}
            for model in models:
                frame = frames[axis_of[entry["statistic"]] if table == "summary" else table]
                ours = _matching(frame, key | {"model": model})
                total = ours.get(TOTALS.get(entry["statistic"]))
                rows.append(
                    {
                        "source_table": table,
                        **key,
                        "statistic": entry["statistic"],
                        "published": entry.get("printed"),
                        "published_note": entry.get("note"),
                        "model": model,
                        "ours": ours.get(entry["statistic"]),
                        "ours_of": total,
                    }
                )
    return _frame(PUBLISHED_COLUMNS, rows)


def _matching(frame: pd.DataFrame, key: dict[str, Any]) -> dict[str, Any]:
    """The row of `frame` with these values as a dict; empty where there is none, or it was not measured."""
    for row in frame.to_dict("records"):
        if row["status"] == MEASURED and all(row[name] == value for name, value in key.items()):
            return row
    return {}


TABLES: dict[str, Callable[[Records], pd.DataFrame]] = {  # in the order of paper/main.tex
    "setup": setup,
    "official_iss": official_iss,
    "relations": relations,
    "lam_sweep": lam_sweep,
    "estimator_validation": estimator_validation,
    "rank_curve": rank_curve,
    "corpus_convergence": corpus_convergence,
    "seed_stability": seed_stability,
    "summary": summary,
    "reachability": reachability,
    "signed_reversal": signed_reversal,
    "dose_response": dose_response,
    "feedback": feedback,
    "preservation": preservation,
    "reuse": reuse,
    "published": published,
}


def all_tables(records: Records) -> dict[str, pd.DataFrame]:
    """Every table by name.

    Raises:
        InputError: values in the records that have no finite statistic, such as readouts beyond 1e300.
    """
    return {name: _finite(name, table, records) for name, table in TABLES.items()}


def _finite(name: str, table: Callable[[Records], pd.DataFrame], records: Records) -> pd.DataFrame:
    try:
        frame = table(records)
    except (ValueError, OverflowError) as error:
        raise error if isinstance(error, InputError) else InputError(f"table {name}: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:  # settings at the freeze are typed only where they are read
        raise InputError(f"table {name}: the records hold a value of another kind than expected ({error})") from error
    for row in frame.to_dict("records"):
        for column, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                place = printable(", ".join(str(part) for part in list(row.values())[:4]))
                raise InputError(f"table {name}: {column} of {place} is {value}; the records hold values out of range")
    return frame


def cell_text(value: Any) -> str:
    """A cell as it stands in a .csv: repr of floats, empty for None."""
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else str(value)
