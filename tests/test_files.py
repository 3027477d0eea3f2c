import errno
import os
from pathlib import Path

import pytest

from hdvpd.basics import files
from hdvpd.basics.errors import UserError


def test_content_is_replaced_and_nothing_else_is_left(tmp_path):
    file = tmp_path / "page.html"
    files.write(file, "erst å\n", "Free space.")
    files.write(file, b"\x00second", "Free space.")
    assert file.read_bytes() == b"\x00second"
    files.replace(file, "å")
    assert file.read_text(encoding="utf-8") == "å"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_failure_keeps_the_old_content_and_names_file_reason_and_remedy(
    tmp_path, monkeypatch, fails
):
    file = tmp_path / "page.html"
    file.write_text("old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if fails == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UserError) as caught:
        files.write(file, "new", "Free space and begin again.")
    message = f"Could not write {file}: No space left on device. Free space and begin again."
    assert str(caught.value) == message
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_only_failures_of_the_system_are_explained():
    with (
        pytest.raises(UserError, match=r"episode 3: No space left on device\. Free"),
        files.explain_write_errors("episode 3", "Free space."),
    ):
        raise ValueError("RESOURCE_EXHAUSTED: writing failed [os_error_code='28']")
    with (
        pytest.raises(ValueError, match="shapes differ"),
        files.explain_write_errors("episode 3", "Free space."),
    ):
        raise ValueError("shapes differ")


@pytest.mark.parametrize("changing", [False, True])
def test_a_lock_that_cannot_be_had_ends_with_a_message(tmp_path, monkeypatch, changing):
    monkeypatch.setattr(files, "_PAUSE_S", 0)
    place = tmp_path if changing else Path("/proc")  # where no file can be made
    if changing:  # as on a disk that gives a file another number every time
        monkeypatch.setattr(os.path, "samestat", lambda *_: False)
    message = rf"Could not write {place}: .*\. Go elsewhere\."
    with (
        pytest.raises(UserError, match=message),
        files.locked(place / ".lock-x", "in use", "Go elsewhere."),
    ):
        pass
