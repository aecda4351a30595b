"""nnU-Net with counterparts, at toy size, on a data set that is exported and planned as users do it."""

import importlib
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.helpers.finished_run import FinishedRun

import mcpmix
from mcpmix.config_file import to_yaml
from mcpmix.core.errors import ConfigError, DataError, DependencyError
from mcpmix.core.files import read_json, write_json
from mcpmix.generator.pair_export import export_to_nnunet
from mcpmix.metrics import score_folder
from mcpmix.mixing.mcpmix import CosineMix

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # those of nnU-Net's libraries
NAME = "Dataset501_Toy"
PLAIN, OURS = "nnUNetTrainer", ("nnUNetTrainerMCPMix", "nnUNetTrainerMCPMixRLA")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """nnU-Net's three folders with an exported, planned and preprocessed data set of 32 x 32 pixels."""
    with warnings.catch_warnings(action="ignore"), pytest.MonkeyPatch.context() as patch:
        pytest.importorskip("nnunetv2")
        from nnunetv2.experiment_planning import plan_and_preprocess_api as api

        run = FinishedRun(tmp_path_factory.mktemp("runs")).config
        (run.folder / "config.yaml").write_text(to_yaml(run))
        folder = tmp_path_factory.mktemp("nnunet")
        for kind in ("raw", "preprocessed", "results"):
            patch.setenv(f"nnUNet_{kind}", str(folder / kind))
        patch.setenv("nnUNet_extTrainer", str(Path(mcpmix.__file__).parent / "segmenter/nnunet_trainers"))
        patch.setenv("nnUNet_n_proc_DA", "1")
        export_to_nnunet(run.folder, NAME, raw=folder / "raw", preprocessed=folder / "preprocessed")
        api.extract_fingerprints([501], num_processes=1)
        api.plan_experiments([501])
        small = folder / "preprocessed" / NAME / "nnUNetPlans.json"
        plans = read_json(small)
        plans["configurations"]["2d"]["batch_size"] = 3
        architecture = plans["configurations"]["2d"]["architecture"]["arch_kwargs"]
        architecture["features_per_stage"] = [4] * architecture["n_stages"]
        write_json(small, plans)
        api.preprocess([501], configurations=["2d"], num_processes=[1])
        patch.setenv("nnUNet_n_proc_DA", "0")  # batches are made in this process
        yield folder


@pytest.fixture
def trainer(home):
    """Makes a trainer as `nnUNetv2_train 501 2d 0 -tr NAME` does, for two short epochs."""
    from nnunetv2.run.run_training import get_trainer_from_args

    def make(name, resume=False):
        np.random.seed(0)
        torch.manual_seed(0)
        made = get_trainer_from_args(
            "501", "2d", 0, name, continue_training=resume, device=torch.device("cpu")
        )
        made.num_epochs, made.num_iterations_per_epoch, made.num_val_iterations_per_epoch = 2, 3, 1
        made.save_every = 1
        return made

    return make


