"""The stage adapt: a base that has learnt from images without masks, whatever it starts from."""

import json
import math

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, AutoencoderTiny
from PIL import Image
from tests.helpers.progress import Kill, Recorder

from mcpmix.core.device import setup
from mcpmix.core.errors import ModelError
from mcpmix.core.files import file_digest
from mcpmix.core.pixels import write_png
from mcpmix.data import dataset, unlabelled
from mcpmix.data.index import DatasetIndex
from mcpmix.data.leakage import read_seen
from mcpmix.data.unlabelled import TRAINING_PART, Unlabelled
from mcpmix.generator import adapt
from mcpmix.generator.adapt import Pool, Preview, draw_chances, draw_prompts, group_looks, sheet_of
from mcpmix.generator.autoencoder import latent_spread
from mcpmix.generator.counterparts import Looks
from mcpmix.networks.diffusion import load_base
from mcpmix.networks.features import load_features
from mcpmix.networks.generator import SamplingSettings
from mcpmix.networks.weight_files import folder_digest
from mcpmix.phantom import render

RUNTIME = setup("cpu", "float32", 1, deterministic=True)
SMALL = ("adapt.batch_size=2", "adapt.validation_images=3", "adapt.learning_rate=0.05", "adapt.ema_decay=0")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder of five frames without masks."""
    folder = tmp_path_factory.mktemp("more")
    for patient in range(5):
        write_png(folder / f"{patient}.png", render(7, patient, 0, 64).image)
    return folder


@pytest.fixture(scope="module")
def inputs(make_config, place, tmp_path_factory):
    """Data set and unlabelled images: four and five to learn from."""
    config = make_config(tmp_path_factory.mktemp("inputs"), f"data.unlabelled={place}")
    data = dataset.run(config, config.folder / "dataset")
    return data, unlabelled.run(config, data, config.folder / "unlabelled")


@pytest.fixture
def adapted(make_config, inputs, place, tmp_path, monkeypatch):
    """Runs the stage with few views and crude drawings: `adapted("name of the folder", "key=value", ...)`."""
    monkeypatch.setattr("mcpmix.generator.base.view_count", lambda _: 2)
    monkeypatch.setattr(adapt, "_SAMPLING", SamplingSettings(1, 1.0, 1.0, 1.0))

    def make(name, *overrides, progress=None):
        config = make_config(tmp_path, f"data.unlabelled={place}", *SMALL, *overrides)
        return adapt.run(config, *inputs, tmp_path / name, RUNTIME, progress or Recorder())

    return make


def moved(made, models):
    """Names of the denoiser's weights that the stage has changed."""
    folders = (models / "pipeline", made / "pipeline")
    before, after = (load_base(folder).unet.state_dict() for folder in folders)
    assert before.keys() == after.keys()
    return {name for name, value in after.items() if not torch.equal(value, before[name])}


