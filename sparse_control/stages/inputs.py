"""What every stage opens: the model, the corpus, the paths, and the key of work begun with them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparse_control.corpus import Corpus, load_corpus
from sparse_control.errors import InputError
from sparse_control.files import read_json, sha256_file, sha256_json
from sparse_control.models import LanguageModel, load_model
from sparse_control.records.paths import ModelPaths, stages_code_sha256
from sparse_control.settings import Settings
from sparse_control.stages.checkpoint import Key
from sparse_control.stages.nulls import as_null
from sparse_control.threads import pin_threads


@dataclass(frozen=True, eq=False)
class Inputs:
    """Attributes:
    lm: the model, or its null.
    windows: the corpus, or its null.
    paths: where the files of this model, or of its null, are.
    key: what unfinished work depends on.
    """

    lm: LanguageModel
    windows: Corpus
    paths: ModelPaths
    key: Key


def open_inputs(corpus: Path, root: Path, settings: Settings) -> Inputs:
    """Load what a stage needs and check the settings against it.

    Raises:
        InputError: a model not fetched, a corpus that is broken, ranks or layers that do not fit the model.
    """
    pin_threads(settings.threads)
    lm = load_model(settings.model, dtype=settings.dtype)
    settings.check_width(lm.width, lm.n_layers)
    lm, windows = as_null(lm, load_corpus(corpus), settings)
    key = {
        "model": lm.name,
        **lm.identity.parts,
        "corpus": windows.sha256,
        "null": settings.null,
        "settings": sha256_json(settings.model_dump(exclude={"protocol", "preset", "model", "dtype", "null"})),
        "code": stages_code_sha256(),
    }
    return Inputs(lm, windows, ModelPaths(root, lm.name, settings.null), key)


def source_metadata(inputs: Inputs, settings: Settings) -> dict[str, Any]:
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
        "null": settings.null,
        "versions": provenance["versions"],
    }


def check_references(inputs: Inputs, sizes: Sequence[int], layers: Sequence[int]) -> None:
    """Refuse exact references that are not those of this model and corpus, as stage A left them.

    Args:
        sizes: corpus sizes that are needed.
        layers: source layers that are needed.

    Raises:
        InputError: references that are missing, changed, or made from another model, corpus or null.
    """
    path = inputs.paths.reference_metadata
    if not path.is_file():
        raise InputError(f"{path}: no exact references; run stage A first (run official-iss)")
    metadata = read_json(path)
    found = metadata.get("key") if isinstance(metadata, dict) else None
    if not isinstance(found, dict) or not isinstance(metadata.get("files"), dict):
        raise InputError(f"{path}: key: is missing; run stage A again (run official-iss)")
    for name in sorted({*found, *inputs.key} - {"settings", "code"}):
        if found.get(name) != inputs.key.get(name):
            raise InputError(
                f"{path}: {name}: references were made with {found.get(name)}, now {inputs.key.get(name)}; "
                "run stage A again (run official-iss)"
            )
    for size in sizes:
        if size not in metadata.get("corpus_sizes", ()):
            raise InputError(
                f"{path}: corpus_sizes: no reference over {size} prompts; run stage A again (run official-iss)"
            )
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
