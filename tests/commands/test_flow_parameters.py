"""Every flow takes what its command hands on."""

import inspect
from importlib import import_module

import pytest

pytest.importorskip("prefect")

WHERE = {"preset", "model", "root", "dask", "wait"}


@pytest.mark.parametrize(
    "module, name, own",
    [
        ("flows.official_iss", "official_iss", {"accept_code"}),
        ("flows.experiments", "experiment_a", set()),
        ("flows.experiments", "experiment_b", set()),
        ("flows.experiments", "experiment_c", set()),
        ("flows.experiments", "experiment_d", {"accept_code"}),
        ("flows.experiments", "nulls", set()),
        ("flows.experiments", "alternatives", set()),
        ("flows.six_axis", "six_axis", {"tasks", "selectors", "conditions", "seeds", "mmlu", "xstest"}),
    ],
)
def test_flows_take_the_parameters_of_their_commands(module, name, own):
    assert WHERE | own <= set(inspect.signature(getattr(import_module(module), name).fn).parameters)
