"""One row a method: what ``fastslow methods`` prints and ``docs/methods.md`` is made of."""

from __future__ import annotations

from dataclasses import dataclass

from .adabin import AdaBin
from .base import Method
from .binaryconnect import BinaryConnect
from .bnn import BNN
from .bop import Bop
from .dorefa import DoReFaNet
from .fda import FDA
from .fsg import FSG, FSGCode, FSGLstm, FSGWeight
from .fsg_plus import FSGPlus
from .irnet import IRNet
from .mcdonnell import McDonnell
from .metaquant import LSTMFC, FCGrad, MultiFC
from .mirror import Mirror
from .proxquant import ProxQuant
from .quantnet import QuantNet
from .rbnn import RBNN
from .recu import ReCU
from .reste import ReSTE
from .ste import STE
from .surge import Surge
from .xnor import BWN, XNOR


@dataclass(frozen=True)
class MethodInfo:
    """A method as it is listed. ``family`` is surrogate, learned, or own update (an optimizer of its own)."""

    name: str
    family: str
    paper: str
    summary: str
    cls: type[Method]
    formula: str = ""
    cost: str = ""
    choose: str = ""


def _row(cls: type[Method], family: str, paper: str, summary: str, *more: str) -> MethodInfo:
    return MethodInfo(cls.name, family, paper, summary, cls, *more)


_FSG = "Chen et al., AAAI 2025"
_METAQUANT = "Chen, Wang, Pan, NeurIPS 2019"
_FREE = "that of the float network"
_U = "U = (1 - beta) C M_f(g, What) + beta M_s([LRE; h]);  W~ = W - eta U"

