"""Studies of a random model with random pairs, in place of a named model and the panels."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import pytest

from sparse_control.models import LanguageModel
from sparse_control.protocol import fitting, gate, stored, study
from sparse_control.protocol.panels import Draw
from sparse_control.protocol.preservation import OffTargetPanel
from sparse_control.protocol.prompts import read_prompts
from sparse_control.records.six_axis import RecordKey
from sparse_control.settings import Settings, load_settings
from tests.support.pairs import make_pairs
from tests.support.tiny import prompt, tiny_model

PARAMS = Path(__file__).parents[2] / "params.yaml"
_SECTIONS: dict[tuple, dict] = {}


def small_settings(**protocol) -> Settings:
    """The smoke preset with four pairs and two seeds, and some fields changed."""
    base = load_settings(PARAMS)
    counts = base.protocol.pairs.model_copy(update={"fit": 4, "evaluate": 4, "reuse": 4})
    small = {
        "pairs": counts, "minimum_gap": 0.0, "minimum_pairs": 1, "effects_check": 3, "seeds": [0, 1],
        "random_supports": 3,
    }  # fmt: skip
    return base.model_copy(update={"threads": 1, "protocol": base.protocol.model_copy(update=small | protocol)})


@lru_cache
def _shared_model() -> LanguageModel:
    lm = tiny_model()
    lm.provenance.update(lm.identity.as_provenance())
    return lm


@contextmanager
def tiny_studies(patch: pytest.MonkeyPatch, *, computed: bool = False) -> Iterator[list[RecordKey]]:
    """Within the context studies are of a tiny model; the list grows by the key of every record that is measured.

    Args:
        patch: undone by the caller.
        computed: every record is; else the sections of a record that was measured before in this process, of the same
            model and settings, are taken from there, for tests of files that do not care how they came about.
    """
    lm = _shared_model()
    measured: list[RecordKey] = []

    def pairs(task, _lm, split, n, seed, _sources):
        return Draw(make_pairs(n, first=100 * ("fit", "evaluate", "reuse").index(split) % 37 + seed), "own", 1)

    def off_target_at(_shared, sites):
        return OffTargetPanel(("a", "b"), read_prompts(lm, [prompt(8).tolist()] * 2, sites))

    inner = study.record_sections

    def sections(shared, key):
        measured.append(key)
        if computed:
            return inner(shared, key)
        of = (shared.lm.identity.sha256, shared.protocol.model_dump_json(exclude={"seeds", "selectors"}), key)
        if of not in _SECTIONS:
            _SECTIONS[of] = inner(shared, key)
        return copy.deepcopy(_SECTIONS[of])

    patch.setattr(study, "_model", lambda name, dtype: lm)
    patch.setattr(stored, "model_identity", lambda name, dtype: lm.identity)
    patch.setattr(stored, "model_label", lambda name: lm.name)
    patch.setattr(gate, "draw_pairs", pairs)
    patch.setattr(fitting.Fitting, "off_target_at", off_target_at)
    patch.setattr(study, "record_sections", sections)
    if computed:
        study._fitting.cache_clear()
    try:
        yield measured
    finally:
        if computed:
            study._fitting.cache_clear()
