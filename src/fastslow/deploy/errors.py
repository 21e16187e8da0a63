"""What can go wrong with a packed model."""

from __future__ import annotations


class FormatError(ValueError):
    """A packed file that is damaged, of another version, or not what its header claims."""


class UnsupportedLayerError(ValueError):
    """A model that holds something which a packed file can't express; the message names it and what to use instead."""


class BackendError(RuntimeError):
    """A backend that was asked for but isn't available on this machine."""
