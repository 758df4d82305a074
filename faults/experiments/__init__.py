"""One file for each experiment, which is its `EXPERIMENT`."""

import importlib
import pkgutil

from faults.experiment import Experiment


def all_experiments() -> dict[str, Experiment]:
    """Those of every file in this folder, by id."""
    modules = [
        importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)
    ]
    found: list[Experiment] = [module.EXPERIMENT for module in modules]
    return {experiment.id: experiment for experiment in sorted(found, key=lambda each: each.id)}
