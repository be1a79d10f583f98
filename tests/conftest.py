"""Fixtures that several files share."""

from __future__ import annotations

import pytest
import serving


@pytest.fixture(scope="session")
def serve() -> serving.Serve:
    """Serves requests on a server whose steps take one second (`serving.run`)."""
    return serving.run