def test_the_result_is_a_base_that_lists_what_it_has_seen(adapted, inputs, random_models):
    recorder = Recorder()
    steps = ("adapt.steps=3", "adapt.save_every=100", "adapt.validate_every=2")
    made = adapted("base", *steps, progress=recorder)
    assert any("conv_in" in name for name in moved(made, random_models))
    index, more = DatasetIndex.read(inputs[0]), Unlabelled.read(inputs[1])
    seen = {image.sha256 for image in read_seen(made / "pipeline")}
    assert seen == {r.image_sha256 for r in index.part("train")} | {image.sha256 for image in more.seen}
    counts = made.manifest["counts"]
    assert counts["images"] == {TRAINING_PART: 4, more.places[0]: 5}
    rows = [json.loads(line) for line in (made / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [2, 3]  # as asked for, and at the end
    assert all(math.isfinite(row["kid"]) and row["kid_error"] > 0 for row in rows)
    assert (counts["steps"], counts["kid"]) == (3, rows[-1]["kid"])
    assert {sheet.name for sheet in (made / "sheets").iterdir()} == {"step-000002.png", "step-000003.png"}
    with Image.open(made / "sheets" / "step-000003.png") as sheet:
        assert sheet.size == (8 * 64, 64)
    assert any(line.endswith("dB") for line in recorder.lines)
    left = {path.name for path in made.folder.iterdir()}
    assert left == {"log.jsonl", "manifest.json", "pipeline", "sheets"}
    texts = [file.read_text() for file in (made / "pipeline").rglob("*.json")]
    assert not any(str(random_models) in text for text in texts)  # no path of this machine
    again = Recorder()
    assert adapted("base", *steps, progress=again).digest == made.digest
    assert again.titles == []


def test_a_stage_killed_in_each_of_its_trainings_ends_in_the_same_bits(adapted):
    settings = ["adapt.autoencoder_steps=2", "adapt.decoder_steps=2", "adapt.looks=2"]
    settings += ["adapt.steps=3", "adapt.save_every=1"]
    whole = adapted("whole", *settings)
    for title in ("autoencoder", "decoder", "base"):
        with pytest.raises(KeyboardInterrupt):
            adapted("killed", *settings, progress=Kill(title))
    resumed = adapted("killed", *settings)
    files = sorted(path.relative_to(whole / "pipeline") for path in (whole / "pipeline").rglob("*.*"))
    assert {"unet", "vae", "text_encoder"} <= {file.parts[0] for file in files}
    for file in files:
        assert file_digest(whole / "pipeline" / file) == file_digest(resumed / "pipeline" / file), file
    assert resumed.manifest["counts"] == whole.manifest["counts"]


def test_another_base_at_the_same_place_is_noticed_by_this_process(adapted):
    first = folder_digest(adapted("base", "adapt.steps=1") / "pipeline")
    assert folder_digest(adapted("base", "adapt.steps=2") / "pipeline") != first


def test_lora_moves_attention_only(adapted, random_models):
    pytest.importorskip("peft")
    names = moved(adapted("base", "adapt.steps=2", "adapt.lora_rank=2"), random_models)
    assert names
    assert all("attn" in name and ".to_" in name for name in names)


# --- autoencoders ------------------------------------------------------------------------------------------


@pytest.fixture
def four_channels(tmp_path):
    """An autoencoder that the base of eight channels does not fit."""
    torch.manual_seed(1)
    widths = {"encoder_block_out_channels": (8, 8, 8, 8), "decoder_block_out_channels": (8, 8, 8, 8)}
    blocks = {"num_encoder_blocks": (1, 1, 1, 1), "num_decoder_blocks": (1, 1, 1, 1)}
    AutoencoderTiny(**widths, **blocks, latent_channels=4).save_pretrained(tmp_path / "four")
    return tmp_path / "four"


def test_an_autoencoder_with_other_channels_is_refused_with_both_numbers(adapted, four_channels):
    with pytest.raises(ModelError, match=rf"{four_channels}.* 4 channels.* expects 8\b.*adapt\.unet"):
        adapted("base", "adapt.steps=1", f"adapt.autoencoder={four_channels}")


def test_an_autoencoder_with_another_scale_is_refused(adapted, random_models, tmp_path):
    vae = load_base(random_models / "pipeline").vae
    vae.register_to_config(scaling_factor=3 * vae.config.scaling_factor)
    vae.save_pretrained(tmp_path / "loud")
    with pytest.raises(ModelError, match=r"loud spread 3\.00 times.*0\.8 to 1\.25.*adapt\.unet"):
        adapted("base", "adapt.steps=1", f"adapt.autoencoder={tmp_path / 'loud'}")


def test_a_denoiser_from_scratch_takes_any_autoencoder(adapted, four_channels, inputs):
    made = adapted("base", "adapt.steps=1", f"adapt.autoencoder={four_channels}", "adapt.unet=tiny")
    base = load_base(made / "pipeline")
    assert base.unet.config.in_channels == base.vae.config.latent_channels == 4
    images = Pool(Unlabelled.read(inputs[1]).images)
    assert latent_spread(base.vae, images) * base.vae.config.scaling_factor == pytest.approx(1, rel=0.1)


def test_an_autoencoder_of_another_kind_is_not_trained(adapted, tmp_path):
    blocks = {"down_block_types": ("DownEncoderBlock2D",), "up_block_types": ("UpDecoderBlock2D",)}
    kind = AutoencoderKL(**blocks, block_out_channels=(8,), norm_num_groups=4, latent_channels=8)
    kind.save_pretrained(tmp_path / "kl")
    settings = (f"adapt.autoencoder={tmp_path / 'kl'}", "adapt.unet=tiny", "adapt.autoencoder_steps=1")
    with pytest.raises(ModelError, match="AutoencoderKL is not trained here"):
        adapted("base", "adapt.steps=1", *settings)


# --- what is drawn, and compared ---------------------------------------------------------------------------


def test_a_place_counts_by_the_square_root_of_its_images():
    # 4 images weigh 1/2 each, one weighs 1: 2 + 1 in all.
    assert draw_chances(["a", "b", "a", "a", "a"]) == pytest.approx([1 / 6, 1 / 3, 1 / 6, 1 / 6, 1 / 6])
    assert draw_chances(["a", "a"]) == pytest.approx([0.5, 0.5])


def test_a_pool_numbers_the_images_of_its_parts_in_turn():
    parts = [np.full((count, 2, 2, 3), level, np.uint8) for level, count in ((1, 2), (2, 0), (3, 3))]
    pool = Pool(*parts)
    assert len(pool) == 5
    assert pool[1:4][:, 0, 0, 0].tolist() == [1, 3, 3]
    assert pool[np.array([4, 0])][:, 0, 0, 0].tolist() == [3, 1]


def test_two_clear_groups_are_two_looks():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(12, 5))
    features[::3] += 50
    features[:, 4] = 7.0  # tells nothing, and has no spread to divide by
    looks = group_looks(features, 2, seed=0)
    assert set(looks) == {0, 1}
    assert len(set(looks[::3])) == 1
    assert looks.count(looks[0]) == 4
    assert group_looks(features, 2, seed=0) == looks
    alone = group_looks(features[:2], 5, seed=0)  # fewer images than looks
    assert sorted(alone) == [0, 1]


def test_prompts_name_the_looks_and_images_keep_theirs(adapted, inputs):
    made = adapted("base", "adapt.steps=1", "adapt.looks=3")
    looks = Looks.read(made / "pipeline")
    assert set(looks.look_of) == {image.sha256 for image in read_seen(made / "pipeline")}
    assert looks.texts == tuple(f"look 0 {number}" for number in range(len(looks.texts)))
    assert 1 < len(looks.texts) <= 3
    own = [looks.look_of[record.image_sha256] for record in DatasetIndex.read(inputs[0]).part("train")]
    assert looks.shares == tuple(own.count(number) / 4 for number in range(len(looks.texts)))


def test_previews_are_drawn_in_looks_of_the_training_part(make_config, tmp_path):
    config = make_config(tmp_path)
    prompt, looks = config.generator.prompt.text, Looks(("a", "b", "c"), {}, (0.75, 0.0, 0.25))
    drawn = draw_prompts(config, looks, 200)
    assert set(drawn) == {f"{prompt} a", f"{prompt} c"}
    assert drawn.count(f"{prompt} a") == pytest.approx(150, abs=20)
    assert draw_prompts(config, None, 2) == [prompt, prompt]


def test_one_validation_image_gives_no_kid_and_no_error(make_config, random_models, tmp_path, monkeypatch):
    config = make_config(tmp_path, "adapt.steps=2")
    pictures = np.zeros((3, 64, 64, 3), np.uint8)
    monkeypatch.setattr(adapt, "draw_images", lambda *_: pictures)
    features = load_features(str(random_models / "features"))
    preview = Preview(config, pictures[:1], features, None, tmp_path, RUNTIME, Recorder())
    for step in (1, 2, 2):  # not due, due, done
        preview(step, lambda: None)
    (row,) = preview.rows()
    assert row["step"] == 2
    assert math.isnan(row["kid"])


def test_a_sheet_has_rows_of_eight_and_ends_in_black():
    images = np.full((10, 2, 3, 3), 9, np.uint8)
    sheet = sheet_of(images)
    assert sheet.shape == (4, 24, 3)
    assert sheet[2:, :6].min() == 9
    assert sheet[2:, 6:].max() == 0
    assert sheet_of(np.repeat(images, 5, axis=0)).shape == (8, 24, 3)  # 32 of 50
