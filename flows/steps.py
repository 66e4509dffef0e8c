"""The steps of official ISS: which task, which units of work, which files each one reads; and studies made of them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.cluster import started_runner
from flows.common import Progress, Run, Step, data_files, files_of
from flows.reports import tables_artifact
from flows.standing import check_standing
from sparse_control.corpus import load_corpus
from sparse_control.errors import InputError
from sparse_control.models.identity import model_identity, model_label
from sparse_control.project import cache_folder
from sparse_control.receipt import Receipt
from sparse_control.records.lock import root_lock
from sparse_control.records.paths import ModelPaths
from sparse_control.settings import Settings
from tasks import official_iss as tasks_of
from tasks.tables import manifest

# stages A to C and the alternatives never see the benchmark: it is an input of D alone
CALIBRATION = ("calibration_*",)
BENCHMARK = ("benchmark_*", "calibration_*")
VALIDATION = (
    "small_model_full_comparison.json",
    "per_model_action_validation.jsonl",
    "rank_convergence.jsonl",
    "corpus_convergence.jsonl",
    "seed_stability.jsonl",
    "whitening.json",
)


@dataclass(frozen=True)
class OfficialIss:
    """One study of official ISS: its settings, its folder, and where its steps run.

    Attributes:
        progress: of the flow.
        settings: of the study.
        root: the folder measured into.
        weights: `ModelIdentity.sha256` of the model in the dtype of the settings.
    """

    progress: Progress
    settings: Settings
    root: Path
    weights: str

    @property
    def paths(self) -> ModelPaths:
        return ModelPaths(self.root, model_label(self.settings.model), self.settings.null)

    def corpus(self) -> Path:
        """The folder of the corpus, built where it is not there."""
        cache = cache_folder()
        arguments = {
            "cache": str(cache),
            "settings": self.settings,
            "weights": self.weights,
            "reads": data_files("benchmark_facts.csv"),  # articles of its entities are left out
        }
        (receipt,) = self.progress.run([Step(tasks_of.corpus, "corpus", arguments)], below=cache)
        return (cache / receipt.files[0][0]).parent

    def reference(self, corpus: Path) -> Receipt:
        """Stage A, by corpus block."""
        common = self._common(corpus, CALIBRATION)

        def units() -> list[Step]:
            from sparse_control.stages.a_reference import blocks

            return [
                Step(tasks_of.reference_block, f"A prompts {start} to {stop}", common | {"start": start, "stop": stop})
                for start, stop in blocks(self.settings)
            ]

        step = Step(tasks_of.reference, "A reference", common | {"module": tasks_of.REFERENCE}, units)
        return self._run(step, "reference")

    def validate(self, corpus: Path) -> Receipt:
        """Stage B, by layer."""

        def units() -> list[Step]:
            return [self._layer_unit(corpus, layer) for layer in self.settings.iss.layers]

        common = self._common(corpus, CALIBRATION, self._states, self.paths.references)
        step = Step(tasks_of.validate, "B validation", common | {"module": tasks_of.VALIDATE}, units)
        return self._run(step, "validate")

    def _layer_unit(self, corpus: Path, layer: int) -> Step:
        own = self.paths.reference(layer)
        arguments = self._common(corpus, CALIBRATION, self._states, own) | {"layer": layer}
        return Step(tasks_of.validate_layer, f"B layer {layer}", arguments)

    def alternatives(self, corpus: Path) -> Receipt:
        """The named alternatives, validated apart."""
        common = self._common(corpus, CALIBRATION, self._states, self.paths.references)
        step = Step(tasks_of.alternatives, "alternatives", common | {"module": tasks_of.ALTERNATIVES})
        return self._run(step, "alternatives")

    def freeze(self, corpus: Path) -> Receipt:
        """Stage C."""
        validation = map(self.paths.validation, VALIDATION)
        common = self._common(corpus, CALIBRATION, self._states, self.paths.all_factors, *validation)
        return self._run(Step(tasks_of.freeze, "C freeze", common), "freeze")

    def official(self, corpus: Path, accept_code: str | None = None) -> Receipt:
        """Stage D."""
        frozen = self.paths.all_factors, self.paths.configs, self.paths.manifest
        common = self._common(corpus, BENCHMARK, self._states, *frozen)
        return self._run(Step(tasks_of.official, "D official", common | {"accept_code": accept_code}), "official")

    @property
    def _states(self) -> Path:
        return self.paths.states("calibration")

    def _common(self, corpus: Path, data: tuple[str, ...], *reads: Path) -> dict[str, object]:
        """Arguments of every stage; `reads` are files and folders, those of them that are there."""
        return {
            "root": str(self.root),
            "corpus": corpus,
            "settings": self.settings,
            "weights": self.weights,
            "reads": [*data_files(*data), *(path for path in reads if path.exists())],
        }

    def _run(self, step: Step, stage: str) -> Receipt:
        """Run a step; once its receipt is kept, what the stage left for a run that goes on has had its day."""
        (receipt,) = self.progress.run([step], below=self.root)
        self.paths.finish(stage)
        return receipt


Work = Callable[[OfficialIss, Path], list[Receipt]]


def validated(study: OfficialIss, corpus: Path) -> list[Receipt]:
    """Stages A and B."""
    return [study.reference(corpus), study.validate(corpus)]


def evaluated(accept_code: str | None) -> Work:
    """Stages C and D; D alone, from the freeze that stands, where `accept_code` says why its other code will do.

    Raises:
        InputError: a reason without words; when run without one, what stands was not made with these settings.
    """
    if accept_code is not None and not accept_code.strip():
        raise InputError("accept_code: is empty; say why a freeze made by other code is good enough")

    def work(study: OfficialIss, corpus: Path) -> list[Receipt]:
        if accept_code is not None:
            return [study.official(corpus, accept_code)]
        check_standing(study.paths, study.settings, load_corpus(corpus).sha256)
        return [study.freeze(corpus), study.official(corpus)]

    return work


def official_study(study: OfficialIss, corpus: Path) -> list[Receipt]:
    """Stages A to D."""
    return [*validated(study, corpus), study.freeze(corpus), study.official(corpus)]


def measured(name: str, run: Run, dask: str | None, wait: bool, work: Work) -> dict[str, Any]:
    """Lock the root, build the corpus, do the work, record what it wrote and show its tables.

    Args:
        name: of the flow.
        run: checked parameters.
        dask: where the units run.
        wait: for another run in the root to end, instead of refusing.
        work: which steps, given the study and its corpus folder.

    Returns:
        the flow's summary.

    Raises:
        InputError: as the steps.
    """
    code = (*tasks_of.STAGES, tasks_of.ALTERNATIVES)
    with root_lock(run.root, wait=wait), started_runner(dask, run.root, *code) as runner:
        progress = Progress(name, runner)
        identity = model_identity(run.settings.model, run.settings.dtype)
        study = OfficialIss(progress, run.settings, run.root, identity.sha256)
        receipts = work(study, study.corpus())
        manifest(root=str(run.root), names=files_of(receipts))
        tables_artifact(name, run.root, "iss")
    return progress.summary(run)
