"""What all tests share: one thread, torch left as it was found, and reasons for what cannot run here."""

import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# The same examples in every run: a failure can be repeated, and none comes and goes.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")

torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="this machine has no CUDA device"))


@pytest.fixture(autouse=True)
def torch_as_it_was():
    """Undo what a test, or the training that it starts, sets for the whole process."""
    dtype, deterministic = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    threads, generator = torch.get_num_threads(), torch.get_rng_state()
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(dtype)
    torch.use_deterministic_algorithms(deterministic)
    torch.set_num_threads(threads)
    torch.set_rng_state(generator)


@pytest.fixture
def double():
    """float64 as the default for one test."""
    torch.set_default_dtype(torch.float64)


@pytest.fixture
def real_data() -> Path:
    root = os.environ.get("EBMBOUNDS_DATA")
    if not root:
        pytest.skip("EBMBOUNDS_DATA does not name a folder with the real data sets")
    return Path(root)


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command line in this process: (exit code, standard output, standard error)."""

    from ebmbounds import cli  # which takes seconds

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["ebmbounds", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="session")
def chromium():
    """Debian's chromium, driven; a test opens pages in it and asks for `errors`, what its console has complained of."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not program or not driver:
        pytest.skip("chromium and chromedriver are not installed (Debian: chromium, chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,900"):
        options.add_argument(flag)
    if os.geteuid() == 0:  # chromium's sandbox does not run for root
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    browser.errors = lambda: [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    yield browser
    browser.quit()
