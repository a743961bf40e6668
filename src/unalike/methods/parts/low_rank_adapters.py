"""Averages of low-rank adapters (LoRA, Hu et al. 2022): pairs A, B whose product is added to the weight of a layer."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from unalike._utils import seeds
from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.types import Tree
from unalike.core.views import ClientView, Cohort, PartLookup, ServerView, StageSettings
from unalike.core.work import Work
from unalike.methods.method import alias
from unalike.methods.part import part
from unalike.methods.parts.uploads import restore, withhold
from unalike.methods.roles import Aggregator, Personalizer, ServerStep, Upload

A_NAME = "lora_A."
"""What stands in the name of an A between the path of its layer and the adapter's own name; peft names them so."""
WEIGHTS_BENEATH = "*base_layer.weight"
"""Pattern of the names of the weights to which the products are added."""


class Adapter(NamedTuple):
    """Names of an adapter's A [r, D] and B [C, r], and of the weight [C, D] beneath; W is [D, C] where it `is_transposed`."""

    a: str
    b: str
    weight: str
    scaling: float
    is_transposed: bool

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """The addition to the weight, scaling B A; a and b may have a leading [K]."""
        product = self.scaling * (b @ a)
        return product.mT if self.is_transposed else product


def adapters(model: Model) -> list[Adapter]:
    """The adapters of linear layers in a model, of `ua.low_rank` or of peft."""
    found = []
    for name, value in model.params.items():
        path, marker, own_name = name.partition(A_NAME)
        # adapters of convolutions are no matrices
        if not marker or value.dim() != 2:
            continue
        layer = model.given_module.get_submodule(path.removesuffix("."))
        scaling: Any = layer.scaling
        if isinstance(scaling, Mapping):
            scaling = scaling[own_name.removesuffix(".weight")]
        adapter = Adapter(
            a=name,
            b=f"{path}lora_B.{own_name}",
            weight=f"{path}base_layer.weight",
            scaling=scaling,
            is_transposed=getattr(layer, "fan_in_fan_out", False),
        )
        found.append(adapter)
    return found


CHANGING_STEPS = (ServerStep.OPTIMIZER, ServerStep.SHRINKING, Upload.WITHHOLD)
"""Ranks of the server steps that scale the combined update, or hold back a part of it."""


class AdapterMean(Personalizer, Upload, Aggregator):
    """A rule by which the server also moves the weights W beneath adapters.

    Clients send adapters alone, and receive the weights W, which no client trains: `ua.low_rank(frozen=False)` leaves them open to
    the server, or `requires_grad_(True)` for `base_layer.weight` of peft.
    """

    rank: ClassVar[int] = Upload.WITHHOLD

    @property
    def special_group(self) -> str:
        return f"*{A_NAME}*"

    def server_open(self, settings: StageSettings) -> Tree:
        """No state. Raises `UnalikeError` for weights that the server cannot move."""
        for adapter in adapters(settings.model):
            if not settings.model.trainable(adapter.weight):
                raise UnalikeError(
                    f"{self.name} moves the weights beneath adapters on the server, and found {adapter.weight} frozen; "
                    "expected requires_grad=True: pass frozen=False to ua.low_rank, or call requires_grad_(True)"
                )
        return {}

    def check(self, method: PartLookup, work: Work) -> None:
        for step in method.role(ServerStep):
            if step is not self and step.rank in CHANGING_STEPS:
                raise UnalikeError(
                    f"{method!r}: {step.name} scales the combined update or holds back a part of it, after which the weights "
                    f"beneath adapters and the products B A do not add up to the clients' mean; leave out {step.name}"
                )

    def trainable(self, name: str, model: Model) -> bool:
        return not model.within(WEIGHTS_BENEATH, name)

    def encode(self, client: ClientView, update: Tree) -> tuple[Tree, Tree]:
        weights = {name for name in update if client.model.within(WEIGHTS_BENEATH, name)}
        return withhold(update, weights), client.state

    def decode(self, update: Tree, params: Tree, round: int) -> Tree:
        return restore(update, params)


