"""The published methods by name, each as a sum of parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic import validate_call

from unalike.core.model import Group
from unalike.methods.method import Method
from unalike.methods.part import registry
from unalike.methods.parts.adaptive_start import AdaptiveStart
from unalike.methods.parts.balanced_softmax import BalancedSoftmax
from unalike.methods.parts.combined_heads import CombinedHeads
from unalike.methods.parts.conditioning import Conditional
from unalike.methods.parts.control_variates import ControlVariates, ControlVariatesAfterMomentum
from unalike.methods.parts.cosine_mean import CosineMean
from unalike.methods.parts.dynamic_regularization import DynamicRegularizer
from unalike.methods.parts.feature_alignment import FeatureAlignment
from unalike.methods.parts.feature_generator import AverageGenerator, EnsembleGenerator
from unalike.methods.parts.fine_tuning import AdaptedLoss, FineTuned, FrozenHead, HeadFirst
from unalike.methods.parts.fixed_parameters import Fixed
from unalike.methods.parts.full_batch import FullBatchStep
from unalike.methods.parts.gaussian_noise import GaussianNoise
from unalike.methods.parts.layer_intervals import LayerIntervals
from unalike.methods.parts.local_drift import LocalDrift
from unalike.methods.parts.moreau_envelope import MoreauEnvelope
from unalike.methods.parts.normalized_mean import NormalizedMean
from unalike.methods.parts.objectives import ModelContrast, NotTrueDistillation, Proximal
from unalike.methods.parts.parameter_skew import Assignment, LiteralPake, LiteralSA, NormalizedSkew, ParameterSkew
from unalike.methods.parts.personalizers import OutputMixture, ParameterMixture, Private, ProximalModel
from unalike.methods.parts.proxy_learning import EnsembleDistillation, LearnedMean
from unalike.methods.parts.robust import GeometricMedian, Krum, Median, Multikrum, TrimmedMean
from unalike.methods.parts.server_optimizers import ServerAdagrad, ServerAdam, ServerMomentum, ServerYogi
from unalike.methods.parts.shifted_mean import ShiftedMean
from unalike.methods.parts.shrinking import AdaptiveDecay, ElementwiseDecay, FixedShrinking, LayerwiseShrinking
from unalike.methods.parts.taught_head import TaughtHead
from unalike.methods.parts.uploads import Clip, Quantize, TopK
from unalike.methods.parts.weights import LabelDiscrepancy, Uniform
from unalike.methods.plans.calibration import Ccvr
from unalike.methods.plans.clustered import Clustered, Ifca
from unalike.methods.plans.concatenation import Fedconcat
from unalike.methods.plans.data_sharing import DataSharing
from unalike.methods.plans.diagnosis import Diagnosis
from unalike.methods.plans.references import Centralised, ClusterOracle
from unalike.methods.plans.simplex_head import Fedetf

__all__ = [  # parts and plans that stand in spec text under their own names
    "AdaptiveDecay",
    "BalancedSoftmax",
    "Ccvr",
    "Centralised",
    "Clip",
    "ClusterOracle",
    "Clustered",
    "Conditional",
    "DataSharing",
    "Diagnosis",
    "ElementwiseDecay",
    "FeatureAlignment",
    "Fedconcat",
    "Fedetf",
    "Fixed",
    "GaussianNoise",
    "GeometricMedian",
    "Ifca",
    "Krum",
    "Median",
    "Multikrum",
    "Quantize",
    "ShiftedMean",
    "TopK",
    "TrimmedMean",
]


KNOWN = (
    *(
        "uniform",
        "lws",
        "learned_shrinking",
        "awd",
        "adadecay",
        "median",
        "trimmed_mean",
        "krum",
        "multikrum",
        "geometric_median",
    ),
    *("conditional", "clip", "topk", "quantize", "gaussian_noise", "balanced_softmax", "feature_alignment", "fixed"),
)
"""Parts that the literature knows by their own names; the others are what methods are made of."""


def method(build: Callable[..., Method]) -> Callable[..., Method]:
    """Register a published method under its function's name, with its parameters validated."""
    return registry.register(build.__name__)(validate_call(build))


