"""The stage of fine-tuning; its unlocked decoder is trained at its own rate, saved and used again."""

import gc
import weakref

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.helpers.progress import Kill
from tests.helpers.unlabelled import store_frames

from mcpmix.core.device import Runtime, setup
from mcpmix.core.errors import ConfigError, DataError, ModelError
from mcpmix.core.progress import SILENT
from mcpmix.core.stage_folder import Artifact
from mcpmix.data import dataset
from mcpmix.data.index import DatasetIndex, load_arrays
from mcpmix.data.leakage import read_seen
from mcpmix.data.unlabelled import Unlabelled
from mcpmix.generator import depth, finetune
from mcpmix.generator.conditions import condition
from mcpmix.generator.counterparts import build_maker
from mcpmix.generator.depth import read_depths
from mcpmix.generator.finetune_trainer import prepare
from mcpmix.networks.diffusion import load_base
from mcpmix.networks.generator import (
    DECODER_FILE,
    control_from_base,
    decoder_of,
    load_decoder,
    load_generator,
    with_decoder,
)
from mcpmix.networks.weight_files import folder_digest
from mcpmix.run import run

CPU = torch.device("cpu")
WEIGHTS = "diffusion_pytorch_model.safetensors"


def test_autoencoder_and_text_encoder_have_left_memory_when_training_starts(
    make_config, tmp_path, monkeypatch
):
    load, parts, alive = finetune.load_base, {}, {}

    def watched(*arguments, **options):
        loaded = load(*arguments, **options)
        parts.update({name: weakref.ref(getattr(loaded, name)) for name in ("vae", "text_encoder", "unet")})
        return loaded

    class Enough(Exception):  # noqa: N818
        """Nothing more is of interest."""

    def train(*arguments):
        gc.collect()
        alive.update({name: part() is not None for name, part in parts.items()})
        raise Enough

    monkeypatch.setattr(finetune, "load_base", watched)
    monkeypatch.setattr(finetune, "train", train)
    with pytest.raises(Enough):
        _ = run(make_config(tmp_path), until="generator")
    assert alive == {"vae": False, "text_encoder": False, "unet": True}


def test_a_missing_second_process_is_refused_before_any_work(make_config, tmp_path):
    config = make_config(tmp_path, "finetune.processes=2")
    stages = [Artifact(tmp_path, {"digest": name}) for name in ("dataset", "depth")]
    runtime = Runtime(CPU, torch.float32, "test")
    with pytest.raises(ConfigError, match=r"processes is 2, but 1 process was started"):
        finetune.run(config, *stages, None, None, tmp_path / "generator", runtime)
    assert not (tmp_path / "generator.partial").exists()


def test_a_start_is_part_of_the_key(make_config, random_models, tmp_path):
    place = tmp_path / "start"
    control_from_base(load_base(random_models / "pipeline")).save_pretrained(place)
    config = make_config(tmp_path, f"finetune.start={place}")
    stages = [Artifact(tmp_path, {"digest": name}) for name in ("dataset", "depth")]
    before = finetune.key(config, *stages)
    assert before.settings["start"] != finetune.key(make_config(tmp_path), *stages).settings.get("start")
    (place / "config.json").write_text((place / "config.json").read_text() + "\n")
    folder_digest.cache_clear()
    assert finetune.key(config, *stages).settings["start"] != before.settings["start"]


@pytest.mark.parametrize("way", ["keep", "fill"])
def test_training_and_synthesis_show_the_same_depth(make_config, random_models, tmp_path, way):
    config = make_config(tmp_path, f"finetune.depth_under_mask={way}")
    done = run(config, until="generator")
    arrays = load_arrays(DatasetIndex.read(done.dataset).part("train"), config.data.size)
    depths = read_depths(done.depth.folder, arrays.ids)
    trained = prepare(load_base(random_models / "pipeline"), arrays, depths, config).conditions
    made = build_maker(config, done.generator.folder, arrays, depths, CPU).conditions
    every, masks = range(len(arrays)), torch.from_numpy(arrays.masks).float()
    assert torch.equal(trained[every], made[every])
    # Made one by one, they are those of all together.
    assert torch.equal(trained[every], condition(masks, torch.from_numpy(depths), "both", way))
    assert torch.equal(trained[every][:, 1], torch.from_numpy(depths)) == (way == "keep")


@pytest.fixture(scope="module")
def unlocked(make_config, tmp_path_factory):
    """Two steps with the decoder unlocked; rates that move both parts, and no averaging."""
    config = make_config(
        tmp_path_factory.mktemp("unlocked"),
        "finetune.unlock_decoder=true",
        "finetune.decoder_learning_rate=1e-4",
        "finetune.ema_decay=0",
    )
    return run(config, until="generator").generator


def test_the_decoder_alone_moves_and_by_its_own_rate(unlocked, random_models):
    base = load_base(random_models / "pipeline")
    before = {name: value.clone() for name, value in base.unet.state_dict().items()}
    saved = load_file(unlocked / "controlnet" / DECODER_FILE)

    assert {name.split(".")[0] for name in saved} == {"up_blocks", "conv_norm_out", "conv_out"}
    moves = {name: (value - before[name]).abs().max().item() for name, value in saved.items()}
    assert min(moves.values()) > 0
    # Two steps of Adam: half the rate in the warm-up step, the whole rate after it, and weight decay.
    assert max(moves.values()) < 1.6e-4