ROWS = (
    _row(
        STE,
        "surrogate",
        "Bengio et al. 2013; Zhou et al. 2016",
        "straight-through estimator on the tanh pre-processing: g * C",
        "Wb = Q(A(W));  dL/dW = g C(W),  C = (1 - tanh(W)^2) / max|tanh W|",
        _FREE,
        "first, always: with Adam and a good learning rate it is hard to beat",
    ),
    _row(
        BinaryConnect,
        "surrogate",
        "Courbariaux, Bengio, David, NeurIPS 2015",
        "plain sign, the unchanged gradient, latent weights clipped to [-1, 1]",
        "Wb = sign(W);  dL/dW = g;  W <- clip(W, -1, 1)",
        _FREE,
        "as the oldest baseline; stochastic=True is its noisy form",
    ),
    _row(
        BNN,
        "surrogate",
        "Hubara et al., NeurIPS 2016",
        "sign of weights and inputs, clipped straight-through for both",
        "Wb = sign(W), ab = sign(a);  d sign(x)/dx := 1[|x| <= 1];  W <- clip(W, -1, 1)",
        _FREE,
        "as the plainest network with 1-bit activations",
    ),
    _row(
        BWN,
        "surrogate",
        "Rastegari et al., ECCV 2016",
        "sign times the mean magnitude of its filter, real inputs",
        "Wb = alpha sign(W), alpha = mean|W|;  dL/dW = g (1/n + alpha 1[|W| <= 1])",
        _FREE,
        "where no BatchNorm follows that could learn the scale",
    ),
    _row(
        XNOR,
        "surrogate",
        "Rastegari et al., ECCV 2016",
        "BWN on the sign of the input, the output scaled by the map K",
        "out = (sign(I) * sign(W)) . K alpha,  K = box filter of the channel mean of |I|",
        "one more small convolution a layer, also in evaluation",
        "for comparison; k_map=False makes it a plain 1-bit product that packs",
    ),
    _row(
        DoReFaNet,
        "surrogate",
        "Zhou et al. 2016",
        "k-bit weights and k-bit inputs, as originally published",
        "k = 1: Wb = E|W| sign(W), dL/dW = g;  k > 1: Wb = 2 quantize_k(A(W)) - 1;  ab = quantize_k(clip(a, 0, 1))",
        _FREE,
        "when two to eight bits are allowed",
    ),
    _row(
        IRNet,
        "surrogate",
        "Qin et al., CVPR 2020",
        "balanced, standardised weights, power-of-two scale, a backward that sharpens",
        "Wb = sign(Ws) 2^s, Ws = (W - mean)/std;  d sign(x)/dx := k t (1 - tanh(t x)^2), t = Tmin (Tmax/Tmin)^(e/E)",
        "a few element-wise operations on the weights",
        "for training from scratch, real or 1-bit inputs: robust, and the base of many later methods",
    ),
    _row(
        RBNN,
        "surrogate",
        "Lin et al., NeurIPS 2020",
        "rotates the weights towards their signs once an epoch; a backward that sharpens",
        "z = w + |sin theta| (R1^T X R2 - w), Wb = alpha sign(z);  d sign(z)/dz := k max(0, sqrt(2) t - t^2 |z|)",
        "one matrix product a layer and step, singular values of two matrices a layer and epoch",
        "for long runs from scratch; needs epochs=..., and standardise=False to be packed",
    ),
    _row(
        ReSTE,
        "surrogate",
        "Wu et al., ICCV 2023",
        "a power function stands for the sign, as sharp as gradients stay stable",
        "Wb = mean|W| sign(W);  d sign(x)/dx := (1/o) |x|^((1-o)/o) on (m, t];  o from 1 to 3",
        "one power of each weight",
        "for long runs from scratch with real inputs: the best published ResNet-20 without activations quantized",
    ),
    _row(
        FDA,
        "surrogate",
        "Xu et al., NeurIPS 2021",
        "Fourier series of the sign backward, and a small network for the rest in training",
        "d sign(x)/dx := (4w/pi) sin(2(n+1) w x) / (2 sin(w x)) for |x| <= 1;  forward sign(x) + a eta(x), a -> 0",
        "two thin matrix products a layer (and one position, for 1-bit inputs)",
        "for 1-bit inputs; noise=0 leaves the Fourier backward alone",
    ),
    _row(
        ReCU,
        "surrogate",
        "Xu et al., ICCV 2021",
        "clamps the tails of the weights so that dead ones flip again",
        "z = clamp((W - mean)/(std/(2 sqrt 2)), -Q, Q), Q = -E|.| ln(2 - 2 tau);  Wb = alpha sign(z)",
        "a few element-wise operations on the weights",
        "for 1-bit inputs on Bi-Real blocks: strong and simple",
    ),
    _row(
        AdaBin,
        "surrogate",
        "Tu et al., ECCV 2022",
        "two free values a filter in place of -1 and +1, for inputs too",
        "Wb = beta + alpha sign((W - beta)/alpha);  ab = alpha_a (sign((a - beta_a)/alpha_a) + beta_a)",
        "a few element-wise operations on weights and inputs",
        "for the highest accuracy with 1-bit inputs, on networks with its Maxout activation; they can't be packed here",
    ),
    _row(
        Surge,
        "surrogate",
        "Huang et al., ICML 2026",
        "a full-precision twin of each layer repairs the gradient that reaches its input",
        "out = f_b(x) + lambda (f_a(x) - stopgrad(f_a(x))),  lambda = eta ||g_b|| / ||g_a||",
        "about twice the time and memory of a training step; nothing in evaluation",
        "for deep networks with 1-bit inputs, when training time is no concern",
    ),
    _row(
        McDonnell,
        "surrogate",
        "McDonnell, ICLR 2018",
        "sign times a constant of the layer's shape; strong with wide networks and warm restarts",
        "Wb = sqrt(2 / fan-in) sign(W);  dL/dW = g",
        _FREE,
        "with a wide network from scratch: the strongest simple recipe for real inputs",
    ),
    _row(
        QuantNet,
        "learned",
        "Liu et al., ECCV workshops 2020",
        "a small differentiable network a layer makes the weights binary; exact gradients",
        "w = tanh(beta z), z = u + sum_j b_j tanh(a_j u + c_j), u = W / RMS(W);  sign(z) in evaluation;  beta grows",
        "one tanh a weight and hidden unit (8)",
        "to see training without any estimator; the published details are not public, ours fill in",
    ),
    _row(
        FCGrad,
        "learned",
        _METAQUANT,
        "two linear layers map g to the gradient: a learned scalar",
        "m = M(g) = k g;  dL/dW := C m",
        "small: one product a weight",
        "with plain SGD whose rate you don't want to tune: its step size is learned",
    ),
    _row(
        MultiFC,
        "learned",
        _METAQUANT,
        "three linear layers on What scale g: k * What * g",
        "m = M(What) g = k What g;  dL/dW := C m",
        "small: one product a weight",
        "with plain SGD; it is FSG's fast part alone",
    ),
    _row(
        LSTMFC,
        "learned",
        _METAQUANT,
        "an LSTM on What, state carried, scales g",
        "m = M(What; h) g;  dL/dW := C m",
        "200 numbers of state a weight, and an LSTM step for each",
        "for comparison",
    ),
    _row(
        FSG,
        "learned",
        _FSG,
        "fast-net + Mamba slow-net over the concatenated history",
        _U,
        "a selective scan over six times the number of weights, every step",
        "to follow the paper to the letter, on a GPU",
    ),
    _row(
        FSGCode,
        "learned",
        _FSG,
        "FSG as the authors' public code has it: fast part registered",
        _U + ", with only C M_f registered",
        "as fsg",
        "to follow the authors' code",
    ),
    _row(
        FSGLstm,
        "learned",
        _FSG,
        "FSG with an LSTM slow-net, one sequence a weight",
        _U,
        "an LSTM over six steps for each weight",
        "for the paper's ablation",
    ),
    _row(
        FSGWeight,
        "learned",
        _FSG,
        "FSG on each weight's own history, in units of the layer's RMS",
        _U,
        "a short scan for each weight: practical on a CPU for small networks",
        "as the everyday FSG",
    ),
    _row(
        FSGPlus,
        "learned",
        "ours",
        "the straight-through gradient with the curvature along each weight, learned from the bits near the threshold",
        "g - strength k v s r, g = dL/dW, s = sign(W), v = average of g^2, r = max|tanh W|;  "
        "k = sum(s g r) / sum(v r^2) over weights near the threshold",
        "a few operations on every weight; one number of state a weight",
        "when you start from trained float weights: the highest accuracy here, and soon; not from random weights",
    ),
    _row(
        Bop,
        "own update",
        "Helwegen et al., NeurIPS 2019",
        "no latent weights: a bit flips when its averaged gradient has pushed long enough",
        "m <- (1 - gamma) m + gamma g;  w <- -w where |m| > tau and sign(m) = sign(w)",
        "one average a weight, less than Adam keeps",
        "when memory in training matters, and gamma and tau can be tuned",
    ),
    _row(
        ProxQuant,
        "own update",
        "Bai, Wang, Liberty, ICLR 2019",
        "float training with a pull towards -1 and +1 after each step, then frozen signs",
        "w <- prox(w - eta grad, eta lambda), lambda growing;  w = sign(w) from two thirds on",
        _FREE,
        "from a pretrained float network with Adam",
    ),
    _row(
        Mirror,
        "own update",
        "Ajanthan et al., AISTATS 2021",
        "moves a dual variable, computes with its tanh, which hardens to a sign",
        "w = tanh(beta x) in training, sign(x) in evaluation;  dL/dx := dL/dw;  beta *= 1.02",
        "one tanh a weight",
        "from a pretrained float network with Adam, if the training is long",
    ),
)
