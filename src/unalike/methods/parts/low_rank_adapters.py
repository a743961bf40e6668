"""Averages of low-rank adapters (LoRA, Hu et al. 2022): pairs A, B whose product is added to the weight of a layer."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.types import Tree
from unalike.core.views import ClientView, Cohort, ServerView, StageSettings
from unalike.methods.method import alias
from unalike.methods.part import part
from unalike.methods.parts.uploads import restore, withhold
from unalike.methods.roles import Aggregator, Personalizer, Upload

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


@alias(
    "fedex_lora",
    "Adapters are averaged, and what their averages lack is added (Singhal et al. 2024).",
)
@part
class ExactAdapterMean(Personalizer, Upload, Aggregator):
    """W+ = W + s (sum_k p_k B_k A_k - B+ A+), A+ = sum_k p_k A_k, B+ = sum_k p_k B_k (FedEx-LoRA, Singhal et al. 2024).

    So W + s B A becomes the mean of the clients' W + s B_k A_k, which plain averages of A and B do not give; s is the adapter's
    scaling. Of one client, or of clients with equal A or equal B, the residual is 0, and it is FedAvg. All else is averaged.
    An adapter of which A or B is not averaged has no residual.

    Clients send adapters alone, and receive the weights W beneath them, which no client trains: `ua.low_rank(frozen=False)` leaves
    them open to the server, or `requires_grad_(True)` for `base_layer.weight` of peft. The paper sends the residual, of which
    a client that missed a round would need every one; W has at most the same size. Weights p_k are shares of samples; in the paper
    all clients count alike (add `uniform`). Adapters of convolutions and embeddings are averaged as they are.
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
                    f"fedex_lora moves the weights beneath adapters on the server, and found {adapter.weight} frozen; "
                    "expected requires_grad=True: pass frozen=False to ua.low_rank, or call requires_grad_(True)"
                )
        return {}

    def trainable(self, name: str, model: Model) -> bool:
        return not model.within(WEIGHTS_BENEATH, name)

    def encode(self, client: ClientView, update: Tree) -> tuple[Tree, Tree]:
        weights = {name for name in update if client.model.within(WEIGHTS_BENEATH, name)}
        return withhold(update, weights), client.state

    def decode(self, update: Tree, params: Tree, round: int) -> Tree:
        return restore(update, params)

    def combine(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tree:
        mean = tree.weighted_sum(cohort.update, weights)
        for adapter in adapters(server.settings.model):
            # where clients have one A, or keep B back, as beside `ffa_lora` and `fedsa_lora`, nothing is lacking
            if adapter.a not in mean or adapter.b not in mean:
                continue
            own_a = server.params[adapter.a] + cohort.update[adapter.a]
            own_b = server.params[adapter.b] + cohort.update[adapter.b]
            own_products = {adapter.weight: adapter.product(own_a, own_b)}
            mean_a = server.params[adapter.a] + mean[adapter.a]
            mean_b = server.params[adapter.b] + mean[adapter.b]
            mean_product = tree.weighted_sum(own_products, weights)[adapter.weight]
            mean[adapter.weight] = mean_product - adapter.product(mean_a, mean_b)
        return mean
