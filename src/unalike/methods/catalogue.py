"""The catalogue of published methods: those of one part stand in `parts`, plans in `plans`, and sums of several parts here."""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Literal

from pydantic import PositiveInt, validate_call

from unalike.methods import parts, plans
from unalike.methods.method import Method
from unalike.methods.part import registry
from unalike.methods.parts.adaptive_bias import AdaptiveBias
from unalike.methods.parts.adaptive_start import AdaptiveStart
from unalike.methods.parts.aligned_start import AlignedStart, FisherMean
from unalike.methods.parts.attentive_models import AttentiveModels
from unalike.methods.parts.combined_heads import CombinedHeads
from unalike.methods.parts.consensus import Consensus
from unalike.methods.parts.control_variates import ControlVariates, ControlVariatesAfterMomentum
from unalike.methods.parts.discounted_mean import DiscountedMean, ModelMixing
from unalike.methods.parts.dynamic_regularization import DynamicRegularizer
from unalike.methods.parts.feature_alignment import FeatureAlignment
from unalike.methods.parts.feature_generator import AverageGenerator, EnsembleGenerator
from unalike.methods.parts.fine_tuning import FrozenHead, HeadFirst
from unalike.methods.parts.layer_weights import LayerWeights
from unalike.methods.parts.local_drift import LocalDrift
from unalike.methods.parts.moreau_envelope import MoreauEnvelope
from unalike.methods.parts.normalized_mean import CosineMean, NormalizedMean
from unalike.methods.parts.objectives import BalancedSoftmax, Proximal
from unalike.methods.parts.parameter_skew import (
    Assignment,
    ConsistentSkew,
    LiteralPake,
    LiteralSA,
    Normalization,
    NormalizedSkew,
    ParameterSkew,
    ScaledSkew,
    Scope,
)
from unalike.methods.parts.personal_head import PersonalHead
from unalike.methods.parts.personalizers import OutputMixture, ParameterMixture, Private
from unalike.methods.parts.server_optimizers import ServerMomentum
from unalike.methods.parts.shared_momentum import SharedMomentum
from unalike.methods.parts.shrinking import FixedShrinking
from unalike.methods.parts.taught_head import TaughtHead
from unalike.methods.parts.trained_centroids import TrainedCentroids
from unalike.methods.parts.weights import Uniform

# parts and plans register themselves when their modules are imported
for folder in (parts, plans):
    for module in iter_modules(folder.__path__, folder.__name__ + "."):
        import_module(module.name)


def method(build: Callable[..., Method]) -> Callable[..., Method]:
    """Register a published method under its function's name, with its parameters validated."""
    return registry.register(build.__name__)(validate_call(build))


def _uniform_unless(weighted: bool) -> tuple[Uniform, ...]:
    """Equal weights of the clients, unless they count by their sizes."""
    return () if weighted else (Uniform(),)


@method
def fedavg() -> Method:
    """Weighted mean of the clients' models (McMahan et al. 2017)."""
    return Method()


@method
def fedmix(mu: float = 0.001, normalize_by: Literal["series", "steps"] = "series") -> Method:
    """FedProx on the clients, FedNova on the server (the FedMix paper, in which figure 1 normalizes by steps)."""
    return Method(Proximal(mu=mu), NormalizedMean(normalize_by=normalize_by))


@method
def fedbuff(
    buffer: PositiveInt = 10,
    server_lr: float = 1.0,
    staleness: float = 0.5,
    weighted: bool = False,
) -> Method:
    """The server steps with every few updates that arrive, old ones count less (Nguyen et al. 2022)."""
    mean = DiscountedMean(buffer=buffer, server_lr=server_lr, staleness=staleness)
    return Method(mean, *_uniform_unless(weighted))


@method
def fedasync(mixing: float = 0.6, staleness: float = 0.5, mu: float = 0.005) -> Method:
    """Each model is mixed in when it arrives, old ones less; clients are held near theirs (Xie et al. 2019)."""
    return Method(Proximal(mu=mu), ModelMixing(mixing=mixing, staleness=staleness))