@alias(
    "fedex_lora",
    "Adapters are averaged, and what their averages lack is added (Singhal et al. 2024).",
)
@part
class ExactAdapterMean(AdapterMean):
    """W+ = W + s (sum_k p_k B_k A_k - B+ A+), A+ = sum_k p_k A_k, B+ = sum_k p_k B_k (FedEx-LoRA, Singhal et al. 2024).

    So W + s B A becomes the mean of the clients' W + s B_k A_k, which plain averages of A and B do not give; s is the adapter's
    scaling. Of one client, or of clients with equal A or equal B, the residual is 0, and it is FedAvg. All else is averaged.
    An adapter of which A or B is not averaged has no residual.

    Clients send adapters alone, and receive the weights W beneath them, which no client trains: `ua.low_rank(frozen=False)` leaves
    them open to the server, or `requires_grad_(True)` for `base_layer.weight` of peft. The paper sends the residual, of which
    a client that missed a round would need every one; W has at most the same size. Weights p_k are shares of samples; in the paper
    all clients count alike (add `uniform`). Adapters of convolutions and embeddings are averaged as they are. The code that is
    public transposes the residual in every layer, as GPT-2 asks for: in a square linear layer that adds another matrix.
    """

    def combine(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tree:
        mean = tree.weighted_sum(cohort.update, weights)
        for adapter in averaged_adapters(server, mean):
            mean_a = server.params[adapter.a] + mean[adapter.a]
            mean_b = server.params[adapter.b] + mean[adapter.b]
            exact_product = mean_product(adapter, server, cohort, weights)
            mean[adapter.weight] = exact_product - adapter.product(mean_a, mean_b)
        return mean


@alias(
    "flora",
    "The clients' adapters are merged into the weights beneath, and new ones begin (Wang et al. 2024).",
)
@part
class MergedAdapters(AdapterMean):
    """W+ = W + sum_k p_k s_k B_k A_k, B+ = 0, and A+ is drawn anew, with the spread of the initial A (FLoRA, Wang et al. 2024).

    So the model becomes the mean of the clients' W + s_k B_k A_k, whatever its rank: the paper stacks p_k A_k and B_k, whose
    product is that sum, and each client adds it to its weights. Of one client it is that client's model. s_k is the adapter's
    scaling; all else is averaged. An adapter of which A or B is not sent is averaged as with FedAvg.

    Ranks may differ between clients, as unlike networks: the rows of a smaller A are the first rows of a larger one, and all have
    one W. Weighted means of stacked A and B with zeros below a smaller one (HetLoRA), and a product that is cut to each client's
    rank (FlexLoRA), are not this mean. Clients send adapters alone, and receive the weights W, as for `fedex_lora`; the paper sends
    the stacks. Weights p_k are shares of samples. The authors' code takes the dimension that equals the rank for that of the
    rank, and writes the plain average with which it compares to a misspelled name, so that it is p_1 times the first client's.
    """

    unlike_networks = "corners"

    def combine(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tree:
        mean = tree.weighted_sum(cohort.update, weights)
        for adapter in averaged_adapters(server, mean):
            mean[adapter.weight] = mean_product(adapter, server, cohort, weights)
            mean[adapter.a] = self._new_a(adapter, server) - server.params[adapter.a]
            mean[adapter.b] = -server.params[adapter.b]
        return mean

    def _new_a(self, adapter: Adapter, server: ServerView) -> Tensor:
        """A [r, D] drawn row by row: the first rows are the same in networks of all ranks."""
        settings = server.settings
        initial = settings.model.params[adapter.a]
        spread = initial[0].square().mean().sqrt()
        number = seeds.number(settings.seed, f"server.{self.name}.{adapter.a}", server.round)
        generator = torch.Generator().manual_seed(number)
        rows = [torch.randn(len(row), generator=generator) for row in initial]
        return spread * torch.stack(rows).to(initial)


def averaged_adapters(server: ServerView, update: Tree) -> list[Adapter]:
    """The adapters of which clients send A and B: beside `ffa_lora` and `fedsa_lora` they have one A, or keep B back."""
    found = adapters(server.settings.model)
    return [adapter for adapter in found if adapter.a in update and adapter.b in update]


def mean_product(adapter: Adapter, server: ServerView, cohort: Cohort, weights: Tensor) -> Tensor:
    """sum_k p_k s B_k A_k, what the clients' adapters add to the weight on average."""
    own_a = server.params[adapter.a] + cohort.update[adapter.a]
    own_b = server.params[adapter.b] + cohort.update[adapter.b]
    return tree.combined(adapter.product(own_a, own_b), weights.to(own_a))
