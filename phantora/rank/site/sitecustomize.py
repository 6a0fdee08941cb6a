"""Runs at the start of every Python under ``phantora trace -- COMMAND``, and of those that ranks start."""

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))


def _run_the_other() -> None:
    """The sitecustomize that this one hides, if there is one."""
    paths = [path for path in sys.path if os.path.abspath(path) != _here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _find_phantora() -> None:
    if importlib.util.find_spec("phantora") is None:  # run from a checkout
        sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(_here))))


_USERS = {"torch", "cupy", "cupy_backends", "cuda.bindings", "cuda.core", "numba.cuda", "numba_cuda", "pynvml"}
"""Packages that load NVIDIA's libraries."""


class _Users(importlib.abc.MetaPathFinder):
    """Puts the stubs in place when the first of these is imported; a process that does without them is left alone."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name not in self._names:
            return None
        sys.meta_path.remove(self)
        _find_phantora()
        from phantora.rank.hook import see

        return see().find_spec(name, path, target)


def _end(process: int) -> None:
    if os.getpid() == process:  # no fork of it
        _find_phantora()
        from phantora.rank import front_end

        front_end.note_clock()


def _join() -> None:
    given = json.loads(os.environ.get("PHANTORA_RANK") or "{}")  # a RankSpec of phantora/spec.py
    if not given.get("session"):
        return
    started = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    taken = given["joined"] or str(given["place"]) == os.environ.get("RANK")
    if started and not taken:
        _find_phantora()
        from phantora.rank.hook import join

        join()
        return
    if given["joined"]:
        sys.meta_path.insert(0, _Users(_USERS))
        return
    script = sys.argv[0] if sys.argv else ""
    if "-packages" + os.sep in script and not script.endswith("default_worker.py"):
        sys.meta_path.insert(0, _Users(_USERS))
        return
    _find_phantora()
    from phantora.rank import front_end

    atexit.register(_end, os.getpid())
    if importlib.util.find_spec("torch") is None:  # a launcher of its own
        sys.meta_path.insert(0, _Users(_USERS))
    elif front_end.reads_clock():
        from phantora.rank.hook import see

        see()
    else:
        sys.meta_path.insert(0, _Users(_USERS | {"ray"}))


_run_the_other()
_join()
