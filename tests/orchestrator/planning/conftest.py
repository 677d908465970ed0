"""The shipped catalog, read once for the tests of plans."""

import pytest

from orchestrator.catalog import Catalog, load_catalog


@pytest.fixture(scope="package")
def catalog() -> Catalog:
    return load_catalog()
