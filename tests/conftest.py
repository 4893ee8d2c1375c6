"""Test-wide settings: one thread a worker, derandomized property tests, float64 generators."""

import os
from pathlib import Path

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("posquad", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("posquad")
torch.set_num_threads(1)
pytest.register_assert_rewrite(
    "browser_support",
    "cli_support",
    "conformance",
    "drawing_support",
    "experiments_support",
    "support",
    "tables_support",
)


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(20_260_701)


@pytest.fixture
def calls(monkeypatch) -> list:
    """Make experiments 5 and 6 return at once; list which were run, with which parameters."""
    from experiments_support import stand_in  # not needed by the other tests
    from posquad.experiments.registry import EXPERIMENTS

    noted: list = []
    for key in ("exp5", "exp6"):
        monkeypatch.setitem(EXPERIMENTS, key, stand_in(key, noted))
    return noted


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium, or a skip where there is none and none was promised."""
    from browser_support import launched  # playwright is not needed by the other tests

    with launched() as chromium:
        yield chromium


@pytest.fixture(scope="session")
def fits(tmp_path_factory):
    """Every example fitted as its command says: the result of the command and its folder."""
    from cli_support import command  # click is not needed by the other tests
    from posquad.cli.demo_data import DEMOS

    folder = tmp_path_factory.mktemp("fits")
    made = {}
    before = Path.cwd()
    os.chdir(folder)
    try:
        for name in DEMOS:
            told = command("demo", name)
            assert told.exit_code == 0, told.output
            words = told.stdout.splitlines()[-1].removeprefix("Next: posquad ").split()
            made[name] = command(*words, "--out", f"{name}-fit"), folder / f"{name}-fit"
    finally:
        os.chdir(before)
    return made


def pytest_make_parametrize_id(val: object) -> str | None:
    """File contents by their size: zip archives hold the time, and names must not change."""
    return f"{len(val)}-bytes" if isinstance(val, bytes) else None
