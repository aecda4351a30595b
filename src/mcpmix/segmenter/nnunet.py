"""Trainers for nnU-Net v2 (2D) that mix with counterparts; needs the extra `nnunet`.

nnU-Net keeps its plans, network, augmentation, loss, optimiser and inference. What changes is a step of
training: the batch brings a counterpart of each image, and an arm of this package says what is mixed and how
it counts. nnU-Net finds the trainers through the folder `nnunet_trainers` beside this file; docs/nnunet.md
shows the way.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from mcpmix.config_file import resolve_config
from mcpmix.core.errors import ConfigError, DataError, DependencyError, bullet_list
from mcpmix.core.files import read_json
from mcpmix.core.pixels import list_images
from mcpmix.data.layouts import NNUNET_COUNTERPARTS, NNUNET_RLA
from mcpmix.mixing.strategy import Batch, Strategy
from mcpmix.networks.loss import REAL, frozen_statistics
from mcpmix.segmenter.arms import arm_strategy

try:
    from batchgeneratorsv2.transforms.base.basic_transform import BasicTransform
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
except ModuleNotFoundError as error:
    raise DependencyError(
        f"The trainers for nnU-Net need the package {error.name}, which is not installed. Get it with "
        "`pip install 'mcpmix[nnunet]'`."
    ) from error

Values = np.ndarray[Any, np.dtype[np.float32]]
_CALIBRATION = 20  # batches; the discrepancy of one scatters by about its own size
_MOST_GRADIENT = 12  # norm at which nnU-Net clips
_STATE = "mcpmix"  # key of the gates among the arguments that nnU-Net keeps in its checkpoints


class PairedCases:
    """Cases of nnU-Net whose channels are followed by those of a counterpart, drawn anew at each call.

    A case without counterparts is its own: mixing then does nothing.

    Args:
        cases: nnU-Net's training cases.
        files: the counterparts of each case that has some.
        prepare: from a file, the (1, 1, H, W) segmentation and the properties of its case to values like the
            (C, 1, H, W) of the case.
    """

    def __init__(
        self,
        cases: Any,  # noqa: ANN401
        files: dict[str, list[Path]],
        prepare: Callable[[Path, Values, dict[str, Any]], Values],
    ) -> None:
        self.cases, self.files, self.prepare = cases, files, prepare
        self.identifiers = cases.identifiers

    def load_case(self, identifier: str) -> tuple[Values, Values, Any, dict[str, Any]]:
        """Values (2C, 1, H, W), segmentation, that of an earlier stage (none in 2D), properties."""
        stored, labels, earlier, properties = self.cases.load_case(identifier)
        real, segmentation = stored[:], labels[:]
        counterpart = real
        if files := self.files.get(identifier):
            file = files[np.random.randint(len(files))]
            counterpart = self.prepare(file, segmentation, properties)
            if counterpart.shape != real.shape:
                raise DataError(
                    f"{file} becomes {counterpart.shape} where its case {identifier} is {real.shape}. A "
                    "counterpart must have the size of the image it belongs to: export the pairs again."
                )
        return np.concatenate([real, counterpart]), segmentation, earlier, properties


class SharedTransform(BasicTransform):
    """A transform that is drawn once and applied to both halves of the channels, image and counterpart.

    nnU-Net draws from NumPy's and torch's global streams; both halves start from the same state of them. The
    first half comes out as it would without the second.
    """

    def __init__(self, transform: BasicTransform) -> None:
        super().__init__()
        self.transform = transform

    def __call__(self, **data: Any) -> dict[str, Any]:  # noqa: ANN401
        """Transform `image` (2C, H, W) and `segmentation` (1, H, W)."""
        numbers, stream = np.random.get_state(), torch.get_rng_state()
        parts = []
        for image in data["image"].chunk(2):
            np.random.set_state(numbers)
            torch.set_rng_state(stream)
            parts.append(self.transform(image=image, segmentation=data["segmentation"].clone()))
        return {**parts[0], "image": torch.cat([part["image"] for part in parts])}


class nnUNetTrainerMCPMix(nnUNetTrainer):  # noqa: N801 (nnU-Net's names, by which users ask for it)
    """nnU-Net with MCPMix: each sample is mixed with a share from U[0, s_max], the hard mask is the target.

    The counterparts of a case are the images in `counterparts/<case>/` beside the preprocessed data; the
    settings are those of the section `rla`, in `counterparts/rla.json`.
    """

    arm: ClassVar[str] = "mcpmix"

    def initialize(self) -> None:
        """Build nnU-Net's parts, the strategy, and an optimiser for its gates if it has any."""
        patch = self.configuration_manager.patch_size
        schemes = set(self.configuration_manager.normalization_schemes)
        checks = {
            f"the configuration {self.configuration_name} has patches {patch}; expected 2d": len(patch) == 2,
            "training runs on several GPUs; expected -num_gpus 1": not self.is_ddp,
            f"images are normalised by {', '.join(sorted(schemes))}; expected nnU-Net's default for colours, "
            "ZScoreNormalization (channel_names R, G, B in dataset.json)": schemes == {"ZScoreNormalization"},
        }
        if problems := [text for text, fine in checks.items() if not fine]:
            raise ConfigError(bullet_list(f"{type(self).__name__} cannot train this:", problems))
        super().initialize()
        self.counterparts = Path(self.preprocessed_dataset_folder_base) / NNUNET_COUNTERPARTS
        settings = self.counterparts / NNUNET_RLA
        tree = {
            "data": {"source": "phantom"},  # none of its own: nnU-Net reads the images
            "rla": read_json(settings) if settings.exists() else {},
            "train": {"epochs": self.num_epochs, "tail_epochs": 0},
        }
        self.strategy: Strategy = arm_strategy(resolve_config(tree, source=str(settings)), self.arm)
        self.strategy.to(self.device)
        groups = self.strategy.parameter_groups(self.num_epochs * self.num_iterations_per_epoch)
        # Not in nnU-Net's: its schedule sets one learning rate for all groups, and its SGD is not for gates.
        self.gates = torch.optim.AdamW(groups) if groups else None

    def get_tr_and_val_datasets(self) -> tuple[PairedCases, Any]:
        """Training cases with counterparts, and nnU-Net's validation cases.

        Raises:
            DataError: no training case has a counterpart.
        """
        train, validation = super().get_tr_and_val_datasets()
        folders = {case: self.counterparts / case for case in train.identifiers}
        files = {case: list_images(folder) for case, folder in folders.items() if folder.is_dir()}
        files = {case: found for case, found in files.items() if found}
        if not files:
            raise DataError(
                f"None of the {len(folders)} training cases has counterparts. Expected images in "
                f"{self.counterparts / next(iter(folders), 'CASE')} and so on: `mcpmix export-pairs RUN "
                "--to nnunet` writes them."
            )
        self.print_to_log_file(
            f"{sum(map(len, files.values()))} counterparts of {len(files)} of {len(folders)} training cases"
        )
        prepare = partial(_preprocess, plans=self.plans_manager, configuration=self.configuration_manager)
        return PairedCases(train, files, prepare), validation

    @staticmethod
    def get_training_transforms(*arguments: Any, **options: Any) -> BasicTransform:  # noqa: ANN401
        """nnU-Net's own, drawn once for image and counterpart."""
        return SharedTransform(nnUNetTrainer.get_training_transforms(*arguments, **options))

    def on_train_start(self) -> None:
        """Also let the strategy look at some batches, in a new run: RLA measures its margin."""
        super().on_train_start()
        self.strategy.prepare(self._batch(batch)[0] for batch in islice(self.dataloader_train, _CALIBRATION))

    def on_train_epoch_start(self) -> None:
        """Also tell the strategy the epoch."""
        super().on_train_epoch_start()
        self.strategy.train()
        self.strategy.set_epoch(self.current_epoch + 1)

    def train_step(self, batch: dict[str, Any]) -> dict[str, Any]:
        """One step on real and mixed images, under nnU-Net's loss for each."""
        paired, target = self._batch(batch)
        total = self.objective(paired, target)
        optimisers = [self.optimizer, *([self.gates] if self.gates else [])]
        for optimiser in optimisers:
            optimiser.zero_grad(set_to_none=True)
        scaler = self.grad_scaler or torch.GradScaler(self.device.type, enabled=False)
        scaler.scale(total).backward()
        scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), _MOST_GRADIENT)
        for optimiser in optimisers:
            scaler.step(optimiser)
        scaler.update()
        return {"loss": total.detach().cpu().numpy()}

    def objective(self, batch: Batch, target: Tensor | list[Tensor]) -> Tensor:
        """The strategy's objective, 0-d, from nnU-Net's loss of each term.

        Args:
            target: (B, 1, H, W) labels; with deep supervision one tensor per scale.
        """
        terms, losses = self.strategy.terms(batch, torch.default_generator), []
        for term in terms:
            # Where plans ask for batch norm, its running statistics stay those of real images.
            kept = nullcontext() if term.name == REAL else frozen_statistics(self.network)
            with torch.autocast(self.device.type, enabled=self.device.type == "cuda"), kept:
                losses.append(self.loss(self.network(term.images), target))
        return self.strategy.combine(losses, batch, terms)

    def on_train_epoch_end(self, train_outputs: list[dict[str, Any]]) -> None:
        """Also log share and weight, in nnU-Net's curves and in words."""
        super().on_train_epoch_end(train_outputs)
        values = self.strategy.log()
        for name in ("s", "rho"):
            self.logger.local_logger.my_fantastic_logging.setdefault(f"mcpmix_{name}", [])
            self.logger.log(f"mcpmix_{name}", values[name], self.current_epoch)
        self.print_to_log_file(*(f"{name} {value:.4g}" for name, value in values.items()))
        for warning in self.strategy.warnings():
            self.print_to_log_file(f"WARNING: {warning}")

    def save_checkpoint(self, filename: str) -> None:
        """nnU-Net's checkpoint; the state of the strategy and of its optimiser are in `init_args`."""
        gates = self.gates.state_dict() if self.gates else None
        self.my_init_kwargs[_STATE] = {"strategy": self.strategy.state_dict(), "optimizer": gates}
        super().save_checkpoint(filename)

    def load_checkpoint(self, filename_or_checkpoint: dict[str, Any] | str) -> None:
        """Continue from nnU-Net's checkpoint, with the gates as they were."""
        super().load_checkpoint(filename_or_checkpoint)
        state = self.my_init_kwargs[_STATE]
        self.strategy.load_state_dict(state["strategy"])
        if self.gates:
            self.gates.load_state_dict(state["optimizer"])

    def _batch(self, batch: dict[str, Any]) -> tuple[Batch, Tensor | list[Tensor]]:
        """What nnU-Net's loader gives, on the device: for the strategy, and the targets of nnU-Net's loss."""
        real, counterpart = batch["data"].to(self.device, non_blocking=True).chunk(2, dim=1)
        target, several = batch["target"], isinstance(batch["target"], list)
        scales = [scale.to(self.device, non_blocking=True) for scale in (target if several else [target])]
        paired = Batch(real, scales[0].float(), counterpart, tuple(map(str, batch["keys"])))
        return paired, scales if several else scales[0]


class nnUNetTrainerMCPMixRLA(nnUNetTrainerMCPMix):  # noqa: N801
    """nnU-Net with MCPMix and RLA: the share s and the weight rho of the mixed loss are learnt."""

    arm: ClassVar[str] = "mcpmix-rla"


def _preprocess(
    file: Path,
    segmentation: Values,
    properties: dict[str, Any],
    plans: Any,  # noqa: ANN401
    configuration: Any,  # noqa: ANN401
) -> Values:
    """A counterpart as nnU-Net preprocesses images, but cut as its case was: (C, 1, H, W).

    nnU-Net cuts an image to what is not black; a counterpart may be black elsewhere. Natural images have no
    spacing, so nothing is resampled.
    """
    values, _ = plans.image_reader_writer_class().read_images([str(file)])
    values = values.transpose([0, *(axis + 1 for axis in plans.transpose_forward)])
    window = tuple(slice(first, last) for first, last in properties["bbox_used_for_cropping"])
    values = np.array(values[:, *window])
    normalise = configuration.preprocessor_class(verbose=False)._normalize
    result: Values = normalise(
        values, segmentation, configuration, plans.foreground_intensity_properties_per_channel
    )
    return result
