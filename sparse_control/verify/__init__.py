"""Every check over a root: hashes, records, identities, rules, recomputation, re-rendering, claims and provenance.

Each kind of check is a module; this one says in which order they are made, and of what.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from sparse_control.records import manifest
from sparse_control.records.base import printable
from sparse_control.records.jacobian_iss import IssRecords
from sparse_control.records.paths import ModelPaths, paper_folder
from sparse_control.records.read import Records, models_of
from sparse_control.verify.agreement import disagreements
from sparse_control.verify.check import Check, attempt
from sparse_control.verify.figures import figure_checks
from sparse_control.verify.finding import Finding
from sparse_control.verify.freeze import freeze_checks, frozen_names
from sparse_control.verify.hashes import manifest_checks, missing_measurements, rendered_checks, unhashed_checks
from sparse_control.verify.identities import broken_identities
from sparse_control.verify.intervals import interval_checks
from sparse_control.verify.provenance import provenance_checks
from sparse_control.verify.published import read_checked
from sparse_control.verify.reading import Model, Study, read_model
from sparse_control.verify.rendered import table_checks
from sparse_control.verify.rules import broken_rules
from sparse_control.verify.six_axis import six_axis_checks
from sparse_control.verify.states import state_checks
from sparse_control.verify.validation import broken_validation

__all__ = ["Check", "verify"]

# what is held against what in the files of a study: title, kind of a finding, and what finds it
OF_A_STUDY: tuple[tuple[str, str, Callable[[IssRecords], Iterator[Finding]]], ...] = (
    ("files agree", "agreement", disagreements),
    ("scores follow from their parts", "identity", broken_identities),
    ("validation follows from its parts", "identity", broken_validation),
    ("decisions follow the rules", "rule", broken_rules),
)


def verify(root: Path, project: Path, *, from_states: bool = False) -> list[Check]:
    """Run every check over `root`; templates, claims and values come from `project`.

    Args:
        from_states: whether official ISS is recomputed from the transported states that are there.

    Raises:
        InputError: nothing can be checked: the folder is missing, unreadable, or without any measurement.
    """
    root, project = Path(root), Path(project)
    paper = paper_folder(root, project)
    manifest.check_root(root)
    missing = missing_measurements(root)
    checks = [*manifest_checks(root), *rendered_checks(paper)]
    models: list[Model] = []
    for folder in (folders := models_of(root)):
        model, read = read_model(ModelPaths(root, folder), missing)
        models += [model] if model else []
        checks += read
    published, check = read_checked(project)
    checks.append(check)
    for model in models:
        checks += _model_checks(model)
        for study in model.studies if from_states else ():
            checks += state_checks(study)
    checks += unhashed_checks(
        root, {name for model in models for study in model.studies for name in frozen_names(study)}
    )
    if len(models) < len(folders) or published is None:
        checks.append(Check("tables", "skip", "not recomputed, as records above cannot be read"))
    elif not manifest.rendered_files(paper):
        checks.append(Check("tables", "skip", "not recomputed, as none is rendered"))
    else:
        records = Records(models=tuple(model.records for model in models), published=published)
        checks += table_checks(root, project, records, missing)
        checks += figure_checks(root, project, records, missing)
    prefix = f"{root}/"
    texts = [(printable(one.name), printable(one.detail.replace(prefix, ""))) for one in checks]
    return [
        Check(name, one.status, detail, tuple(map(printable, one.more)))
        for one, (name, detail) in zip(checks, texts, strict=True)
    ]


def _model_checks(model: Model) -> Iterator[Check]:
    yield from provenance_checks(model)
    yield from six_axis_checks(model.paths, model.records.six_axis)
    for study in model.studies:
        yield from freeze_checks(study)
        if study.whole:
            yield from _numbers(study)
            yield from interval_checks(study)


def _numbers(study: Study) -> Iterator[Check]:
    """The files of a study held against each other, and against what they follow from."""
    for title, kind, source in OF_A_STUDY:
        found, check = attempt(f"{study.name}: {title}", lambda source=source: list(source(study.iss)))
        if found:
            yield from (Check(f"{kind} {study.name}/{file}", "FAIL", detail) for file, detail in found)
        else:
            yield check