def test_the_generator_takes_the_saved_decoder(unlocked, random_models):
    saved = load_file(unlocked / "controlnet" / DECODER_FILE)
    generator = load_generator(load_base(random_models / "pipeline"), unlocked / "controlnet")
    unet = generator.base.unet.state_dict()
    original = load_base(random_models / "pipeline").unet.state_dict()

    for name, value in unet.items():
        assert torch.equal(value, saved.get(name, original[name])), name
    assert not any(parameter.requires_grad for parameter in generator.base.unet.parameters())


def test_a_locked_run_saves_no_decoder(make_config, tmp_path, random_models):
    artifact = run(make_config(tmp_path, "finetune.steps=1"), until="generator").generator
    assert not (artifact / "controlnet" / DECODER_FILE).exists()
    assert not load_decoder(load_base(random_models / "pipeline").unet, artifact / "controlnet")


@pytest.mark.parametrize("content", ["foreign", "damaged"])
def test_a_decoder_that_does_not_fit_is_refused(random_models, tmp_path, content):
    if content == "foreign":
        save_file({"conv_out.weight": torch.zeros(3)}, tmp_path / DECODER_FILE)
    else:
        (tmp_path / DECODER_FILE).write_bytes(b"nothing")
    with pytest.raises(ModelError, match=r"does not fit the decoder of the base.*fine-tune again"):
        load_decoder(load_base(random_models / "pipeline").unet, tmp_path)


def test_a_second_decoder_shares_all_else(random_models):
    unet = load_base(random_models / "pipeline").unet
    other = load_base(random_models / "pipeline").unet
    with torch.no_grad():
        other.conv_out.weight.zero_()
        other.conv_out.bias.fill_(3.0)
    view = with_decoder(unet, decoder_of(other))
    latents, text = torch.randn(1, unet.config.in_channels, 8, 8), torch.zeros(1, 2, 1)
    text = text.expand(1, 2, unet.config.cross_attention_dim)

    assert view.conv_in is unet.conv_in
    assert view.up_blocks is other.up_blocks
    with torch.no_grad():
        assert torch.equal(view(latents, 5, text).sample, torch.full_like(latents, 3.0))
        assert not torch.equal(unet(latents, 5, text).sample, torch.full_like(latents, 3.0))


# --- a start from pseudo-masks -----------------------------------------------------------------------------


PSEUDO = ("data.unlabelled=more", "finetune.start=pseudo", "finetune.pseudo_steps=2", "finetune.ema_decay=0")


@pytest.fixture
def frames(tmp_path):
    """Unlabelled frames and their pseudo-masks, two of three of which are used."""
    return finetune.Marked(*store_frames(tmp_path, [True, False, True]))


@pytest.fixture
def begun(make_config, frames, tmp_path):
    """Runs the stage: `begun("folder", "key=value", ...)`."""
    runtime = setup("cpu", "float32", 1, deterministic=True)

    def make(name, *overrides, marked=frames, progress=SILENT):
        config = make_config(tmp_path, *PSEUDO, *overrides)
        data = dataset.run(config, config.folder / "dataset")
        maps = depth.run(config, data, frames.unlabelled, config.folder / "depth", runtime)
        return finetune.run(config, data, maps, None, marked, tmp_path / name, runtime, progress)

    return make


@pytest.mark.parametrize("condition", ["both", "mask"])
def test_unlabelled_images_come_first_and_are_listed_as_seen(begun, frames, tmp_path, monkeypatch, condition):
    sets, real = [], finetune.prepare
    monkeypatch.setattr(finetune, "prepare", lambda *given: sets.append(given[1:3]) or real(*given))
    made = begun("generator", f"finetune.condition={condition}")
    index, pool = DatasetIndex.read(tmp_path / "small" / "dataset"), Unlabelled.read(frames.unlabelled)
    (labelled, _), (more, depths) = sets
    assert labelled.ids == tuple(record.id for record in index.part("train"))
    assert more.ids == (pool.ids[0], pool.ids[2])
    assert depths[[0, 1]].any() == (condition == "both")
    assert (tmp_path / "small" / "depth" / f"{pool.ids[0]}.png").exists() == (condition == "both")
    assert made.manifest["counts"]["steps"] == 2 + 2
    for place in (made.folder, made / "controlnet"):
        seen = {image.sha256 for image in read_seen(place)}
        assert seen == {r.image_sha256 for r in index.part("train")} | {image.sha256 for image in pool.seen}


def test_it_is_stopped_between_the_two_and_ends_in_the_same_bits(begun):
    whole = begun("whole")
    for _ in range(2):  # before the checkpoints of the second step and of the third
        with pytest.raises(KeyboardInterrupt):
            begun("stopped", progress=Kill("finetune"))
    weights = [load_file(made / "controlnet" / WEIGHTS) for made in (whole, begun("stopped"))]
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name


def test_other_pseudo_masks_are_another_generator(make_config, tmp_path):
    config = make_config(tmp_path, *PSEUDO)
    stages = [Artifact(tmp_path, {"digest": name}) for name in ("dataset", "depth")]
    artifacts = [Artifact(tmp_path, {"digest": name}) for name in ("unlabelled", "one", "two")]
    keys = [
        finetune.key(config, *stages, None, finetune.Marked(artifacts[0], each)) for each in artifacts[1:]
    ]
    assert keys[0].digest != keys[1].digest


def test_pseudo_masks_of_which_none_is_used(begun, frames, tmp_path):
    unused = store_frames(tmp_path / "unused", [False, False])
    with pytest.raises(DataError, match=r"finetune\.start: pseudo.*pseudo\.agreement"):
        begun("generator", marked=finetune.Marked(*unused))
