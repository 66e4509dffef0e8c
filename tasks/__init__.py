"""Prefect tasks around the stages: caching and receipts, no arithmetic. Importing it settles Prefect's environment."""

from tasks.environment import settle

settle()