@pytest.mark.parametrize("name", [PLAIN, *OURS])
def test_it_trains_resumes_and_predicts(home, trainer, name, tmp_path):
    from nnunetv2.evaluation.evaluate_predictions import compute_metrics
    from nnunetv2.imageio.natural_image_reader_writer import NaturalImage2DIO
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor
    from nnunetv2.run.run_training import maybe_load_checkpoint

    first = trainer(name)
    first.on_epoch_start = lambda: stop_in(first, epoch=1)
    with pytest.raises(KeyboardInterrupt):
        first.run_training()
    second = trainer(name, resume=True)
    maybe_load_checkpoint(second, continue_training=True, validation_only=False)
    assert second.current_epoch == 1
    if name in OURS:
        stopped, resumed = first.strategy.state_dict(), second.strategy.state_dict()
        assert all(torch.equal(stopped[key], resumed[key]) for key in stopped)
    second.run_training()
    log = second.logger.get_checkpoint()
    assert {len(values) for values in log.values()} == {2}
    final = Path(second.output_folder) / "checkpoint_final.pth"
    numbers = [np.dtype, np._core.multiarray.scalar, *(type(np.dtype(kind)) for kind in ("f4", "f8", "i8"))]
    with torch.serialization.safe_globals(numbers):  # nnU-Net logs numbers of NumPy
        kept = torch.load(final, weights_only=True)
    assert kept["trainer_name"] == name
    if name == OURS[1]:
        gates = kept["init_args"]["mcpmix"]["strategy"]
        assert any(float(values.abs().sum()) > 0 for key, values in gates.items() if "output" in key)
        assert kept["logging"]["mcpmix_s"][0] != kept["logging"]["mcpmix_s"][1]
        words = "".join(file.read_text() for file in Path(second.output_folder).glob("training_log_*.txt"))
        assert words.count("s_end") == 2
        assert float(second.strategy.rla.tau0) == float(first.strategy.rla.tau0)  # measured once

    predictor = nnUNetPredictor(
        device=torch.device("cpu"), perform_everything_on_device=False, allow_tqdm=False
    )
    predictor.initialize_from_trained_model_folder(second.output_folder_base, (0,))
    out, raw = tmp_path / "predictions", home / "raw" / NAME
    out.mkdir()
    predictor.predict_from_files_sequential(str(raw / "imagesTs"), str(out))
    report = score_folder(raw / "labelsTs", out)
    assert len(report.method.images) == 6
    for image in report.method.images:
        files = str(image.files.truth), str(image.files.prediction)
        theirs = compute_metrics(*files, NaturalImage2DIO(), [1])["metrics"][1]["Dice"]
        assert image.scores["dsc"] == pytest.approx(100 * theirs, nan_ok=True)


def stop_in(trainer, epoch):
    """A kill at the start of an epoch."""
    if trainer.current_epoch == epoch:
        raise KeyboardInterrupt
    type(trainer).on_epoch_start(trainer)


def test_a_step_without_synthetic_share_is_that_of_nnunet(trainer):
    ours = trainer(OURS[0])
    ours.on_train_start()
    ours.strategy = CosineMix(epochs=1)  # s is 0 at the end of its schedule
    ours.on_train_epoch_start()
    batch = next(ours.dataloader_train)
    start = {key: value.clone() for key, value in ours.network.state_dict().items()}
    losses, weights = [], []
    for step, channels in ((ours.train_step, 6), (super(type(ours), ours).train_step, 3)):
        ours.network.load_state_dict(start)
        ours.optimizer.state.clear()
        losses.append(float(step({**batch, "data": batch["data"][:, :channels]})["loss"]))
        weights.append([value.clone() for value in ours.network.parameters()])
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=1e-6)
    assert not all(torch.equal(value, start[key]) for key, value in ours.network.state_dict().items())


def test_the_loss_counts_real_and_mixed_images_as_rla_says(trainer):
    ours = trainer(OURS[1])
    ours.on_train_start()
    ours.on_train_epoch_start()
    ours.strategy.spread = 0.0
    ours.strategy.eval()  # so that it leaves its running means alone
    batch, target = ours._batch(next(ours.dataloader_train))
    rla = ours.strategy.rla
    mixed = mcpmix.mix(batch.images, batch.synthetic, rla.s)
    real, mix = (ours.loss(ours.network(images), target) for images in (batch.images, mixed))
    expected = rla.loss(real, mix, batch.images, mixed).total
    torch.testing.assert_close(ours.objective(batch, target), expected)
    assert float(rla.s.detach()) == pytest.approx(0.35)


def transforms_of(trainer, name):
    made = trainer(name)
    rotation, dummy, _, mirror = made.configure_rotation_dummyDA_mirroring_and_inital_patch_size()
    return made.get_training_transforms((32, 32), rotation, None, mirror, dummy)


def test_image_and_counterpart_go_through_one_transform(trainer):
    theirs, shared = transforms_of(trainer, PLAIN), transforms_of(trainer, OURS[0])
    rows, columns = torch.meshgrid(torch.arange(48.0), torch.arange(48.0), indexing="ij")
    coordinates = torch.stack([rows, columns, rows + columns]) / 96
    labels = (rows > columns)[None].to(torch.int16)
    still = 0
    for seed in range(60):
        results = []
        for transform, image in ((shared, torch.cat([coordinates] * 2)), (theirs, coordinates)):
            np.random.seed(seed)
            torch.manual_seed(seed)
            results.append(transform(image=image.clone(), segmentation=labels.clone()))
        real, counterpart = results[0]["image"].chunk(2)
        torch.testing.assert_close(real, counterpart, rtol=0, atol=1e-6)
        torch.testing.assert_close(real, results[1]["image"], rtol=0, atol=1e-6)
        assert torch.equal(results[0]["segmentation"], results[1]["segmentation"])
        still += torch.allclose(real, coordinates[:, 8:40, 8:40])
    assert still < 30  # most were moved or recoloured