@method
def fedavg() -> Method:
    """Weighted mean of the clients' models (McMahan et al. 2017)."""
    return Method()


@method
def fedsgd() -> Method:
    """One full-batch gradient step per round (McMahan et al. 2017)."""
    return Method(FullBatchStep())


@method
def fedavgm(lr: float = 1.0, momentum: float = 0.9, nesterov: bool = False, dampening: float = 0.0) -> Method:
    """Momentum on the server (Hsu et al. 2019)."""
    return Method(ServerMomentum(lr=lr, momentum=momentum, nesterov=nesterov, dampening=dampening))


@method
def fedadam(
    lr: float = 0.1, b1: float = 0.9, b2: float = 0.99, tau: float = 1e-3, bias_correction: bool = False
) -> Method:
    """Adam on the server (Reddi et al. 2021)."""
    return Method(ServerAdam(lr=lr, b1=b1, b2=b2, tau=tau, bias_correction=bias_correction))


@method
def fedyogi(
    lr: float = 0.1, b1: float = 0.9, b2: float = 0.99, tau: float = 1e-3, bias_correction: bool = False
) -> Method:
    """Yogi on the server (Reddi et al. 2021)."""
    return Method(ServerYogi(lr=lr, b1=b1, b2=b2, tau=tau, bias_correction=bias_correction))


@method
def fedadagrad(
    lr: float = 0.1, b1: float = 0.0, b2: float = 0.99, tau: float = 1e-3, bias_correction: bool = False
) -> Method:
    """Adagrad on the server (Reddi et al. 2021)."""
    return Method(ServerAdagrad(lr=lr, b1=b1, b2=b2, tau=tau, bias_correction=bias_correction))


@method
def fedprox(mu: float = 0.001) -> Method:
    """A proximal term holds clients near the received model (Li et al. 2020)."""
    return Method(Proximal(mu=mu))


@method
def fednova(prox_aware: bool = False, normalize_by: Literal["series", "steps"] = "series") -> Method:
    """Updates normalized by the clients' local progress (Wang et al. 2020), or by their steps alone."""
    return Method(NormalizedMean(prox_aware=prox_aware, normalize_by=normalize_by))


@method
def fedmix(mu: float = 0.001, normalize_by: Literal["series", "steps"] = "series") -> Method:
    """FedProx on the clients, FedNova on the server (the FedMix paper, in which figure 1 normalizes by steps)."""
    return fedprox(mu) + fednova(normalize_by=normalize_by)


@method
def scaffold(
    option: Literal[1, 2] = 2, server_lr: float = 1.0, weighted: bool = False, after_momentum: bool = False
) -> Method:
    """Control variates against client drift (Karimireddy et al. 2020); with `after_momentum` as in NIID-Bench's code."""
    variates = ControlVariatesAfterMomentum if after_momentum else ControlVariates
    return Method(variates(option=option, server_lr=server_lr), *_uniform_unless(weighted))


@method
def feddyn(alpha: float = 0.1, weighted: bool = False) -> Method:
    """Dynamic regularization aligns local and global optima (Acar et al. 2021)."""
    return Method(DynamicRegularizer(alpha=alpha), *_uniform_unless(weighted))


@method
def feddc(alpha: float = 0.01, weighted: bool = True) -> Method:
    """Local drift is remembered, held small and taken out on the server (Gao et al. 2022)."""
    return Method(LocalDrift(alpha=alpha), *_uniform_unless(weighted))


@method
def fedgen(
    preset: Literal["zhu", "pfllib"] = "zhu",
    noise: int = 512,
    hidden: int = 512,
    lr: float = 0.005,
    steps: int | None = None,
    alpha: float | None = None,
    beta: float | None = None,
) -> Method:
    """A generator of features, taught by the clients' heads (Zhu et al. 2021); None: as the preset has it."""
    given = {"steps": steps, "alpha": alpha, "beta": beta}
    generator, usual = {"zhu": (EnsembleGenerator, {}), "pfllib": (AverageGenerator, {"steps": 1000})}[preset]
    fields: dict[str, Any] = usual | {name: value for name, value in given.items() if value is not None}
    return Method(generator(noise=noise, hidden=hidden, lr=lr, **fields))


