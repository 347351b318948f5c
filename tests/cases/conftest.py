"""The cases draw the same delays in every run."""

import pytest


@pytest.fixture(autouse=True)
def _same_jitter(same_jitter: None) -> None:
    """See tests/conftest.py."""
