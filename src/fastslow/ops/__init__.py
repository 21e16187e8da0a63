"""Parts of a training step as kernels of our own on a CUDA device: used inside ``with fused():`` and nowhere else.

``fs.Trainer`` enters it around its forward pass. Anybody else's loop, double backward, ``vmap``, ``torch.compile`` and
tracing see plain torch. Each operation has conditions, is compared with torch once on the device before its first use,
and leaves what it doesn't take to torch.
"""

from __future__ import annotations

from .ahead import BitsAhead as BitsAhead
from .conv import conv2d as conv2d
from .norm import norm_act as norm_act
from .plain import fused as fused
from .quantize import binary_weight as binary_weight
from .switch import is_fused as is_fused
