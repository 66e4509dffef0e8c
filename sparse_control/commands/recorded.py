"""What several commands take from a six-axis record: its seed, its model and its intervention."""

from pathlib import Path
from typing import TYPE_CHECKING

from sparse_control.errors import InputError
from sparse_control.notes import note
from sparse_control.project import project_folder

if TYPE_CHECKING:
    from sparse_control.models import LanguageModel
    from sparse_control.protocol import Intervention
    from sparse_control.protocol.panels import Pair, PanelSources
    from sparse_control.records.six_axis import Measurement


def study_file(root: Path | None, model: str | None, task: str, selector: str, condition: str) -> Path:
    """The file of a study of a model; of the smoke preset's where none is named.

    Raises:
        InputError: it is not there; the message says what measures it.
    """
    from sparse_control.models.locate import base_label
    from sparse_control.records.paths import committed_root
    from sparse_control.records.six_axis import RecordKey
    from sparse_control.settings import load_settings

    name = model or load_settings(project_folder() / "params.yaml").model
    path = RecordKey(base_label(name), task, selector, condition, 0).file(root or committed_root(project_folder()))
    if not path.is_file():
        raise InputError(
            f"{path}: no such file; measure it with run six-axis --task {task} --selector {selector} --condition "
            f"{condition}, or say where it is by --model and --root"
        )
    return path


def measured_record(path: Path, seed: int | None) -> "Measurement":
    """The record of one seed, checked before any model is loaded."""
    from sparse_control.records.base import read_record_lines
    from sparse_control.records.six_axis import Measurement

    records = {record.seed: record for record in read_record_lines(Measurement, path)}
    if not records:
        raise InputError(f"{path}: holds no record")
    chosen = min(records) if seed is None else seed
    if chosen not in records:
        raise InputError(f"{path}: has no seed {chosen}; there are: {', '.join(map(str, sorted(records)))}")
    record = records[chosen]
    if record.origin is not None:
        raise InputError(f"{path}: seed {chosen}: origin: its vectors are those of {record.origin.file}; use that file")
    if not record.supported:
        raise InputError(f"{path}: seed {chosen}: the task is not supported by {record.model}, so nothing was selected")
    if not record.support:
        raise InputError(f"{path}: seed {chosen}: support: is empty, there is nothing to apply")
    return record


def loaded(model: str | None, measured: "Measurement | None") -> "LanguageModel":
    """A model, or a record's own, as the record has it.

    Raises:
        InputError: as `load_model`, or it has other weights than the record's.
    """
    from sparse_control.models import load_model
    from sparse_control.models.locate import check_model_name
    from sparse_control.registry import registry
    from sparse_control.settings import load_settings

    name = model or (measured.model.replace("--", "/") if measured is not None else None)
    if model is None and measured is not None and "/" not in name and name not in registry():
        raise InputError(f"the record was measured on {name}, which is no registry name; say where it is by --model")
    settings = load_settings(project_folder() / "params.yaml", "smoke", name)
    check_model_name(settings.model)
    note(f"loading {settings.model} ...")
    lm = load_model(settings.model, dtype=settings.dtype).with_template_arguments(
        settings.protocol.template_arguments
        if measured is None
        else measured.provenance.model.get("template_arguments", {})
    )
    if measured is not None:
        made_by = measured.provenance.model.get("weights_sha256")
        if made_by not in (None, lm.provenance["weights_sha256"]):
            raise InputError(
                f"the record was measured on other weights ({measured.model}, {made_by[:12]}) than {lm.name} has here; "
                "give the model with --model"
            )
    return lm


def recorded_intervention(
    lm: "LanguageModel", path: Path, measured: "Measurement", sources: "PanelSources"
) -> tuple["Intervention", tuple["Pair", ...]]:
    """The intervention of a record, and the pairs of its fitting split that pass the gate.

    Its directions are the mean contrasts of that split, computed anew: records do not hold them.

    Raises:
        InputError: prompts of another source, or a fitting split that is not the record's.
    """
    from sparse_control.models.sites import parse_site
    from sparse_control.protocol import Intervention
    from sparse_control.protocol.fitting import fitted_directions
    from sparse_control.protocol.panels import TASKS, panel_source

    made_of = measured.panels.pairs if measured.panels is not None else "own"
    known = measured.task in TASKS or sources.pairs_of(measured.task) is not None
    if not known or panel_source(measured.task, sources) != made_of:
        flags = "--mmlu DIR or --xstest FILE" if measured.task in TASKS else f"--pairs FILE --name {measured.task}"
        raise InputError(f"{path}: the pairs of {measured.task} come from {made_of}; give it by {flags}")
    support = tuple(parse_site(name) for name in measured.support)
    fit = measured.gate.fit
    note(f"directions from the fitting split of {measured.task}, seed {measured.seed} ...")
    fitted = fitted_directions(
        lm, support, task=measured.task, seed=measured.seed, n_pairs=fit.built,
        minimum_gap=measured.gate.minimum_gap, sources=sources,
    )  # fmt: skip
    norms = [float(direction.norm()) for direction in fitted.directions]
    same = measured.condition != "F" or all(
        abs(here - there) <= 1e-3 * max(here, there)
        for here, there in zip(norms, measured.norms.direction, strict=True)
    )
    if len(fitted.pairs) != fit.kept or not same:
        raise InputError(
            f"{path}: seed {measured.seed}: the fitting split drawn here is not the one of the record (its pairs or "
            "directions differ); it was measured by other code, panels or settings: measure it again"
        )
    return Intervention(support, tuple(measured.strengths), fitted.directions), fitted.pairs
