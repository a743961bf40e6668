"""The federation file: the terms that all sites agree to, the enrolled sites, and how the coordinator runs the rounds."""

import json
import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

import pydantic
import tomli_w
import torch
from pydantic import Field, NonNegativeInt, PositiveInt

from unalike._utils.errors import UnalikeError
from unalike._utils.limits import Limit
from unalike._utils.tensor_files import write_bytes
from unalike._utils.validated import validated
from unalike.core.inputs import (
    Inputs,
    check_layout_of_tree,
    is_layout_of_one_tensor,
    is_one_tensor,
    layout_of,
    zeros_of,
)
from unalike.core.option import Help, options_of, without_defaults
from unalike.core.options import (
    FederationOptions,
    RecordOptions,
    SeedOptions,
    SharedRunOptions,
    ValidationOptions,
)
from unalike.core.tasks.classification import ASSUMED_TASK
from unalike.core.tasks.registry import TaskName, find_task
from unalike.core.tasks.task import Task
from unalike.core.work import Work
from unalike.data.array_checks import Pair
from unalike.data.table_encoding import Encoding
from unalike.federation.protocol.envelope import NAME_PATTERN, digest
from unalike.federation.protocol.public_samples import PublicSamples
from unalike.federation.security.keys import public_key
from unalike.federation.security.site_keys import fingerprint
from unalike.methods.method import Method
from unalike.runtime.records.recording import Recording
from unalike.runtime.records.run_directory import plain
from unalike.runtime.setup.client_networks import given_networks

Share = Annotated[float, Field(strict=True, gt=0, le=1)]
Count = Annotated[int, Field(strict=True, ge=1)]
AGREED = Help("Agreed with the sites.", agreed=True)


def _check_name(text: str) -> str:
    if not NAME_PATTERN.fullmatch(text):
        raise ValueError("expected 1 to 64 letters, digits, '.', '_' or '-'")
    return text


def _check_key(text: str) -> str:
    public_key(text)
    return text


def _check_shape(shape: Any) -> Any:
    """The lengths of one array as a tuple, or the layout of several."""
    if isinstance(shape, list | tuple) and is_layout_of_one_tensor([*shape]):
        if min(shape, default=1) < 1:
            raise ValueError("expected lengths of 1 or more")
        return tuple(shape)
    check_layout_of_tree(shape)
    return shape


Shape = Annotated[
    tuple[int, ...] | list[Any] | dict[str, Any], pydantic.PlainValidator(_check_shape)
]
Name = Annotated[str, pydantic.AfterValidator(_check_name)]
Key = Annotated[str, pydantic.AfterValidator(_check_key)]


@validated
class EnrolledSite:
    """An enrolled site: name, public `key`, maximum of training `samples` it may claim. A `revoked` site takes no part."""

    name: Name
    key: Key
    samples: PositiveInt
    revoked: bool = False


