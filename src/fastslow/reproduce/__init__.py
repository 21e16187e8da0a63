"""The resumable grid: recipes as a list of runs, several side by side, one small JSON for each in ``results/``."""

from .grid import Grid as Grid
from .grid import Outcome as Outcome
from .plan import PlannedRun as PlannedRun
from .plan import plan as plan
