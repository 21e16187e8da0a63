"""Packed models: one bit a weight on disk, and an engine that needs numpy and safetensors only.

``pack``, ``sizes`` and ``trace`` need torch; they are imported when they are used.
"""

from __future__ import annotations

from .engine import Engine as Engine
from .engine import available_backends as available_backends
from .engine import load_packed as load_packed
from .errors import BackendError as BackendError
from .errors import FormatError as FormatError
from .errors import UnsupportedLayerError as UnsupportedLayerError
from .format import PackedModel as PackedModel
from .header import Info as Info
from .ready import shipped as shipped
