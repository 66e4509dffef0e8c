"""Internal State Stability: the score, its uncertainty, and the facts it is measured on."""

from sparse_control.iss.fact_files import read_facts
from sparse_control.iss.score import internal_state_stability
from sparse_control.iss.uncertainty import relation_bootstrap

__all__ = ["internal_state_stability", "read_facts", "relation_bootstrap"]
