"""Hand-computed values of every axis, from tests/cases/metrics.json."""

import json
import math
from pathlib import Path

import pytest

from sparse_control.metrics.dose import signed_spearman
from sparse_control.metrics.feedback import endpoint_metrics
from sparse_control.metrics.preservation import kl_divergence, preservation_summary
from sparse_control.metrics.reachability import rel_tar
from sparse_control.metrics.reuse import mcqa_recovery
from sparse_control.metrics.reversal import reversal_metrics

CASES = json.loads((Path(__file__).parent.parent / "cases" / "metrics.json").read_text())

CALLS = {
    "rel_tar": lambda c: {"value": rel_tar(c["source"], c["target"], c["patched"])},
    "reversal": lambda c: reversal_metrics(c["source"], c["target"], c["reversed"]),
    "dose": lambda c: {"rho": signed_spearman(c["doses"], c["progress"])},
    "feedback": lambda c: endpoint_metrics(
        **{name: c[name] for name in ("target", "terminal_margin", "initial_margin", "tolerance")}
    ),
    "preservation": lambda c: preservation_summary(c["kl_values"], c["seed_ids"]),
    "kl_divergence": lambda c: {"value": kl_divergence(c["p"], c["q"])},
    "reuse": lambda c: {"value": mcqa_recovery(c["source"], c["target"], c["patched"])},
}
INPUTS = {
    "source", "target", "patched", "reversed", "doses", "progress", "terminal_margin", "initial_margin",
    "kl_values", "seed_ids", "p", "q", "raises",
}  # fmt: skip


def _numbers(value):
    if isinstance(value, list):
        return [_numbers(part) for part in value]
    return float(value) if value in ("nan", "inf", "-inf") else value


def _flat():
    return [(axis, number, case) for axis in CALLS for number, case in enumerate(CASES[axis])]


def test_every_axis_of_the_file_is_run():
    assert set(CASES) - {"about"} == set(CALLS)


@pytest.mark.parametrize("axis, number, case", _flat(), ids=[f"{axis}-{number}" for axis, number, _ in _flat()])
def test_case(axis, number, case):
    case = {name: value if "note" in name else _numbers(value) for name, value in case.items()}
    if "raises" in case:
        with pytest.raises(ValueError, match="|".join(INPUTS)):
            CALLS[axis](case)
        return
    result = CALLS[axis](case)
    tolerance = 1e-12 if axis == "feedback" else case.get("tolerance", 1e-12)
    outcomes = {name: value for name, value in case.items() if name not in INPUTS and "note" not in name}
    if axis in ("feedback", "preservation"):
        outcomes.pop("tolerance", None)
    assert outcomes
    for name, expected in outcomes.items():
        if isinstance(expected, float):
            assert type(result[name]) is float
            if math.isnan(expected):
                assert math.isnan(result[name])
            else:
                assert result[name] == pytest.approx(expected, rel=tolerance, abs=0)
        else:
            assert result[name] == expected