@validated
class Schema:
    """Schema of the samples of all sites: the `shape` of a sample, the `classes` (names or number), the `task`.

    Samples of several arrays have as `shape` the type and the lengths of each, such as {"image": "float32 [1, 28, 28]", "tokens":
    "int64 [20]"}, or a list of such for a tuple. `label_shape` is the shape of a label of several numbers, such as (2,) of a time
    and an event; empty for one number.

    Without classes the model has one output. `tokens`: samples of one array are integers, as of text. `encoding`: how tables are
    converted to samples, so that a column is the same input at every site.
    """

    shape: Shape
    classes: PositiveInt | tuple[str, ...] | None = None
    task: TaskName = ASSUMED_TASK.name
    tokens: bool = False
    encoding: Encoding | None = None
    label_shape: tuple[PositiveInt, ...] = ()

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.tokens and not isinstance(self.shape, tuple):
            raise ValueError("the shape says which of several arrays are tokens; leave tokens out")
        takes_classes = find_task(self.task).takes_class_names
        if takes_classes and not self.classes:
            raise ValueError(f"expected classes for the task {self.task}: how many, or their names")
        if not takes_classes and self.classes is not None:
            raise ValueError(f"classes mean nothing for the task {self.task}: leave them out")
        if not find_task(self.task).is_fitted:
            raise ValueError(
                f"expected how many classes the labels of all sites have, in the task: {self.task}(classes=3)"
            )
        dimensions = find_task(self.task).label_dimensions
        if dimensions is not None and len(self.label_shape) != dimensions:
            raise ValueError(
                f"found label_shape {[*self.label_shape]} for the task {self.task}, whose labels have {dimensions} dimensions"
            )
        names = self.names or []
        if len(set(names)) < len(names):
            raise ValueError("two classes have one name")
        if self.encoding is not None and self.shape != (self.encoding.width,):
            raise ValueError(f"the encoding makes samples of shape {[self.encoding.width]}")
        return self

    @classmethod
    def like(
        cls, samples: Pair, classes: Sequence[str] | None, task: Task, encoding: Encoding | None
    ) -> Self:
        """The schema of samples (x, y) of a task; `classes` are left out where the task takes none."""
        x, y = samples
        is_one = is_one_tensor(x)
        return cls(
            shape=tuple(x.shape[1:]) if is_one else layout_of(x),
            classes=tuple(classes or ()) if task.takes_class_names else None,
            task=task.spec,
            tokens=is_one and not x.is_floating_point(),
            encoding=encoding,
            label_shape=tuple(y.shape[1:]),
        )

    @property
    def placeholder(self) -> Inputs:
        """One sample of zeros."""
        if not isinstance(self.shape, tuple):
            return zeros_of(self.shape, 1)
        return torch.zeros(1, *self.shape, dtype=torch.int64 if self.tokens else torch.float32)

    @property
    def placeholder_label(self) -> torch.Tensor:
        """The label of one sample, as zeros."""
        return torch.zeros(1, *self.label_shape, dtype=find_task(self.task).label_type)

    @property
    def names(self) -> list[str] | None:
        """The names of the classes; None for a task without classes."""
        task = find_task(self.task)
        if not task.takes_class_names:
            return list(task.class_names) or None
        if isinstance(self.classes, int):
            return [str(number) for number in range(self.classes)]
        return list(self.classes or ())


