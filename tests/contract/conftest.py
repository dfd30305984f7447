"""Which backends there are to be held to the contract, and what its tests share."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract_game import NEEDS, Bench
from contract_pairs import PAIRS


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Bundles, references and open pairs. Where a directory is named, bundles stay there for the next run."""
    kept = os.environ.get("EAGLE3CHAT_CONTRACT_BUNDLES")
    made = Bench(Path(kept) if kept else tmp_path_factory.mktemp("contract"))
    yield made
    made.close()


@pytest.fixture(params=NEEDS)
def kind(request: pytest.FixtureRequest) -> str:
    """A backend by name; skipped where its library is not installed."""
    for module in NEEDS[request.param]:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    return str(request.param)


@pytest.fixture(params=PAIRS)
def family(request: pytest.FixtureRequest) -> str:
    """A target family."""
    return str(request.param)
