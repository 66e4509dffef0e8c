"""The two nulls: a corpus without word order, and a model without its training. Everything else stays as it is."""

import hashlib
from dataclasses import replace

import numpy as np
import torch

from sparse_control.corpus import Corpus
from sparse_control.errors import UnsupportedModel
from sparse_control.models import LanguageModel
from sparse_control.seeds import stream
from sparse_control.settings import Settings


def shuffled_tokens(corpus: Corpus, seed: int) -> Corpus:
    """The corpus with the tokens of every window in random order."""
    draws = stream(seed, "null", "jacobian", "shuffled_tokens")
    return replace(corpus, input_ids=draws.permuted(corpus.input_ids, axis=1))


@torch.no_grad()
def redraw_weights(lm: LanguageModel, seed: int) -> LanguageModel:
    """Replace every weight matrix by normal draws of its own mean square, in place; vectors (norms, biases) stay.

    Raises:
        UnsupportedModel: a matrix is still what it was, so that the null would be the model itself.
    """
    digest = hashlib.sha256()
    for name, parameter in lm.model.named_parameters():
        if parameter.ndim < 2:
            continue
        before = parameter.detach().clone()
        draws = stream(seed, "null", name, "redrawn_weights").standard_normal(tuple(parameter.shape), dtype=np.float32)
        scale = float(before.double().square().mean().sqrt())
        parameter.copy_(torch.from_numpy(draws).mul_(scale))
        if scale == 0 or torch.equal(parameter, before):
            raise UnsupportedModel(f"{lm.name}: weights {name!r} did not change when redrawn")
        digest.update(name.encode() + draws.tobytes())
    provenance = lm.provenance | {"redrawn_weights": {"seed": seed, "sha256": digest.hexdigest()}}
    return replace(lm, provenance=provenance)


def as_null(lm: LanguageModel, corpus: Corpus, settings: Settings) -> tuple[LanguageModel, Corpus]:
    """Model and corpus as the settings' null has them; unchanged for `none`."""
    if settings.null == "shuffled_tokens":
        return lm, shuffled_tokens(corpus, settings.corpus.seed)
    if settings.null == "redrawn_weights":
        return redraw_weights(lm, settings.corpus.seed), corpus
    return lm, corpus
