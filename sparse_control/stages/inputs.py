"""What every stage opens: the model, the corpus, the paths, and the key of work begun with them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sparse_control.corpus import Corpus, load_corpus, tokenizer_sha256
from sparse_control.errors import InputError
from sparse_control.files import read_json, sha256_file, sha256_json
from sparse_control.models import LanguageModel, load_model
from sparse_control.records.paths import ModelPaths, stages_code_sha256
from sparse_control.settings import Settings
from sparse_control.stages.checkpoint import Checkpoint, Key, Layout, Part
from sparse_control.stages.nulls import as_null
from sparse_control.stages.resolve import NOT_OFFICIAL, OFFICIAL
from sparse_control.threads import pin_threads


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a stage works on.

    Attributes:
        settings: resolved for the model.
        lm: the model, or its null.
        windows: the corpus, or its null.
        paths: where the files of this model, or of its null, are.
        key: what unfinished work depends on.
    """

    settings: Settings
    lm: LanguageModel
    windows: Corpus
    paths: ModelPaths
    key: Key

    @property
    def corpus_ids(self):
        """Token ids (n, T) of the largest corpus; its first windows are the smaller ones.

        Raises:
            InputError: the corpus has fewer windows.
        """
        return self.windows.first(self.settings.estimator.corpus_sizes[-1]).input_ids

    @cached_property
    def calibration_states_sha256(self) -> str:
        """Of the states that stage A left.

        Raises:
            InputError: there are none.
        """
        return sha256_file(self.paths.states("calibration"))

    def checkpoint(self, stage: str, work: str, layout: Layout, **identity: str) -> Checkpoint:
        """Where tensors of one unit of a stage's work are kept while it goes on.

        Args:
            layout: shape and dtype of every tensor.
            identity: what this unit depends on, beside what all work does.
        """
        path = self.paths.unfinished(stage) / work
        key = {**self.key, "work": f"{stage} {work}", **identity}
        return Checkpoint(path, key, layout, self.settings.estimator.checkpoint_seconds)

    def part(self, stage: str, work: str, **identity: str) -> Part:
        """Where a finished part of a stage's work on the calibration states is kept; arguments as of `checkpoint`."""
        path = self.paths.unfinished(stage) / f"{work}.json"
        states = self.calibration_states_sha256
        return Part(path, {**self.key, "work": f"{stage} {work}", "states": states, **identity}, self.paths.root)


def open_inputs(corpus: Path, root: Path, settings: Settings, uses: Collection[str] = OFFICIAL) -> Inputs:
    """Load what a stage needs and check the settings against it.

    Args:
        uses: names of the sections of the settings that the stage reads and that a model may not fit.

    Raises:
        InputError: a model not fetched, a corpus that is broken or was built with other settings or for another
            tokenizer, ranks or layers that do not fit the model.
    """
    pin_threads(settings.threads)
    lm = load_model(settings.model, dtype=settings.dtype)
    settings = settings.for_model(n_layers=lm.n_layers, width=lm.width, uses=uses)
    windows = load_corpus(corpus)
    windows.check(settings.corpus, tokenizer_sha256(lm.tokenizer))
    lm, windows = as_null(lm, windows, settings)
    key = {
        "model": lm.name,
        **lm.identity.parts,
        "corpus": windows.sha256,
        "null": settings.null,
        "settings": sha256_json(settings.model_dump(exclude=NOT_OFFICIAL | {"model", "dtype", "null"})),
        "code": stages_code_sha256(),
        **_facts(settings),
    }
    return Inputs(settings, lm, windows, ModelPaths(Path(root), lm.name, settings.null), key)


def source_metadata(inputs: Inputs) -> dict[str, Any]:
    """What every estimator's metadata says of the Jacobian it estimates and of where that came from (15)."""
    provenance = inputs.lm.provenance
    return {
        "position": "final",
        "target_layer": inputs.lm.n_layers,
        "norm": "before the final norm",
        "dtype": provenance["dtype"],
        "bos": provenance["bos"],
        "identity": inputs.lm.identity.sha256,
        "weights_sha256": provenance["weights_sha256"],
        "tokenizer_sha256": provenance["tokenizer_sha256"],
        "corpus_sha256": inputs.windows.sha256,
        "null": inputs.settings.null,
        "versions": provenance["versions"],
        **_facts(inputs.settings),
    }


def _facts(settings: Settings) -> dict[str, str]:
    """Hash of the reader's own facts; nothing of the project's, which are part of the code's versions."""
    return {} if settings.facts is None else {"facts": settings.facts.sha256}


def check_references(inputs: Inputs, sizes: Sequence[int], layers: Sequence[int]) -> None:
    """Refuse exact references that are not those of this model and corpus, as stage A left them.

    Args:
        sizes: corpus sizes that are needed.
        layers: source layers that are needed.

    Raises:
        InputError: references that are missing, changed, or made from another model, corpus or null.
    """
    path = inputs.paths.reference_metadata
    again = "run stage A again (run official-iss)"
    if not path.is_file():
        raise InputError(f"{path}: no exact references; run stage A first (run official-iss)")
    metadata = read_json(path)
    found = metadata.get("key") if isinstance(metadata, dict) else None
    if not isinstance(found, dict) or not isinstance(metadata.get("files"), dict):
        raise InputError(f"{path}: key: is missing; {again}")
    for name in sorted({*found, *inputs.key} - {"settings", "code"}):
        if found.get(name) != inputs.key.get(name):
            raise InputError(
                f"{path}: {name}: references were made with {found.get(name)}, now {inputs.key.get(name)}; {again}"
            )
    for size in sizes:
        if size not in metadata.get("corpus_sizes", ()):
            raise InputError(f"{path}: corpus_sizes: no reference over {size} prompts; {again}")
    for layer in layers:
        if (recorded := metadata["files"].get(str(layer))) is None:
            raise InputError(
                f"{path}: layers: no exact reference of layer {layer}; choose from {', '.join(metadata['files'])}, "
                "or set estimator.reference_layers to all and run stage A again"
            )
        reference = inputs.paths.reference(layer)
        if sha256_file(reference) != recorded:
            raise InputError(
                f"{reference}: is not the file stage A wrote; restore it with `dvc checkout`, or run stage A again"
            )
