"""Stage 3: one segmenter, trained with one strategy and one seed. The loop does not know the strategy.

Seeds are matched: the same seed gives every arm the same initial weights, the same order of samples and the
same geometric augmentation.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mcpmix.config import Config
from mcpmix.core.device import Runtime
from mcpmix.core.errors import DataError, TrainingError
from mcpmix.core.pixels import as_images, as_targets
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import numpy_rng, seed_everything, seed_for, torch_rng
from mcpmix.core.stage_folder import Artifact, StageKey, workspace
from mcpmix.core.training import JsonLines, cosine, does_not_fit, load_state, one_ahead, save_state
from mcpmix.data.augment import Augmentation, draw_augmentation, normalise
from mcpmix.data.index import Arrays, DatasetIndex, cache_of, load_arrays, training_digest
from mcpmix.data.leakage import images_of, read_seen, write_seen
from mcpmix.data.splits import require_lesions
from mcpmix.data.unlabelled import Unlabelled
from mcpmix.generator.baselines.labelled_set import read_set
from mcpmix.generator.few_steps import drawing_key
from mcpmix.generator.pair_source import PairSource, open_source
from mcpmix.generator.pseudo import read_pseudo
from mcpmix.metrics import RegionAccumulator, class_regions, summarise
from mcpmix.mixing.strategy import Batch, Originals, Term
from mcpmix.networks.loss import input_gradient, predict_terms, segmentation_loss
from mcpmix.networks.segmenter import build_segmenter, save_segmenter
from mcpmix.networks.weight_files import digest_of_source
from mcpmix.segmenter.arms import (
    Inputs,
    arm_settings,
    arm_strategy,
    needs_pairs,
    needs_pseudo,
    needs_set,
    needs_unlabelled,
)
from mcpmix.segmenter.model_card import write_card
from mcpmix.segmenter.track import tracker

CHECKPOINT = "checkpoint.safetensors"
# A strategy prepares on the batches of one epoch, within these bounds: the discrepancy of a batch scatters by
# almost its own size, so the three batches of the demo's epoch would give a margin that is half chance.
_FEWEST_PREPARED, _MOST_PREPARED = 20, 50


def key(config: Config, inputs: Inputs, arm: str, seed: int) -> StageKey:
    """What a segmenter depends on; of pairs and settings of strategies only what its arm uses."""
    weights = config.segmenter.weights
    settings = {
        "arm": arm,
        "size": config.data.size,
        "segmenter": config.segmenter.model_dump(mode="json", exclude={"weights"}),
        "weights": None if weights is None else digest_of_source(weights, "segmenter"),
        "train": config.train.model_dump(mode="json", exclude={"arms", "seeds", "strategies"}),
        "precision": config.runtime.precision,
        "deterministic": config.runtime.deterministic,
        **({"classes": list(config.data.classes)} if config.data.classes else {}),
        **arm_settings(config, arm),
    }
    digests = {"dataset": training_digest(inputs.dataset)}
    if inputs.edits is not None:
        digests["edits"] = inputs.edits.digest
    elif needs_pairs(arm):
        settings["source"] = config.synthesis.source
        source = inputs.pairs if config.synthesis.source == "bank" else inputs.generator
        if source is None:
            raise DataError(f"The arm {arm} trains on pairs: run `mcpmix synthesize` first.")
        digests["pairs"] = source.digest
        if inputs.review is not None and inputs.review.changes and source is inputs.pairs:
            digests["review"] = inputs.review.digest
        if config.synthesis.makes_in_training:
            settings["synthesis"] = drawing_key(config, {"workers"})
    if needs_unlabelled(arm):
        source = inputs.pseudo if needs_pseudo(arm) else inputs.unlabelled
        if source is None:
            raise DataError(f"The arm {arm} trains on unlabelled images: name some in data.unlabelled.")
        digests["unlabelled"] = source.digest
    if needs_set(arm):
        if inputs.labelled_set is None:
            raise DataError(f"The arm {arm} trains on a set of synthetic images, which `mcpmix run` makes.")
        digests["labelled_set"] = inputs.labelled_set.digest
    return StageKey("train", settings, digests, seed_for(config.seed, seed))


def run(
    config: Config,
    inputs: Inputs,
    arm: str,
    seed: int,
    out: Path,
    runtime: Runtime,
    progress: Progress = SILENT,
) -> Artifact:
    """Train, choose the checkpoint on the validation split, save it."""
    with workspace(out, key(config, inputs, arm, seed)) as space:
        trainer = Trainer(config, inputs, arm, seed, space.folder, runtime)
        with closing(trainer):
            trainer.fit(progress)
        chosen = {"best_epoch": trainer.best_epoch, "validation_dsc": trainer.best_dsc}
        description = {
            "name": config.segmenter.name,
            "variant": config.segmenter.variant,
            **({"options": config.segmenter.options} if config.segmenter.options else {}),
            "size": config.data.size,
            **({"classes": list(config.data.classes)} if config.data.classes else {}),
            "arm": arm,
            "seed": seed,
            "dataset": training_digest(inputs.dataset),
            **chosen,
        }
        trainer.network.load_state_dict(trainer.best)
        save_segmenter(trainer.network, space.folder, description)
        guessed = bool(inputs.dataset.manifest.get("counts", {}).get("groups_guessed"))
        write_card(space.folder, config, description, trainer.index, guessed=guessed)
        write_seen(space.folder, trainer.seen)
        steps = trainer.epochs * trainer.steps_per_epoch
        return space.finish(
            CHECKPOINT, epochs=trainer.epochs, steps=steps, **chosen, warnings=trainer.warnings
        )


class Trainer:
    """State of one training: networks, optimiser, position, best weights so far."""

    def __init__(
        self, config: Config, inputs: Inputs, arm: str, seed: int, folder: Path, runtime: Runtime
    ) -> None:
        self.config, self.seed, self.folder, self.runtime = config, seed, folder, runtime
        settings = config.train
        self.index = DatasetIndex.read(inputs.dataset)
        cache = cache_of(inputs.dataset.folder)
        self.train = load_arrays(self.index.part("train"), config.data.size, cache)
        self.validation = load_arrays(self.index.part("validation"), config.data.size, cache)
        require_lesions(mask.any() for mask in self.validation.masks)
        self.seen = images_of([*self.index.part("train"), *self.index.part("validation")])
        self.epochs = settings.epochs + settings.tail_epochs
        self.steps_per_epoch = math.ceil(len(self.train.ids) / settings.batch_size)
        steps = self.epochs * self.steps_per_epoch

        seed_everything(config.seed, "train", seed)
        wanted = config.segmenter
        self.channels = config.data.channels
        network = build_segmenter(wanted.name, wanted.variant, wanted.weights, wanted.options, self.channels)
        # Convolutions are faster with channels last, on a CPU as on a GPU.
        self.network: nn.Module = network.to(runtime.device).to(memory_format=torch.channels_last)
        self.strategy = arm_strategy(config, arm).to(runtime.device)

        def gradient(images: Tensor, targets: Tensor) -> Tensor:
            with runtime.autocast():
                return input_gradient(self.network, images, targets)

        self.strategy.attach(gradient, self.network)
        # Unlabelled images, with pseudo-masks if the strategy takes them; or synthetic ones with own masks.
        self.more: Arrays | None = None
        if self.strategy.source and inputs.unlabelled is not None:
            pool = Unlabelled.read(inputs.unlabelled)
            self.seen += pool.seen
            self.more = Arrays(pool.ids, pool.images, np.empty(0, np.uint8))
            if self.strategy.source == "pseudo-masks" and inputs.pseudo is not None:
                self.more = read_pseudo(inputs.pseudo, pool)
            if not len(self.more):
                raise DataError(
                    f"The arm {arm} has no unlabelled image to train on: on none of them the networks of the "
                    "judge agree. Lower pseudo.agreement, or add unlabelled images."
                )
        if self.strategy.needs_set and inputs.labelled_set is not None:
            self.more = read_set(inputs.labelled_set)
            known = {image.sha256 for image in self.seen}
            listed = read_seen(inputs.labelled_set.folder)
            self.seen += [image for image in listed if image.sha256 not in known]
            if not len(self.more):
                raise DataError(
                    f"The arm {arm} has no synthetic image to train on: none was admitted "
                    f"({inputs.labelled_set.folder} says why). Fine-tune longer (finetune.steps), raise "
                    "synthesis.admission.tries, or leave this arm out."
                )
        self.pairs: PairSource | None = None
        if self.strategy.needs_pairs:
            self.pairs = open_source(
                config,
                self.train,
                seed,
                self._order,
                edits=inputs.edits,
                pairs=inputs.pairs,
                review=inputs.review,
                generator=inputs.generator,
                depth=inputs.depth,
            )
        self.gates: list[float] = []  # s * rho after each epoch
        weights = {"params": list(self.network.parameters()), "weight_decay": settings.weight_decay}
        self.optimiser = torch.optim.AdamW(
            [weights, *self.strategy.parameter_groups(steps)], lr=settings.learning_rate
        )
        # Gradients of a mean over all pixels vanish in float16 unless the loss is scaled up.
        self.scaler = torch.amp.GradScaler(runtime.device.type, enabled=runtime.precision == torch.float16)
        self.rates = cosine(self.optimiser, steps)
        # Sees each step after its backward pass: the batch, its terms, and the gradients at their logits.
        self.observer: Callable[[Batch, Sequence[Term], Sequence[Tensor]], None] | None = None
        self.log = JsonLines(folder / "log.jsonl")
        self.best: dict[str, Tensor] = {}
        self.best_dsc, self.best_epoch = -1.0, 0
        self.warnings: list[str] = []

    def fit(self, progress: Progress) -> None:
        """Run the epochs that are left; a checkpoint after each one."""
        done = self._restore()
        if done == 0:
            # Batches as training will see them; made only if the strategy takes them.
            batches = chain.from_iterable(self._batches(epoch) for epoch in range(1, self.epochs + 1))
            count = min(max(self.steps_per_epoch, _FEWEST_PREPARED), _MOST_PREPARED)
            self.strategy.prepare(islice(batches, count))
        title = f"{self.folder.parent.name} seed {self.seed}"
        cell = f"{self.folder.parent.name}/seed-{self.seed}"
        with progress.track(title, self.epochs, done) as advance, ExitStack() as stack:
            copies = [
                stack.enter_context(tracker(name, self.config.folder, cell, self.log.rows()))
                for name in self.config.track.chosen
            ]
            for epoch in range(done + 1, self.epochs + 1):
                row = self._run_epoch(epoch)
                if epoch % self.config.train.validate_every == 0 or epoch == self.epochs:
                    row["validation"] = self._validate(epoch)
                self.log.append(**row)
                for copy in copies:
                    copy(row)
                self.gates.append(_gate(row))
                self._save(epoch)
                note = f"best DSC {max(self.best_dsc, 0):.1f}, loss {row['loss']:.3f}"
                pace = self.pairs.note() if self.pairs is not None else ""
                advance(1, f"{note}, {pace}" if pace else note)
                self.warnings = self.warnings or self.strategy.warnings()  # the first is enough

    def close(self) -> None:
        """End the workers of the pair source."""
        if self.pairs is not None:
            self.pairs.close()

    # --- one epoch ---------------------------------------------------------------------------------------

    def _run_epoch(self, epoch: int) -> dict[str, Any]:
        # Dropout inside the network draws from torch's global stream; seeding it here makes an epoch
        # independent of those before it, so that a resumed run is the same run.
        seed_everything(self.config.seed, "epoch", self.seed, epoch)
        self.network.train()
        self.strategy.train()
        self.strategy.set_epoch(epoch)
        if self.pairs is not None:
            self.pairs.begin(epoch, self.gates)
        totals: dict[str, float] = {}
        ahead = self.strategy.ahead  # whether it can make the terms of a batch before the step before is done
        work = (
            (batch, self._terms(batch, epoch, step) if ahead else None)
            for step, batch in enumerate(self._batches(epoch))
        )
        for step, (batch, terms) in enumerate(one_ahead(work) if ahead else work):
            for name, value in self._step(batch, epoch, step, terms).items():
                totals[name] = totals.get(name, 0.0) + value / self.steps_per_epoch
        return {"epoch": epoch, **totals, **self.strategy.log()}

    def _terms(self, batch: Batch, epoch: int, step: int) -> list[Term]:
        return self.strategy.terms(batch, torch_rng("strategy", self.config.seed, self.seed, epoch, step))

    def _step(self, batch: Batch, epoch: int, step: int, terms: list[Term] | None = None) -> dict[str, float]:
        terms = self._terms(batch, epoch, step) if terms is None else terms
        with self.runtime.autocast():
            logits = predict_terms(self.network, [t.images for t in terms], [t.name for t in terms])
        losses = [segmentation_loss(part, t.targets) for part, t in zip(logits, terms, strict=True)]
        total = self.strategy.combine(losses, batch, terms) + self.strategy.consistency(logits, terms)
        if not torch.isfinite(total):
            raise TrainingError(
                f"The loss is {total.item()} in epoch {epoch}, step {step} (samples {', '.join(batch.ids)}). "
                "Lower train.learning_rate or set runtime.precision=float32."
            )
        self.optimiser.zero_grad(set_to_none=True)
        if self.observer is not None:
            for part in logits:
                part.retain_grad()
        self.scaler.scale(total).backward()
        if self.observer is not None:
            scale = self.scaler.get_scale()
            gradients = [part.grad.float() / scale for part in logits if part.grad is not None]
            self.observer(batch, terms, gradients)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.rates.step()
        values = {f"loss_{t.name}": loss.item() for t, loss in zip(terms, losses, strict=True)}
        return {"loss": total.item(), **values}

    def _batches(self, epoch: int) -> Iterator[Batch]:
        """Full batches in a new order; the last one is filled up from the start of the order."""
        for step, chosen in enumerate(np.split(self._order(epoch), self.steps_per_epoch)):
            synthetic = self.pairs.take(epoch, chosen) if self.pairs is not None else None
            yield self._batch(chosen, synthetic, (epoch, step))

    def _further_images(self, position: tuple[int, int]) -> dict[str, Any]:
        """As many unlabelled or synthetic images as labelled ones, with masks if the strategy takes them."""
        if self.more is None:
            return {}
        count, device = self.config.train.batch_size, self.runtime.device
        identity = (self.config.seed, self.seed, *position)
        chosen = numpy_rng("unlabelled", *identity).integers(len(self.more), size=count)
        drawn = self._augmentation(count, torch_rng("augment unlabelled", *identity))
        images = normalise(drawn.images(as_images(self.more.images[chosen], device)))
        if self.strategy.source == "images":
            return {"unlabelled": images}
        masks = drawn.masks(as_targets(self.more.masks[chosen], self.channels, device))
        if self.strategy.needs_set:
            return {"labelled_set": (images, masks)}
        return {"unlabelled": images, "pseudo_masks": masks}

    def _augmentation(self, count: int, rng: torch.Generator) -> Augmentation:
        settings = self.config.train
        return draw_augmentation(
            count,
            rng,
            rotate=settings.rotate,
            scale=settings.scale,
            flip=settings.flip,
            colour=settings.colour,
            crop=settings.crop,
            blur=settings.blur,
        )

    def _order(self, epoch: int) -> np.ndarray:
        """The numbers of the samples that an epoch takes, `steps_per_epoch` whole batches of them."""
        order = numpy_rng("order", self.config.seed, self.seed, epoch).permutation(len(self.train.ids))
        return np.resize(order, self.steps_per_epoch * self.config.train.batch_size)

    def _batch(self, chosen: np.ndarray, synthetic: np.ndarray | None, position: tuple[int, int]) -> Batch:
        """Images, counterparts and masks under one geometric transform."""
        device = self.runtime.device
        rng = torch_rng("augment", self.config.seed, self.seed, *position)
        drawn = self._augmentation(len(chosen), rng)

        def appearance(pixels: np.ndarray) -> Tensor:
            return normalise(drawn.images(as_images(pixels, device)))

        masks = as_targets(self.train.masks[chosen], self.channels, device)
        return Batch(
            images=appearance(self.train.images[chosen]),
            masks=drawn.masks(masks),
            synthetic=None if synthetic is None else appearance(synthetic),
            ids=tuple(self.train.ids[i] for i in chosen),
            originals=Originals(
                images=lambda: normalise(as_images(self.train.images[chosen], device)),
                warp=drawn.masks,
            ),
            **self._further_images(position),
        )

    @torch.no_grad()
    def _validate(self, epoch: int) -> dict[str, float]:
        """Region metrics on the validation split; keeps the weights if they are the best so far.

        A single validation on few images fluctuates by chance: weights are judged by the mean of this
        validation and, with falling weight, those before it.
        """
        network = self.strategy.result(self.network).eval()
        accumulator, rows = RegionAccumulator(), []
        for start in range(0, len(self.validation.ids), self.config.train.batch_size):
            part = slice(start, start + self.config.train.batch_size)
            images = as_images(self.validation.images[part], self.runtime.device)
            truth = np.array(self.validation.masks[part])
            with self.runtime.autocast():
                logits = network(normalise(images))
            if self.channels == 1:
                accumulator.update(logits > 0, torch.from_numpy(truth)[:, None].to(logits.device).bool())
            else:
                found = logits.argmax(1).byte().cpu().numpy()
                rows += [class_regions(*pair, self.channels) for pair in zip(truth, found, strict=True)]
        scores = accumulator.compute()
        if rows:
            scores = {name: value.mean for name, value in summarise(rows).items()}
        earlier = [row["validation"]["dsc"] for row in self.log.rows() if "validation" in row]
        smooth = recent_mean([*earlier, scores["dsc"]], self.config.train.validation_momentum)
        if smooth > self.best_dsc:
            self.best_dsc, self.best_epoch = smooth, epoch
            self.best = {name: value.detach().clone() for name, value in network.state_dict().items()}
        return scores

    # --- checkpoints -------------------------------------------------------------------------------------

    def _save(self, epoch: int) -> None:
        scaling = {"scaler": self.scaler.state_dict()} if self.scaler.is_enabled() else {}
        save_state(
            self.folder / CHECKPOINT,
            {
                "epoch": epoch,
                "network": self.network.state_dict(),
                "strategy": self.strategy.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "rates": {"last_epoch": self.rates.last_epoch},
                "best": self.best,
                "best_dsc": self.best_dsc,
                "best_epoch": self.best_epoch,
                "warnings": self.warnings,
                **scaling,
            },
        )

    def _restore(self) -> int:
        """Continue from the checkpoint, if there is one; returns the number of finished epochs."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            self.log.rewrite([])
            return 0
        state = load_state(path, str(self.runtime.device))
        try:
            self.network.load_state_dict(state["network"])
            self.strategy.load_state_dict(state["strategy"])
            self.optimiser.load_state_dict(state["optimiser"])
            self.rates.load_state_dict({**self.rates.state_dict(), **state["rates"]})
            self.scaler.load_state_dict(state.get("scaler", self.scaler.state_dict()))
            self.best, self.best_dsc, self.best_epoch = state["best"], state["best_dsc"], state["best_epoch"]
            self.warnings = state["warnings"]
            done = int(state["epoch"])
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise does_not_fit(path, error) from error
        rows = [row for row in self.log.rows() if row["epoch"] <= done]
        self.log.rewrite(rows)
        self.gates = [_gate(row) for row in rows]
        return done


def recent_mean(values: Sequence[float], momentum: float) -> float:
    """Mean of `values` in which each counts `momentum` times as much as the one after it; 0: the last one."""
    weights = np.power(momentum, np.arange(len(values))[::-1], dtype=float)
    return float(np.average(values, weights=weights))


def _gate(row: Mapping[str, Any]) -> float:
    """How much the pairs of an epoch counted: s * rho at its end, 1 for strategies that log neither."""
    s, rho = (row.get(f"{name}_end", row.get(name, 1.0)) for name in ("s", "rho"))
    return float(s) * float(rho)
