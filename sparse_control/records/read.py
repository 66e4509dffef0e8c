"""Every record of a root, by model: what tables, figures and checks are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparse_control.records.jacobian_iss import IssRecords
from sparse_control.records.six_axis import Measurement


@dataclass(frozen=True, kw_only=True)
class ModelRecords:
    """What was measured on one model; what was not is empty."""

    name: str  # as records call it
    six_axis: tuple[Measurement, ...] = ()
    iss: IssRecords = field(default_factory=IssRecords)
    nulls: Mapping[str, IssRecords] = field(default_factory=dict)  # name of the null -> its records


@dataclass(frozen=True, kw_only=True)
class Records:
    """Everything the tables are made of."""

    models: tuple[ModelRecords, ...] = ()  # those of the registry first, in its order, then the others by name
    published: Mapping[str, Any] = field(default_factory=dict)  # paper/published.yaml
