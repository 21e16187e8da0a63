"""Methods: how a gradient passes the binarizer. One published method, one entry of the registry."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from ..registry import Registry
from .base import Driver as Driver
from .base import Method as Method
from .base import Slot as Slot
from .fsg import FSG, FSGCode, FSGLstm, FSGWeight
from .metaquant import LSTMFC, FCGrad, MultiFC
from .ste import STE


@dataclass(frozen=True)
class MethodInfo:
    """A method as ``fastslow methods`` prints it."""

    name: str
    family: str
    paper: str
    summary: str
    cls: type[Method]


METHODS: Registry[MethodInfo] = Registry("method")


def register_method(cls: type[Method], *, family: str, paper: str, summary: str) -> None:
    """Make a method known by its name, for :func:`fastslow.binarize_` and the command line."""
    METHODS.add(cls.name, MethodInfo(cls.name, family, paper, summary, cls))


def get_method(method: str | Method, **fields: object) -> Method:
    """A method by name with some of its fields changed, or the object itself."""
    if isinstance(method, Method):
        return dataclasses.replace(method, **fields) if fields else method
    check_fields(method, fields)
    return METHODS[method].cls(**fields)


def check_fields(method: str, fields: Mapping[str, object]) -> None:
    """Refuse fields that the method doesn't have, naming those it has."""
    known = [field.name for field in dataclasses.fields(METHODS[method].cls)]
    for name in fields:
        if name not in known:
            raise ValueError(f"{method} has no field {name!r}; its fields: {', '.join(known) or 'none'}")


def list_methods() -> list[MethodInfo]:
    """Every registered method."""
    return list(METHODS.values())


_FSG = "Chen et al., AAAI 2025"
_METAQUANT = "Chen, Wang, Pan, NeurIPS 2019"
register_method(
    STE,
    family="surrogate",
    paper="Bengio et al. 2013; Zhou et al. 2016",
    summary="straight-through estimator on the tanh pre-processing: g * C",
)
register_method(
    FCGrad, family="learned", paper=_METAQUANT, summary="two linear layers map g to the gradient: a learned scalar"
)
register_method(
    MultiFC, family="learned", paper=_METAQUANT, summary="three linear layers on What scale g: k * What * g"
)
register_method(LSTMFC, family="learned", paper=_METAQUANT, summary="an LSTM on What, state carried, scales g")
register_method(FSG, family="learned", paper=_FSG, summary="fast-net + Mamba slow-net over the concatenated history")
register_method(
    FSGCode, family="learned", paper=_FSG, summary="FSG as the authors' public code has it: fast part registered"
)
register_method(FSGLstm, family="learned", paper=_FSG, summary="FSG with an LSTM slow-net, one sequence a weight")
register_method(
    FSGWeight, family="learned", paper=_FSG, summary="FSG on each weight's own history, in units of the layer's RMS"
)