@validated
class Federation(
    RecordOptions, FederationOptions, SharedRunOptions, ValidationOptions, SeedOptions
):
    """The content of a federation file.

    `participation` is a share (0.5) or number (3) of the sites with data that are asked in a round, `quorum` a share or number
    of the asked sites. A round closes when all asked sites have answered, or the `first` so many, or after `deadline` seconds if
    a quorum has. Without a quorum the deadline is extended and further sites are asked; after `patience` such attempts the run
    pauses. Unanswered requests are repeated every `repeat` seconds. `message_bytes` is the maximum size of a message. `guard`: an
    update whose norm exceeds `guard` times the running median is scaled down to the median (k times the usual steps: k times as
    much; buffers, and part messages that are no changes: ten times as much); 0: none is scaled. A share as `quorum` is one of the
    asked sites whose answers were not refused. `stop` and `budget` end the run early, as in `ua.run`. `select` chooses the round
    whose model is the result: the last, or the best on the validation samples, a share `val` of each site's training samples.
    `metric` names the metrics to decide by, as in `ua.run`; each site computes them from its own samples. `also` are methods, and
    `seeds` the number of seeds from `seed` on, that may be run besides; if `open`, sites may be added at the end. `noise_shares` is
    the number of updates among which sites share out the noise of `client_dp(where="site")`; no round may have fewer. `record`
    keeps numbers of each round at the coordinator, "server" and "updates" as in `ua.run`, but no site's parameters. `public` names
    the samples for which sites send what their own models predict.
    """

    _: KW_ONLY
    name: Annotated[Name, AGREED]
    method: Annotated[str, AGREED]
    model: Annotated[str, AGREED]
    rounds: NonNegativeInt
    coordinator: Annotated[Key, AGREED]
    data: Annotated[Schema, AGREED]
    sites: Annotated[tuple[EnrolledSite, ...], Field(min_length=1)]
    work: Annotated[Work, AGREED] = Work()
    protocol: Annotated[tuple[str, ...], AGREED]
    metric: tuple[str, ...]
    participation: Share | Count
    quorum: Share | Count
    message_bytes: PositiveInt = 2**30
    noise_shares: Annotated[PositiveInt, AGREED] = 1
    public: Annotated[PublicSamples | None, AGREED] = None

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        for what in ("name", "key"):
            found = [getattr(site, what) for site in self.sites]
            if len(set(found)) < len(found):
                raise ValueError(f"two sites have one {what}")
        if self.coordinator in {site.key for site in self.sites}:
            raise ValueError("a site has the coordinator's key")
        if isinstance(self.quorum, int) and self.quorum > len(self.sites) and not self.open:
            raise ValueError(f"a quorum of {self.quorum} cannot be met by {len(self.sites)} sites")
        if self.max_weight * len(self.sites) < 1 and not self.open:
            raise ValueError(
                f"max_weight = {self.max_weight:g} is less than the mean share of {len(self.sites)} sites"
            )
        if self.across == "clients" and (not self.metric or "server" in self.protocol):
            raise ValueError(
                f"across = clients with metric = {list(self.metric)} and protocol = {list(self.protocol)}; expected a metric, such "
                "as roc_auc, and no server's test set, which has no sites"
            )
        recording = Recording.of(self.record)
        if recording is not None and recording.keeps_parameters:
            raise ValueError(
                f"record = {self.record!r} would keep the sites' own parameters; expected server, updates, time or moments"
            )
        self._check_secure_aggregation(recording)
        if self.open and given_networks(self.model) is not None:
            raise ValueError(
                f"model = {self.model!r} says which of the enrolled sites has which network; expected one network for a federation "
                f"that is open to sites that come later ({Limit.FEDERATION})"
            )
        if self.noise_shares > self.fewest_updates:
            raise ValueError(
                f"noise_shares = {self.noise_shares}, and a round may have {self.fewest_updates} updates (quorum, participation, "
                "threshold), whose noise would be less than what epsilon says; expected rounds of as many updates"
            )
        return self

    def _check_secure_aggregation(self, recording: Recording | None) -> None:
        """Raise `ValueError` for terms under which a coordinator could learn, or would have to know, single updates."""
        if not self.secure_aggregation:
            if self.threshold is not None:
                raise ValueError(
                    "a threshold means nothing without secure aggregation: leave it out"
                )
            return
        # More than half: two sums of one round would have a site in common, which gives shares for one of them alone.
        count, least = len(self.sites), self.least_sum
        if count < 3 or not count < 2 * least <= 2 * self.cohort_size(count):
            raise ValueError(
                f"threshold {least} of {count} sites; secure aggregation expects 3 sites or more, a threshold of more than half of "
                f"them, and at least as many in a round (participation: {self.cohort_size(count)})"
            )
        if "local" in self.protocol:
            raise ValueError(
                "the protocol local has each site send scores of its model after training, which show its update; secure "
                "aggregation expects other protocols"
            )
        if "personal" in self.protocol:
            raise ValueError(
                "the protocol personal has each site send scores of a model that its own training samples made, which tell about "
                "these; secure aggregation expects clients or server: personal models are kept and scored at their sites (unalike "
                "evaluate)"
            )
        if recording is not None and recording.needs_updates:
            raise ValueError(
                f"record = {self.record!r} needs single updates, which secure aggregation hides"
            )
        if self.open:
            raise ValueError(
                "secure aggregation needs all sites' keys in every bundle; expected a federation that is not open"
            )

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """Build from plain values, as in a TOML file; `batch_size = 0` means the full batch. Raises `UnalikeError`."""
        work = values.get("work")
        if isinstance(work, dict) and work.get("batch_size") == 0:
            values = values | {"work": work | {"batch_size": None}}
        return cls(**values)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a federation file. Raises `UnalikeError`."""
        try:
            return cls.of(tomllib.loads(Path(path).read_text()))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise UnalikeError(
                f"cannot read {path}: {error}; expected a federation file"
            ) from error
        except TypeError as error:
            raise UnalikeError(f"cannot use {path}: {error}") from error

    def text(self) -> str:
        """The federation as TOML; `load` reads it back."""
        values = plain(asdict(self))
        values["work"].setdefault("batch_size", 0)  # TOML cannot express None, the full batch
        values["sites"] = [plain(site) for site in values["sites"]]
        return tomli_w.dumps(values)

    def save(self, path: Path | str) -> None:
        write_bytes(Path(path), self.text().encode())

    def site(self, name: str) -> EnrolledSite | None:
        return next((site for site in self.sites if site.name == name), None)

    def fingerprint(self, authority: bytes) -> str:
        """The fingerprint of all sites' keys, the coordinator's, this authority and public samples: equal in all true bundles."""
        keys = {site.name: site.key for site in self.sites}
        others = {"/coordinator": self.coordinator, "/authority": authority.decode()}
        if self.public is not None:
            others["/public"] = self.public.sha256
        return fingerprint(keys | others)

    def number(self, name: str) -> int:
        """The site's index among the clients. Raises `UnalikeError` for a name that is not enrolled."""
        for number, site in enumerate(self.sites):
            if site.name == name:
                return number
        raise UnalikeError(
            f"{name!r} is not enrolled; expected one of {', '.join(s.name for s in self.sites)}"
        )

    @cached_property
    def terms(self) -> str:
        """Digest of the terms that a site agrees to: all that decides what the site computes and what it sends.

        Rounds, quorum and deadline are not part of it, and revoking a site does not change it, nor a new site if it is open. Terms
        at their default are left out, so that an option of a later version changes no digest that was agreed to.
        """
        kind: type = type(self)
        options = options_of(kind).items()
        agreed_names = {name for name, option in options if option.help.agreed}
        changed = without_defaults(self).items()
        agreed = {name: value for name, value in changed if name in agreed_names}
        if not self.open:
            agreed["sites"] = [site.name for site in self.sites]
        return digest(json.dumps(agreed, sort_keys=True).encode())

    @property
    def variants(self) -> dict[str, Self]:
        """The federation with each method and seed that are agreed on, by its `terms`; itself first."""
        by_terms = {}
        for method in dict.fromkeys((self.method, *self.also)):
            for seed in range(self.seed, self.seed + self.seeds):
                variant = replace(self, method=method, seed=seed)
                by_terms[variant.terms] = variant
        return by_terms

    @property
    def least_sum(self) -> int:
        """Fewest sites in a sum, and fewest that unmask one, with secure aggregation."""
        return self.threshold or 2 * len(self.sites) // 3 + 1

    @property
    def fewest_updates(self) -> int:
        """Fewest updates that can make a round of all sites; with secure aggregation fewest in a sum."""
        if self.secure_aggregation:
            return self.least_sum
        return self.answers_needed(self.cohort_size(len(self.sites)))

    def tells_scores(self, protocol: str, is_one_model: bool) -> bool:
        """Whether sites tell the scores of the models of a protocol; `is_one_model` says that the shared model is the same for all.

        What a site's training samples made of a model shows in its scores: with secure aggregation they stay at the site.
        """
        return not self.secure_aggregation or (protocol == "clients" and is_one_model)

    def cohort_size(self, eligible: int) -> int:
        """Number of sites to ask in a round, at least one."""
        return _count(self.participation, eligible, lambda share: math.floor(share + 0.5))

    def updates_awaited(self, method: Method) -> float:
        """Number of updates of a method that end a round; infinite: all of the sites that it asks."""
        return min(method.updates_awaited, math.inf if self.first is None else self.first)

    def answers_needed(self, asked: int) -> int:
        """Number of valid updates that complete a round, at least one."""
        return _count(self.quorum, asked, lambda share: math.ceil(share - 1e-9))


def _count(wanted: float | int, of: int, rounded: Callable[[float], int]) -> int:
    """A number of sites, or a share of so many; at least one, at most all."""
    number = wanted if isinstance(wanted, int) else rounded(wanted * of)
    return min(of, max(1, number))
