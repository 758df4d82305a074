"""One file for each experiment: `EXPERIMENT`, or `EXPERIMENTS` if a file has several."""

import importlib
import pkgutil

from faults.experiment import Experiment


def all_experiments() -> dict[str, Experiment]:
    """Those of every file in this folder, by id."""
    found: list[Experiment] = []
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        loaded = importlib.import_module(f"{__name__}.{module.name}")
        found += getattr(loaded, "EXPERIMENTS", None) or [loaded.EXPERIMENT]
    return {experiment.id: experiment for experiment in sorted(found, key=lambda each: each.id)}
