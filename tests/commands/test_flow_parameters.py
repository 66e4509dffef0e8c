"""Parameters are checked once, by whoever was given them, and every flow has the sections it reads."""

import inspect
from importlib import import_module

import pytest

pytest.importorskip("prefect")

from flows.parameters import USES, checked_run
from sparse_control.commands.measure import run

FLOWS = USES.keys()


def test_every_flow_has_a_command_and_every_command_a_flow():
    assert set(run.commands) - {"generate"} == set(FLOWS)


@pytest.mark.parametrize(("module", "name"), [("flows.official_iss", "official_iss"), ("flows.six_axis", "six_axis")])
def test_a_deployed_flow_takes_what_is_checked(module, name):
    own = {"flow", "narrowed", "accept_code", "facts", "prompts"}
    checked = set(inspect.signature(checked_run).parameters) - own
    assert checked <= set(inspect.signature(getattr(import_module(module), name).fn).parameters)