@method
def ditto(lam: float = 0.001) -> Method:
    """A personal model held near the shared one (Li et al. 2021)."""
    return Method(ProximalModel(lam=lam))


@method
def apfl(alpha: float = 0.5, adaptive: bool = True, mixing: Literal["parameters", "output"] = "parameters") -> Method:
    """An adaptive mixture of an own and the shared model (Deng et al. 2020)."""
    return Method({"parameters": ParameterMixture, "output": OutputMixture}[mixing](alpha=alpha, adaptive=adaptive))


@method
def fedper() -> Method:
    """The head stays on the client, the body is averaged (Arivazhagan et al. 2019)."""
    return Method(Private("head"))


@method
def fedrep(epochs: int = 10) -> Method:
    """FedPer with the head trained first, for `epochs` passes, and then the body (Collins et al. 2021)."""
    return Method(Private("head"), HeadFirst(epochs=epochs))


@method
def fedgh(lr: float = 0.01, epochs: int = 1, batch_size: int = 10) -> Method:
    """Bodies stay on the clients; the server trains the shared head on their mean features (Yi et al. 2023)."""
    return Method(Private("body"), TaughtHead(lr=lr, epochs=epochs, batch_size=batch_size))


@method
def fedpac(lam: float = 1.0, epochs: int = 1) -> Method:
    """Features held near shared centroids, and for each client a combination of the heads (Xu et al. 2023)."""
    return Method(CombinedHeads(), HeadFirst(epochs=epochs), FeatureAlignment(lam=lam))


@method
def fedbn() -> Method:
    """Normalization layers stay on the client with their statistics (Li et al. 2021)."""
    return Method(Private("norm"))


@method
def fedbabu(epochs: int = 10, tune: Literal["full", "head"] = "full") -> Method:
    """Bodies are averaged under a common head that never moves; fine-tuned for evaluation (Oh et al. 2022)."""
    return Method(FrozenHead(epochs=epochs, tuned=tune))


@method
def fedala(eta: float = 1.0, sample: float = 0.8, modules: int = 1, threshold: float = 0.1) -> Method:
    """Training starts between the own and the shared model, learned entry by entry (Zhang et al. 2023)."""
    return Method(AdaptiveStart(eta=eta, sample=sample, modules=modules, threshold=threshold))


@method
def perfedavg(alpha: float = 0.01, second_order: bool = False) -> Method:
    """The shared model is trained to be good after one step of adaptation (Fallah et al. 2020)."""
    return Method(AdaptedLoss(alpha=alpha, second_order=second_order))


@method
def pfedme(lam: float = 15.0, steps: int = 5, rate: float = 0.01, beta: float = 1.0) -> Method:
    """The shared model of the clients' Moreau envelopes, and each one's minimizer (Dinh et al. 2020); beta is the server's lr."""
    slow = () if beta == 1 else (ServerMomentum(lr=beta, momentum=0.0),)
    return Method(MoreauEnvelope(lam=lam, steps=steps, rate=rate), Uniform(), *slow)


@method
def local_finetune(epochs: int = 1, moves: Group = "all") -> Method:
    """FedAvg with fine-tuning of the shared model on each client before evaluation."""
    return Method(FineTuned(epochs=epochs, moves=moves))


@method
def moon(mu: float = 1.0, tau: float = 0.5) -> Method:
    """Contrast of the features with the shared and the previous model's (Li et al. 2021)."""
    return Method(ModelContrast(mu=mu, tau=tau))


@method
def fedntd(beta: float = 1.0, tau: float = 1.0) -> Method:
    """Distillation of what the shared model says of the classes that are not true (Lee et al. 2022)."""
    return Method(NotTrueDistillation(beta=beta, tau=tau))


