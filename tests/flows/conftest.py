import pytest


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory):
    """One server for all flow tests, with a database and result storage of its own."""
    from prefect.settings import PREFECT_LOCAL_STORAGE_PATH, PREFECT_TASKS_REFRESH_CACHE, temporary_settings
    from prefect.testing.utilities import prefect_test_harness

    import tasks  # noqa: F401  settles the environment before Prefect reads it

    storage = tmp_path_factory.mktemp("prefect-results")
    with prefect_test_harness(server_startup_timeout=120):
        with temporary_settings({PREFECT_LOCAL_STORAGE_PATH: storage, PREFECT_TASKS_REFRESH_CACHE: False}):
            yield storage
