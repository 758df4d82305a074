"""A scheduler by itself: ticks, promotes and sweeps for a store, and runs no job."""

from shigoto.scheduler.health import Health
from shigoto.scheduler.scheduler import Ended, Scheduler
from shigoto.worker.tally import Figures, Rates, ScheduleFigures, Spread

__all__ = ["Ended", "Figures", "Health", "Rates", "ScheduleFigures", "Scheduler", "Spread"]