@method
def fedlws(
    beta: float = 0.1,
    scope: Literal["layer", "model", "tensor"] = "layer",
    mode: Literal["full", "only_reg", "only_opt"] = "full",
    clamp: tuple[float, float] | None = None,
) -> Method:
    """Layer-wise weight shrinking after aggregation (Shi et al. 2025); the add-on alone is `lws`."""
    return Method(LayerwiseShrinking(beta=beta, scope=scope, mode=mode, clamp=clamp))


@method
def fixed_shrink(step: float = 0.01, first: float = 1.0) -> Method:
    """Fixed layer-wise shrinking, the more the deeper the layer; with step = 0 one factor for all (the FedLWS paper)."""
    return Method(FixedShrinking(rate=step, first=first))


@method
def feddisco(
    a: float = 0.5,
    b: float = 0.1,
    discrepancy: Literal["kl", "l2", "l1", "cosine"] = "kl",
    target: Literal["uniform", "global"] = "uniform",
) -> Method:
    """Clients of unusual label distributions count less (Ye et al. 2023)."""
    return Method(LabelDiscrepancy(a=a, b=b, discrepancy=discrepancy, target=target))


@method
def fedlama(phi: int = 2) -> Method:
    """Layers on which clients agree are synchronized in every phi-th round only (Lee et al. 2023)."""
    return Method(LayerIntervals(phi=phi))


@method
def ldawa(weighted: bool = False) -> Method:
    """Layers that turned away from the received ones count less (Rehman et al. 2023)."""
    return Method(CosineMean(), *_uniform_unless(weighted))


@method
def fedlaw(
    epochs: int = 100,
    lr: float = 0.01,
    optimizer: Literal["adam", "sgd"] = "adam",
    mapping: Literal["exp", "quadratic"] = "exp",
) -> Method:
    """Weights and shrinking learned on samples of the server (Li et al. 2023)."""
    return Method(LearnedMean(epochs=epochs, lr=lr, optimizer=optimizer, mapping=mapping))


@method
def feddf(steps: int = 100, lr: float = 1e-3, batch_size: int = 128, temperature: float = 1.0) -> Method:
    """The average learns from the ensemble of the clients on samples of the server (Lin et al. 2020)."""
    return Method(EnsembleDistillation(steps=steps, lr=lr, batch_size=batch_size, temperature=temperature))


@method
def fedsa(
    threshold: float = 0.2,
    similarity: float = 0.2,
    micro: int = 4,
    macro: int = 4,
    variant: Literal["normalized", "literal"] = "normalized",
    weighted: bool = False,
    scope: Literal["tensor", "model"] = "tensor",
    assignment: Assignment = "measured",
) -> Method:
    """Parameter-skew aggregation, first paper (FedSA); equal to `fedpake` in its normalized form."""
    rule = {"normalized": NormalizedSkew, "literal": LiteralSA}[variant]
    return _skew(
        rule,
        weighted,
        threshold=threshold,
        similarity=similarity,
        micro=micro,
        macro=macro,
        scope=scope,
        assignment=assignment,
    )


@method
def fedpake(
    threshold: float = 0.2,
    similarity: float = 0.2,
    micro: int = 4,
    macro: int = 4,
    variant: Literal["normalized", "literal"] = "normalized",
    weighted: bool = False,
    scope: Literal["tensor", "model"] = "tensor",
    assignment: Assignment = "measured",
) -> Method:
    """Parameter-skew aggregation, second paper (FedPake)."""
    rule = {"normalized": NormalizedSkew, "literal": LiteralPake}[variant]
    return _skew(
        rule,
        weighted,
        threshold=threshold,
        similarity=similarity,
        micro=micro,
        macro=macro,
        scope=scope,
        assignment=assignment,
    )


@method
def local_only() -> Method:
    """Reference without communication: every client trains by itself."""
    return Method(Private("all"))


def _skew(rule: Callable[..., ParameterSkew], weighted: bool, **fields: object) -> Method:
    return Method(rule(weighted=weighted, **fields), *_uniform_unless(weighted))


def _uniform_unless(weighted: bool) -> tuple[Uniform, ...]:
    return () if weighted else (Uniform(),)
