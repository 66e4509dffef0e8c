"""Prefect flows: the order of the tasks, no arithmetic."""

import tasks  # noqa: F401  settles Prefect's environment before any flow imports it
