"""Tests that need an extra: skipped where it is missing, failed where it should be installed."""

import re
from types import ModuleType

import pytest

EXTRAS = {
    "mujoco": "sim",
    "gymnasium": "gym",
    "h5py": "import",
    "pyarrow": "import",
    "pyarrow.parquet": "import",
    "open3d": "open3d",
    "pykeops": "keops",
    "tensorboardX": "tensorboard",
    "tensorboardX.proto.event_pb2": "tensorboard",
    "viser": "view",
    "rerun": "rerun",
    "playwright.sync_api": "dev",
    "localbucket": "dev",
    "sklearn.datasets": "vision",
    "torch_geometric": "graphs",
}
"""By module that a test imports, the extra that brings it."""


def needed(module: str) -> ModuleType:
    """Import a module of an extra; without it, skip the test or the file."""
    return pytest.importorskip(module, reason=reason(EXTRAS[module]), exc_type=ImportError)


def reason(extra: str, why: str = "") -> str:
    """Return the reason of a skip for want of an extra, or of a part of it."""
    return f"needs the extra '{extra}'{why and ': '}{why}"


# Hooks of pytest: conftest.py names this file as a plugin.


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--extras",
        default="",
        metavar="A,B",
        help="extras that are installed: skipping a test for want of one is a failure (make test)",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    return _failed_if_installed((yield), item.config)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    return _failed_if_installed((yield), collector.config)


def _failed_if_installed(report, config: pytest.Config):
    if report.skipped and isinstance(report.longrepr, tuple):
        file, line, text = report.longrepr
        missing = re.search(r"needs the extra '(\w+)'", text)
        if missing and missing[1] in config.getoption("--extras").split(","):
            report.outcome = "failed"
            report.longrepr = f"{file}:{line}: {text}, which --extras says is installed"
    return report