def test_pixels_of_different_images_move_alike(trainer):
    shared = transforms_of(trainer, OURS[0])
    moves = ("SpatialTransform", "MirrorTransform")
    inner = shared.transform
    inner.transforms = [step for step in inner.transforms if type(step).__name__ in moves]
    assert len(inner.transforms) == 2
    image = torch.rand(3, 48, 48)
    for seed in range(20):
        np.random.seed(seed)
        labels = torch.zeros(1, 48, 48, dtype=torch.int16)
        moved = shared(image=torch.cat([image, 2 * image]), segmentation=labels)["image"]
        torch.testing.assert_close(moved[3:], 2 * moved[:3])


def test_a_counterpart_is_normalised_as_nnunet_does_and_cut_as_its_case(home, trainer):
    ours = trainer(OURS[0])
    ours.initialize()
    cases, _ = ours.get_tr_and_val_datasets()
    case = cases.identifiers[0]
    values, _, _, properties = cases.load_case(case)
    assert values.shape == (6, 1, 32, 32)
    np.testing.assert_array_equal(values[:3], cases.cases.load_case(case)[0][:])
    np.testing.assert_allclose(values[3:].mean((1, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(values[3:].std((1, 2, 3)), 1, atol=1e-5)
    properties["bbox_used_for_cropping"] = [[0, 1], [4, 30], [2, 32]]
    file = cases.files[case][0]
    cut = cases.prepare(file, np.zeros((1, 1, 26, 30)), properties)
    pixels = np.array(Image.open(file))[4:30, 2:32].astype(np.float32)
    np.testing.assert_allclose(
        cut[:, 0], ((pixels - pixels.mean((0, 1))) / pixels.std((0, 1))).transpose(2, 0, 1), atol=1e-4
    )


def test_a_case_without_counterparts_is_its_own(trainer):
    ours = trainer(OURS[0])
    ours.initialize()
    cases, _ = ours.get_tr_and_val_datasets()
    case = cases.identifiers[0]
    del cases.files[case]
    values = cases.load_case(case)[0]
    np.testing.assert_array_equal(values[:3], values[3:])


def test_what_cannot_be_trained_is_named(home, trainer, tmp_path):
    ours = trainer(OURS[0])
    ours.configuration_manager.configuration["patch_size"] = [8, 32, 32]
    ours.configuration_manager.configuration["normalization_schemes"] = ["RGBTo01Normalization"] * 3
    with pytest.raises(ConfigError, match=r"(?s)patches \[8, 32, 32\]; expected 2d.*RGBTo01Normalization"):
        ours.initialize()

    ours = trainer(OURS[0])
    ours.initialize()
    cases, _ = ours.get_tr_and_val_datasets()
    Image.new("RGB", (32, 30)).save(tmp_path / "0.png")
    cases.files[cases.identifiers[0]] = [tmp_path / "0.png"]
    with pytest.raises(DataError, match=r"becomes \(3, 1, 30, 32\) where its case \w+ is \(3, 1, 32, 32\)"):
        cases.load_case(cases.identifiers[0])
    ours.counterparts = tmp_path / "nowhere"
    with pytest.raises(DataError, match=r"None of the 4 training cases has counterparts.*export-pairs"):
        ours.get_tr_and_val_datasets()


def test_without_nnunet_the_extra_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "mcpmix.segmenter.nnunet", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == "batchgeneratorsv2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "batchgeneratorsv2", None)
    with pytest.raises(DependencyError, match=r"batchgeneratorsv2.*pip install 'mcpmix\[nnunet\]'"):
        importlib.import_module("mcpmix.segmenter.nnunet")
