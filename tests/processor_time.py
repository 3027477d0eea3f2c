"""Processor seconds of tests, which do not depend on what else runs: shown where durations are.

A test is charged with the fixtures and the shared programs that it is the first to need, and with
the processes that it waits for.
"""

import os
from collections import Counter
from collections.abc import Generator

import pytest

NAME = "processor_s"
_last = sum(os.times()[:4])


def pytest_collection_finish() -> None:
    """Charge no test with the collecting of all."""
    global _last
    _last = sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write what was used since the last report into this one, of a set-up, call or tear-down."""
    global _last
    report = yield
    now = sum(os.times()[:4])
    report.user_properties = [*report.user_properties, (NAME, now - _last)]
    _last = now
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests that took most."""
    number = terminalreporter.config.getoption("durations")
    if number is None:
        return
    used: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, seconds in getattr(report, "user_properties", ()):
                used[report.nodeid] += seconds if name == NAME else 0
    files: Counter[str] = Counter()
    for test, seconds in used.items():
        files[test.split("::")[0]] += seconds
    terminalreporter.section(f"processor time: {sum(used.values()):.0f} s in tests")
    for counter in (files, used):
        for name, seconds in counter.most_common(number or None):
            terminalreporter.write_line(f"{seconds:8.1f} s {name}")