@method
def scaffold(
    option: Literal[1, 2] = 2,
    server_lr: float = 1.0,
    weighted: bool = False,
    after_momentum: bool = False,
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
    """Clients keep their local drift and hold it small; the server takes it out (Gao et al. 2022)."""
    return Method(LocalDrift(alpha=alpha), *_uniform_unless(weighted))


@method
def adabest(mu: float = 0.02, beta: float = 0.96, weighted: bool = False) -> Method:
    """Estimates of the clients' drift fade with their age (Varno et al. 2022)."""
    return Method(AdaptiveBias(mu=mu, beta=beta), *_uniform_unless(weighted))


@method
def mimelite(beta: float = 0.9, weighted: bool = False) -> Method:
    """Clients step with the momentum of the server (Karimireddy et al. 2021)."""
    return Method(SharedMomentum(beta=beta), *_uniform_unless(weighted))


@method
def fedacg(lam: float = 0.85, beta: float = 0.002, weighted: bool = False) -> Method:
    """Clients start from where the server's momentum leads, and are held near it (Kim et al. 2024).

    The paper sends w + lam m and lets m <- lam m + u, w <- w + lam m + u, u the mean update. What is sent moves by u + lam m: it is
    the model of `fedavgm(nesterov=True)`, and the proximal term beta/2 ||v - w - lam m||^2 is FedProx's. Here it is evaluated, too,
    in the paper w. The defaults are those of the authors' code. lam = beta = 0 is FedAvg.
    """
    momentum = ServerMomentum(momentum=lam, nesterov=True)
    return Method(Proximal(mu=beta), momentum, *_uniform_unless(weighted))


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
    generator = {"zhu": EnsembleGenerator, "pfllib": AverageGenerator}[preset]
    fields: dict[str, Any] = {"steps": 1000} if preset == "pfllib" else {}
    options = {"steps": steps, "alpha": alpha, "beta": beta}
    fields |= {name: value for name, value in options.items() if value is not None}
    return Method(generator(noise=noise, hidden=hidden, lr=lr, **fields))


@method
def apfl(
    alpha: float = 0.5,
    adaptive: bool = True,
    mixing: Literal["parameters", "output"] = "parameters",
) -> Method:
    """An adaptive mixture of an own and the shared model (Deng et al. 2020)."""
    mixture = {"parameters": ParameterMixture, "output": OutputMixture}[mixing]
    return Method(mixture(alpha=alpha, adaptive=adaptive))


@method
def fedrep(epochs: int = 10) -> Method:
    """FedPer with the head trained first, for `epochs` passes, and then the body (Collins et al. 2021)."""
    return Method(Private("head"), HeadFirst(epochs=epochs))


@method
def fedah(epochs: int = 1, eta: float = 1.0, threshold: float = 0.1) -> Method:
    """Heads start between the own and the shared one, entry by entry, and train before bodies (Zhou et al. 2024).

    The authors' code learns the weights in one pass at each participation, FedALA's at the second one until they settle.
    """
    start = AdaptiveStart(eta=eta, sample=1.0, modules=1, threshold=threshold)
    return Method(start, HeadFirst(epochs=epochs))


@method
def fedas(lr: float = 0.01, epochs: int = 1) -> Method:
    """Received bodies are aligned with the client's features, and count by their Fisher information (Yang et al. 2024)."""
    return Method(AlignedStart(lr=lr, epochs=epochs), FisherMean())


@method
def fedgh(lr: float = 0.01, epochs: int = 1, batch_size: int = 10) -> Method:
    """Bodies stay on the clients; the server trains the shared head on their mean features (Yi et al. 2023)."""
    return Method(Private("body"), TaughtHead(lr=lr, epochs=epochs, batch_size=batch_size))


@method
def fedpac(lam: float = 1.0, epochs: int = 1, scored: Literal["own", "combined"] = "own") -> Method:
    """Features held near shared centroids, and for each client a combination of the heads (Xu et al. 2023)."""
    return Method(CombinedHeads(scored=scored), HeadFirst(epochs=epochs), FeatureAlignment(lam=lam))


@method
def fedproto(lam: float = 1.0) -> Method:
    """Clients keep their models and share the mean features of each class (Tan et al. 2022)."""
    return Method(Private("all"), FeatureAlignment(lam=lam, counting="clients"))


@method
def fedtgp(lam: float = 1.0, lr: float = 0.01, epochs: int = 100, margin: float = 100.0) -> Method:
    """Clients keep their models, and the server trains centroids of their features apart (Zhang et al. 2024)."""
    centroids = TrainedCentroids(lam=lam, lr=lr, epochs=epochs, margin=margin)
    return Method(Private("all"), centroids)


@method
def fedmd(steps: int = 5, lr: float = 0.1) -> Method:
    """Clients keep their models and learn from their mean logits on public samples (Li and Wang 2019)."""
    return Method(Private("all"), Consensus(steps=steps, lr=lr))


@method
def fedrod(gamma: float = 1.0) -> Method:
    """A shared model for which classes count alike, and a head for each client's own (Chen and Chao 2022)."""
    return Method(BalancedSoftmax(gamma=gamma), PersonalHead())


@method
def fedamp(alpha: float = 0.1, sigma: float = 1.0, lam: float = 0.1) -> Method:
    """Clients keep their models and are held near those that are like theirs (Huang et al. 2021)."""
    return Method(Private("all"), AttentiveModels(alpha=alpha, sigma=sigma, lam=lam))


@method
def pfedla(lr: float = 5e-3, size: int = 100, width: int = 100) -> Method:
    """Clients keep their models and start from mixtures whose weights by layer a network of each learns (Ma et al. 2022)."""
    return Method(Private("all"), LayerWeights(lr=lr, size=size, width=width))


@method
def fedbabu(epochs: int = 10, tune: Literal["full", "head"] = "full") -> Method:
    """Bodies are averaged under a common head that never moves; fine-tuned for evaluation (Oh et al. 2022)."""
    return Method(FrozenHead(epochs=epochs, tuned=tune))


@method
def pfedme(lam: float = 15.0, steps: int = 5, rate: float = 0.01, beta: float = 1.0) -> Method:
    """The shared model of the clients' Moreau envelopes, and each one's minimizer (Dinh et al. 2020); beta is the server's lr."""
    method = Method(MoreauEnvelope(lam=lam, steps=steps, rate=rate), Uniform())
    return method if beta == 1 else method + ServerMomentum(lr=beta, momentum=0.0)


@method
def fixed_shrink(step: float = 0.01, first: float = 1.0) -> Method:
    """Fixed layer-wise shrinking, the more the deeper the layer; with step = 0 one factor for all (the FedLWS paper)."""
    return Method(FixedShrinking(rate=step, first=first))


@method
def ldawa(weighted: bool = False) -> Method:
    """Layers that turned away from the received ones count less (Rehman et al. 2023)."""
    return Method(CosineMean(), *_uniform_unless(weighted))


SKEW_RULES: dict[str, type[ParameterSkew]] = {
    "normalized": NormalizedSkew,
    "consistent": ConsistentSkew,
    "scaled": ScaledSkew,
}
"""Readings of the method that the two papers on parameter skew have in common."""


def _register_skew(name: str, literal: type[ParameterSkew], summary: str) -> None:
    """Register the method of one of the two papers on parameter skew, which have the same parameters.

    `literal` is the part with the rule as this paper prints it.
    """

    def build(
        threshold: float = 0.2,
        similarity: float = 0.2,
        micro: int = 4,
        macro: int = 4,
        variant: Literal["normalized", "literal", "consistent", "scaled"] = "normalized",
        weighted: bool = False,
        scope: Scope = "tensor",
        assignment: Assignment = "measured",
        normalize_by: Normalization = "range",
    ) -> Method:
        rules = SKEW_RULES | {"literal": literal}
        skew = rules[variant](
            threshold=threshold,
            similarity=similarity,
            micro=micro,
            macro=macro,
            weighted=weighted,
            scope=scope,
            assignment=assignment,
            normalize_by=normalize_by,
        )
        return Method(skew, *_uniform_unless(weighted))

    build.__name__ = name
    build.__qualname__ = name
    build.__doc__ = summary
    method(build)


BY_DEFAULT = "by default uniform FedAvg on all but about .3 % of the parameters"
_register_skew(
    name="fedsa",
    literal=LiteralSA,
    summary=f"Parameter-skew aggregation, first paper (FedSA); {BY_DEFAULT}, as `fedpake`.",
)
_register_skew(
    name="fedpake",
    literal=LiteralPake,
    summary=f"Parameter-skew aggregation, second paper (FedPake); {BY_DEFAULT}.",
)
