from __future__ import annotations

from pathlib import Path

import pytest

from spotwise.engine.engine import Engine
from tests.unit.engine.tiny_models import llama_config, load_engine, save_model


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(llama_config(), tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture
def engine(llama_folder: Path) -> Engine:
    return load_engine(llama_folder)
