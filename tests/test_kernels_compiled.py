"""What processes that compile at once keep for each other."""

import threading

from numba.core.caching import IndexDataCacheFile

import hdvpd.kernels.compiled  # noqa: F401, changes how numba keeps functions

_FORMS, _ROUNDS = 4, 20


def test_forms_kept_at_once_are_each_found_again(tmp_path):
    """Each thread stands for a process: it has opened the folder by itself."""
    for number in range(_ROUNDS):
        start = threading.Barrier(_FORMS)

        def keep(form, number=number, start=start):
            file = IndexDataCacheFile(str(tmp_path), f"function{number}", "stamp")
            start.wait()
            file.save(form, f"code of {form}")

        threads = [threading.Thread(target=keep, args=(form,)) for form in range(_FORMS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        file = IndexDataCacheFile(str(tmp_path), f"function{number}", "stamp")
        assert [file.load(form) for form in range(_FORMS)] == [
            f"code of {form}" for form in range(_FORMS)
        ]
