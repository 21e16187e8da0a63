"""Trackers that people already use, fed by the training loop: TensorBoard, W&B, MLflow. All are extras."""

from __future__ import annotations

from .base import TRACKERS as TRACKERS
from .base import Tracker as Tracker
from .base import parse_trackers as parse_trackers
from .sink import TrackerSink as TrackerSink
from .sink import tracked_before as tracked_before
