"""The steps of official ISS: which task, which units of work, and which files each one reads."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flows.cluster import started_runners
from flows.common import Progress, Step, data_files
from flows.parameters import Run
from flows.reports import tables_artifact
from sparse_control.models.identity import model_identity
from sparse_control.project import cache_folder
from sparse_control.receipt import Receipt
from sparse_control.records.lock import root_lock
from sparse_control.records.paths import ALTERNATIVES, STAGES, VALIDATION, ModelPaths, Null
from sparse_control.settings import Settings
from sparse_control.stages.other_facts import set_aside_other_facts
from sparse_control.stages.queries import told_facts
from sparse_control.stages.resolve import paths_of, resolved, shape_of
from tasks import official_iss as tasks_of
from tasks.tables import manifest

# stages A to C and the alternatives never see the benchmark: it is an input of D alone
CALIBRATION = ("calibration_*",)
BENCHMARK = ("benchmark_*", "calibration_*")


@contextmanager
def measuring(run: Run) -> Iterator["Study"]:
    """Hold the lock of the root and start the runner; at the end, show the tables where Prefect runs the flow.

    Raises:
        InputError: another writer in the root, official ISS of other facts in it, a cluster that does not see it, or
            as the steps.
    """
    code = (*STAGES.values(), ALTERNATIVES)
    with root_lock(run.root, wait=run.wait):
        set_aside_other_facts(run.root, run.settings, replace=run.replace)
        with started_runners(run.dask, run.workers, run.root, *code) as runners:
            progress = Progress(run.flow, runners)
            if told := told_facts(run.settings):
                progress.say(told)
            yield Study(run, progress, run.settings)
        tables_artifact(run.flow, run.root, "iss")


@dataclass
class Study:
    """One study of official ISS: a model, or one of its nulls, below a root.

    Attributes:
        run: checked parameters of the flow.
        progress: of the flow.
        settings: of the study; resolved for the model once the corpus is there.
        windows: folder of the corpus, once it is there.
        prefix: of the labels that a person reads.
    """

    run: Run
    progress: Progress
    settings: Settings
    windows: Path | None = None
    prefix: str = ""

    @property
    def paths(self) -> ModelPaths:
        return paths_of(self.run.root, self.settings)

    def of_null(self, null: Null) -> "Study":
        """The same study with what ISS is about taken away."""
        return replace(self, settings=self.settings.as_null(null), prefix=f"{null}: ")

    def corpus(self) -> None:
        """The corpus, built where it is not there; the model is fetched by then, and the settings become its own."""
        cache = cache_folder()
        arguments = {
            "cache": str(cache),
            "settings": self.settings,
            "weights": self._identity,
            "reads": self._data("benchmark_facts.csv"),  # articles of its entities are left out
        }
        (receipt,) = self.progress.run([Step(tasks_of.corpus, "corpus", arguments)], below=cache)
        self.windows = (cache / receipt.files[0][0]).parent
        width, _ = shape_of(self.settings.model)
        for left_out in self.settings.ranks_left_out(width):
            self.progress.say(f"params.yaml: {left_out} of {self.settings.model}")
        self.settings = resolved(self.settings, self.run.uses)

    def reference(self) -> Receipt:
        """Stage A, by corpus block."""
        common = self._arguments(CALIBRATION)

        def units() -> list[Step]:
            from sparse_control.stages.a_reference import blocks

            return [
                self._step(
                    tasks_of.reference_block, f"A prompts {start} to {stop}", common | {"start": start, "stop": stop}
                )
                for start, stop in blocks(self.settings)
            ]

        step = self._step(tasks_of.reference, "A reference", common | {"module": STAGES["reference"]})
        return self._run(replace(step, units=units), "reference")

    def validate(self) -> Receipt:
        """Stage B, by layer."""

        def units() -> list[Step]:
            return [self._layer_unit(layer) for layer in self.settings.iss.layers]

        common = self._arguments(CALIBRATION, self._states, self.paths.references)
        step = self._step(tasks_of.validate, "B validation", common | {"module": STAGES["validate"]})
        return self._run(replace(step, units=units), "validate")

    def _layer_unit(self, layer: int) -> Step:
        own = self._arguments(CALIBRATION, self._states, self.paths.reference(layer))
        return self._step(tasks_of.validate_layer, f"B layer {layer}", own | {"layer": layer})

    def alternatives(self) -> Receipt:
        """The named alternatives, validated apart."""
        common = self._arguments(CALIBRATION, self._states, self.paths.references)
        step = self._step(tasks_of.alternatives, "alternatives", common | {"module": ALTERNATIVES})
        return self._run(step, "alternatives")

    def freeze(self) -> Receipt:
        """Stage C."""
        chosen = map(self.paths.iss_file, (*VALIDATION, "comparison"))
        common = self._arguments(CALIBRATION, self._states, self.paths.all_factors, *chosen)
        return self._run(self._step(tasks_of.freeze, "C freeze", common), "freeze")

    def official(self) -> Receipt:
        """Stage D."""
        paths = self.paths
        chosen = map(paths.iss_file, (*VALIDATION, "comparison"))
        frozen = (paths.all_factors, paths.configs, paths.manifest, *chosen)
        common = self._arguments(BENCHMARK, self._states, *frozen) | {"accept_code": self.run.accept_code}
        return self._run(self._step(tasks_of.official, "D official", common), "official")

    @property
    def _identity(self) -> str:
        """What the model's outputs depend on; a model of the hub is fetched."""
        return model_identity(self.settings.model, self.settings.dtype).sha256

    @property
    def _states(self) -> Path:
        return self.paths.states("calibration")

    def _arguments(self, data: tuple[str, ...], *reads: Path) -> dict[str, Any]:
        """Arguments of every stage; `reads` are files and folders, those of them that are there."""
        return {
            "root": str(self.run.root),
            "corpus": self.windows,
            "settings": self.settings,
            "weights": self._identity,
            "reads": [*self._data(*data), *(path for path in reads if path.exists())],
        }

    def _data(self, *patterns: str) -> list[Path]:
        """The project's own facts and prompts that a step reads; of the reader's own the settings hold the hash."""
        return [] if self.settings.facts is not None else data_files(*patterns)

    def _step(self, task: Any, label: str, arguments: dict[str, Any]) -> Step:
        return Step(task, self.prefix + label, arguments)

    def _run(self, step: Step, stage: str) -> Receipt:
        """Run a step, record what it wrote, and remove what the stage left for a run that goes on."""
        (receipt,) = self.progress.run([step], below=self.run.root)
        manifest(root=str(self.run.root), names=list(dict(receipt.files)))
        self.paths.finish(stage)
        return receipt

    def summary(self) -> dict[str, Any]:
        """What the flow returns: plain values only."""
        return self.progress.summary(self.run)
