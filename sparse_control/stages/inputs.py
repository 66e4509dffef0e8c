"""What every stage opens: the model, the corpus, the output tree, and the key of work begun with them."""

from dataclasses import dataclass
from pathlib import Path

import torch

from sparse_control.corpus import Corpus, load_corpus
from sparse_control.files import sha256_json
from sparse_control.models import LanguageModel, load_model
from sparse_control.settings import Settings
from sparse_control.stages.checkpoint import Key
from sparse_control.stages.nulls import as_null
from sparse_control.stages.tree import Tree, stages_code_sha256


@dataclass(frozen=True, eq=False)
class Inputs:
    """Attributes:
    lm: the model, or its null.
    windows: the corpus, or its null.
    tree: where files of this model stand.
    key: what unfinished work depends on.
    """

    lm: LanguageModel
    windows: Corpus
    tree: Tree
    key: Key


def open_inputs(corpus: Path, root: Path, settings: Settings) -> Inputs:
    """Load what a stage needs and check the settings against it.

    Raises:
        InputError: a model not fetched, a corpus that is broken, ranks or layers that do not fit the model.
    """
    torch.set_num_threads(settings.threads)
    lm = load_model(settings.model, dtype=settings.dtype)
    settings.check_width(lm.width, lm.n_layers)
    lm, windows = as_null(lm, load_corpus(corpus), settings)
    key = {
        "model": lm.name,
        "weights": str(lm.provenance.get("weights_sha256")),
        "tokenizer": str(lm.provenance.get("tokenizer_sha256")),
        "dtype": settings.dtype,
        "corpus": windows.sha256,
        "null": settings.null,
        "settings": sha256_json(settings.model_dump(exclude={"protocol", "preset", "model", "dtype", "null"})),
        "code": stages_code_sha256(),
    }
    return Inputs(lm, windows, Tree(root, lm.name), key)
