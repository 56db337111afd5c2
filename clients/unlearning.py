"""One client of FIRM: it trains an adapter on its own data and sends one summary, once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from flwr.client import NumPyClient
from torch import Tensor

from clients import kept_fishers
from clients.description import describe_node
from clients.evaluation import mean_loss, read_update
from fedforget import protocol
from fedforget.adapters import adapted_weights, deltas_applied, lora_attached, lora_factors
from fedforget.client_specs import ClientSpec
from fedforget.codecs import Bucket, Instruction, pack, planes
from fedforget.codecs.exchange import pack_values, unpack_places
from fedforget.config import RoleConfig, RunConfig
from fedforget.data import Example, client_examples, client_retain_examples
from fedforget.encoding import batches, encode, pad_id
from fedforget.errors import ModelError, TrainingError
from fedforget.expert import starting_model
from fedforget.factors import LoraFactors
from fedforget.fisher import empirical_fisher
from fedforget.models import Backbone, cached_backbone, load_backbone, release_backbone
from fedforget.objectives import objective
from fedforget.privacy import private_fisher, private_task_vector
from fedforget.privacy.accounting import enabled
from fedforget.reproducible import cpu_share
from fedforget.seeds import derive_seed
from fedforget.summaries import ClientSummary, Role
from fedforget.training import train


class UnlearningClient(NumPyClient):
    """Trains a LoRA adapter with its role's objective, and takes the Fisher of its data.

    Everything random is derived from the run's seeds and the client's id, so what a client sends
    depends neither on the process it runs in nor on who ran there before.

    Parameters
    ----------
    config : RunConfig
    spec : ClientSpec
        Which client this is.
    threads : int, optional
        CPU threads to compute with: its share, where several clients run on one machine. By
        default torch's own choice.
    """

    def __init__(self, config: RunConfig, spec: ClientSpec, threads: int | None = None) -> None:
        self.config = config
        self.spec = spec
        self._threads = threads

    def fit(
        self, parameters: Sequence[Bucket], config: Mapping[str, Any]
    ) -> tuple[list[Bucket], int, dict[str, Any]]:
        """Train, and return the summary.

        Parameters
        ----------
        parameters : list
            Not used: the client loads the pretrained backbone by itself.
        config : dict
            With ``fisher``, the server's instruction how the Fisher is to travel; whole and without
            loss by default.

        Returns
        -------
        buckets : list of 1-D uint8 arrays
        num_examples : int
        metrics : dict
            ``manifest`` (describes the buckets), ``fingerprint``, and figures of the training.

        Raises
        ------
        FedForgetError
            No data, a backbone that cannot be loaded, or training that collapsed.
        """
        del parameters
        told = config.get(protocol.FISHER)
        how = Instruction.from_json(str(told)) if told else Instruction()
        with cpu_share(self._threads):
            started = time.monotonic()
            backbone = self._backbone()
            examples = client_examples(self.config, self.spec)
            factors, initial, figures = self._train(backbone, examples)
            trained = time.monotonic()
            fingerprint = backbone.fingerprint
            names = list(adapted_weights(backbone.model, self.config.lora))
            if self._separate_reference and not self.config.model.hold_both:
                # Two copies may not fit: the cache and this method hold the only references.
                del backbone
                release_backbone()
            fisher = self._fisher(names, examples)
            privacy = self.config.privacy
            if enabled(privacy):
                noise = privacy.noise_multiplier
                factors = private_task_vector(factors, initial, privacy.clip, noise)
                fisher = private_fisher(fisher, privacy.fisher_clip, noise)
                figures = {}  # losses and token counts are of the data, and carry no noise
            summary = ClientSummary(
                client_id=self.spec.id,
                role=cast(Role, self.spec.role),
                domain=self.spec.domain,
                num_examples=len(examples),
                deltas=factors,
                fisher=fisher,
            )
            buckets, manifest = pack(summary, fisher=how)
        metrics = {
            **figures,
            "train-seconds": trained - started,
            "fisher-seconds": time.monotonic() - trained,
            protocol.MANIFEST: manifest,
            protocol.FINGERPRINT: fingerprint,
        }
        if how.first:
            lossless = sum(frame.nbytes for one in fisher.values() for frame in planes.encode(one))
            metrics |= {protocol.DIGEST: kept_fishers.keep(fisher), "lossless-bytes": lossless}
        return buckets, len(examples), metrics

    def values(
        self, parameters: Sequence[Bucket], config: Mapping[str, Any]
    ) -> tuple[list[Bucket], dict[str, Any]]:
        """Return the Fisher at the places that the server asks for: the second phase of exact pooling.

        Parameters
        ----------
        parameters : list of 1-D uint8 arrays
            The places, see :mod:`fedforget.codecs.exchange`.
        config : dict
            ``manifest`` of the parameters, and ``fisher-digest``.

        Returns
        -------
        buckets : list of 1-D uint8 arrays
        metrics : dict
            ``manifest``.

        Raises
        ------
        FedForgetError
            The request cannot be read, or is about another Fisher than this client has.
        """
        who, digest = f"client {self.spec.id!r}", str(config.get(protocol.DIGEST))
        fisher = kept_fishers.find(digest)
        if fisher is None:
            with cpu_share(self._threads):
                names = list(adapted_weights(self._backbone().model, self.config.lora))
                fisher = self._fisher(names, client_examples(self.config, self.spec))
            if kept_fishers.digest(fisher) != digest:
                raise ModelError(
                    f"{who}: the Fisher that it sent entries of is gone, and computed again it differs; "
                    "start the run anew"
                )
        shapes = {name: tuple(one.shape) for name, one in fisher.items()}
        places = unpack_places(parameters, str(config.get(protocol.MANIFEST)), shapes, who)
        asked = {name: fisher[name].reshape(-1) for name in places}
        buckets, manifest = pack_values(
            {name: asked[name] if at is None else asked[name][at.long()] for name, at in places.items()}
        )
        kept_fishers.drop(digest)
        return buckets, {protocol.MANIFEST: manifest}

    def evaluate(
        self, parameters: Sequence[Bucket], config: Mapping[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Measure the language-modelling loss on the client's own examples.

        Parameters
        ----------
        parameters : list of 1-D uint8 arrays
            A merged update to apply, one array per weight; empty for the backbone as it is.
        config : dict
            With an update: ``tensors`` (weight names) and ``dtypes``, in the order of the arrays.

        Returns
        -------
        loss : float
            Mean negative log-likelihood per target token, in nats.
        num_examples : int
        metrics : dict
            ``role`` and ``tokens``.

        Raises
        ------
        FedForgetError
            The update does not fit the backbone; or the run is private, and a loss would be a
            further release.
        """
        if enabled(self.config.privacy):
            raise TrainingError(
                f"client {self.spec.id!r}: privacy is on, so its summary is all that it sends, and no loss; "
                "do not ask the clients to evaluate"
            )
        with cpu_share(self._threads):
            backbone = self._backbone()
            examples = client_examples(self.config, self.spec)
            shapes = adapted_weights(backbone.model, self.config.lora)
            update = read_update(parameters, config, shapes, f"client {self.spec.id!r}")
            applied = deltas_applied(backbone.model, update) if update else contextlib.nullcontext()
            with applied:
                loss, tokens = mean_loss(
                    backbone, examples, self.config.data.max_length, self.config.evaluation.batch_size
                )
        return loss, len(examples), {"role": self.spec.role, "tokens": tokens}

    def get_properties(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Say who this client is, see :class:`fedforget.protocol.Description`."""
        del config
        description = describe_node(self.config, -1, [self.spec], self.spec.id)
        return dict(description.to_properties())

    def _backbone(self) -> Backbone:
        return cached_backbone(starting_model(self.config), self.config.seeds.model)

    def _role(self) -> RoleConfig:
        return self.config.forget if self.spec.role == "forget" else self.config.retain

    def _train(
        self, backbone: Backbone, examples: Sequence[Example]
    ) -> tuple[dict[str, LoraFactors], dict[str, LoraFactors], dict[str, Any]]:
        """Train; returns the factors, those that the training began with, and its figures."""
        root, role = self.config.seeds.training, self._role()
        loss = objective(role.objective.name, **role.objective.parameters)
        # One adapter initialisation for all clients: task vectors of one domain must align.
        with lora_attached(backbone, self.config.lora, derive_seed(root, "lora")) as model:
            initial = lora_factors(model)
            try:
                report = train(
                    model,
                    backbone.tokenizer,
                    examples,
                    loss,
                    role.training,
                    max_length=self.config.data.max_length,
                    seed=derive_seed(root, "client", self.spec.id),
                    shared_seed=derive_seed(root, "objective"),
                    domain=self.spec.domain,
                    retain=client_retain_examples(self.config, self.spec),
                )
            except TrainingError as error:
                raise TrainingError(f"client {self.spec.id!r} ({self.spec.role}): {error}") from error
            factors = lora_factors(model)
        figures = {
            "steps": report.steps,
            "first-loss": report.first_loss,
            "last-loss": report.last_loss,
            "tokens": report.tokens,
        }
        return factors, initial, figures

    @property
    def _separate_reference(self) -> bool:
        model = self.config.model
        return bool(model.expert.domain) or model.fisher_precision not in {"same", model.precision}

    def _fisher(self, names: Sequence[str], examples: Sequence[Example]) -> dict[str, Tensor]:
        """Take the Fisher diagonal at the pretrained weights, without adapter or expert, on the LM loss."""
        settings, model = self.config.fisher, self.config.model
        if self._separate_reference:
            reference = load_backbone(model, self.config.seeds.model, precision=model.fisher_precision)
        else:
            reference = self._backbone()
        sequences = encode(reference.tokenizer, examples[: settings.num_sequences], settings.max_length)
        one_by_one = batches(sequences, pad_id(reference.tokenizer))
        return empirical_fisher(
            reference.model,
            one_by_one,
            names,
            settings.num_sequences,
            batch=settings.batch,
            recompute=settings.recompute,
        )
