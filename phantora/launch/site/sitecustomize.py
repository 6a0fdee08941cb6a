"""Runs at the start of every Python under ``phantora trace -- COMMAND``, before the script."""

import importlib.machinery
import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))


def _run_the_other() -> None:
    """The sitecustomize that this one hides, if there is one."""
    paths = [path for path in sys.path if os.path.abspath(path) != _here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _join() -> None:
    if not all(name in os.environ for name in ("PHANTORA_SESSION", "RANK", "WORLD_SIZE")):
        return
    root = os.path.dirname(os.path.dirname(os.path.dirname(_here)))
    if importlib.util.find_spec("phantora") is None:  # run from a checkout
        sys.path.append(root)
    from phantora.launch.hook import join

    join()


_run_the_other()
_join()
