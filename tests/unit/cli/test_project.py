import csv
import json

import numpy as np
import pytest
import yaml
from filelock import FileLock
from PIL import Image

from mcpmix.config_file import load_config


def first(folder):
    return sorted(folder.iterdir())[0]


def error_of(done, code):
    """The one message on stderr."""
    assert done.code == code, done.err
    assert done.err.count("Error: ") == 1
    assert "Traceback" not in done.err
    return done.err


# --- init --------------------------------------------------------------------------------------------------


def test_init_says_what_it_found_and_writes_a_configuration_that_loads(mcpmix, phantom_folder, tmp_path):
    done = mcpmix(
        "init", tmp_path / "my study", "--images", phantom_folder / "images", "--masks",
        phantom_folder / "masks", "--groups", phantom_folder / "groups.csv",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "8 images with masks, 32 x 32 pixels" in done.out
    assert "masks are named like their images" in done.out
    assert "4 groups" in done.out
    assert "preset: tiny, because this machine has no GPU" in done.out
    assert "licence: Apache-2.0" in done.out
    file = tmp_path / "my study" / "mcpmix.yaml"
    assert f"mcpmix check {file}" in done.out.replace("'", "")
    config = load_config(file)
    assert config.name == "my-study"
    assert config.data.images.resolve() == phantom_folder / "images"
    assert config.data.groups.resolve() == phantom_folder / "groups.csv"
    assert config.output == file.parent / "runs"
    text = file.read_text()
    assert "  images: ../set/images\n" in text
    assert "  # Side in pixels of the square that all networks see.\n  size: 128\n" in text
    assert "  arms: [full-sup, mcpmix, mcpmix-rla]\n" in text


def test_init_with_unlabelled_images_adapts_the_base_and_begins_with_pseudo_masks(
    mcpmix, phantom_folder, tmp_path
):
    done = mcpmix(
        "init", tmp_path / "study", "--root", phantom_folder, "--preset", "tiny",
        "--unlabelled", tmp_path / "more", "--unlabelled", "/data/frames.zip",
    )  # fmt: skip
    assert done.code == 0, done.err
    config = load_config(tmp_path / "study" / "mcpmix.yaml")
    more, archive = config.data.unlabelled
    assert (more.resolve(), str(archive)) == (tmp_path / "more", "/data/frames.zip")
    assert min(config.adapt.steps, config.adapt.looks, config.adapt.autoencoder_steps) > 0
    assert config.finetune.start == "pseudo"


def test_init_keeps_every_value_of_the_preset(mcpmix, config):
    written = load_config(config)
    preset = load_config_of_preset("tiny")
    for section in ("depth", "generator", "finetune", "segmenter", "rla", "runtime"):
        assert getattr(written, section) == getattr(preset, section)
    # Words for colours that none of the images has are left out.
    assert set(written.synthesis.appearance) < set(preset.synthesis.appearance)
    assert written.synthesis.model_copy(update={"appearance": ()}) == preset.synthesis.model_copy(
        update={"appearance": ()}
    )


def test_counterparts_take_the_colours_of_the_images(mcpmix, tmp_path):
    from mcpmix.phantom.scene import MUCOSA

    for number, name in enumerate(["red", "orange", "red"]):
        level = np.array(MUCOSA[name][0]) ** (1 / 2.2) * 200
        pixels = np.broadcast_to(level.round().astype(np.uint8), (16, 16, 3))
        for kind, shown in (("images", pixels), ("masks", np.eye(16, dtype=np.uint8) * 255)):
            (tmp_path / kind).mkdir(exist_ok=True)
            Image.fromarray(np.ascontiguousarray(shown)).save(tmp_path / kind / f"{number}.png")
    done = mcpmix("init", tmp_path / "study", "--root", tmp_path)
    assert "counterparts take the colours that these images have: orange mucosa, red mucosa" in done.out
    written = load_config(tmp_path / "study" / "mcpmix.yaml")
    assert written.synthesis.appearance == ("orange mucosa", "red mucosa")


def load_config_of_preset(name):
    from mcpmix.config_file import resolve_config

    return resolve_config({"preset": name})


def test_init_names_the_suffix_and_warns_without_groups(mcpmix, phantom_folder, tmp_path):
    for mask in (phantom_folder / "masks").iterdir():
        mask.rename(mask.with_name(f"{mask.stem}_mask.png"))
    done = mcpmix(
        "init", tmp_path / "s", "--images", phantom_folder / "images", "--masks", phantom_folder / "masks"
    )
    assert "masks are named IMAGE_mask" in done.out
    assert "each image is its own group" in done.out


@pytest.mark.parametrize("here", [True, False])
def test_init_says_what_to_do_without_the_weights(mcpmix, phantom_folder, tmp_path, monkeypatch, here):
    monkeypatch.setattr("mcpmix.init.is_present", lambda *_: here)
    done = mcpmix("init", tmp_path / "s", "--root", phantom_folder)
    assert done.code == 0, done.err
    assert ("--preset tiny needs none of them, and no GPU" in done.out) is not here


def test_init_writes_far_paths_absolutely(mcpmix, phantom_folder, tmp_path):
    deep = tmp_path / "a" / "b" / "c" / "d" / "e"
    done = mcpmix("init", deep, "--images", phantom_folder / "images", "--masks", phantom_folder / "masks")
    assert done.code == 0, done.err
    assert load_config(deep / "mcpmix.yaml").data.images == phantom_folder / "images"


def test_init_never_overwrites_unless_forced(mcpmix, config, phantom_folder):
    before = config.read_text()
    arguments = (
        "init",
        config.parent,
        "--images",
        phantom_folder / "images",
        "--masks",
        phantom_folder / "masks",
    )
    assert f"{config} exists" in error_of(mcpmix(*arguments), 5)
    assert config.read_text() == before
    assert mcpmix(*arguments, "--force").code == 0
    assert config.read_text() != before


def test_init_of_bad_files_leads_to_check_which_mends_them(mcpmix, phantom_folder, tmp_path):
    first(phantom_folder / "masks").unlink()
    arguments = ("--images", phantom_folder / "images", "--masks", phantom_folder / "masks")
    study = tmp_path / "my study"
    done = mcpmix("init", study, *arguments)
    assert "has no mask" in error_of(done, 3)
    assert f"check '{study / 'mcpmix.yaml'}' --fix '{study / 'repaired'}' write a copy" in done.out
    mended = mcpmix("check", study / "mcpmix.yaml", "--fix", study / "repaired")
    assert "repaired copy: " in mended.out


def test_init_shows_a_few_problems_of_each_kind(mcpmix, phantom_folder, tmp_path):
    masks = sorted((phantom_folder / "masks").iterdir())
    for mask in masks[:7]:
        mask.unlink()
    done = mcpmix("init", tmp_path / "study", "--root", phantom_folder)
    assert done.err.count("has no mask") == 5
    assert "and 2 more of this kind, 7 in all" in done.err


def test_swapped_folders_are_guessed(mcpmix, phantom_folder, tmp_path):
    swapped = ("--images", phantom_folder / "masks", "--masks", phantom_folder / "images")
    done = mcpmix("init", tmp_path / "study", *swapped)
    assert "The folders seem to be swapped" in error_of(done, 3)
    assert not (tmp_path / "study").exists()


def test_init_of_missing_folders_writes_nothing(mcpmix, phantom_folder, tmp_path):
    arguments = ("--images", tmp_path / "nowhere", "--masks", phantom_folder / "masks")
    assert "does not exist" in error_of(mcpmix("init", tmp_path / "study", *arguments), 3)
    assert "unknown preset smal: did you mean small?" in error_of(
        mcpmix("init", tmp_path / "study", *arguments, "--preset", "smal"), 2
    )
    assert not (tmp_path / "study").exists()


# --- check -------------------------------------------------------------------------------------------------


def test_check_of_a_good_configuration(mcpmix, config):
    done = mcpmix("check", config, "train.epochs=3")
    assert done.code == 0, done.err
    assert done.err == ""
    assert "data: 8 images of 4 groups; 4 for train, 2 for validation, 2 for test" in done.out
    assert "trainings: 3 (full-sup; seeds 0, 1, 2)" in done.out
    assert "GB free" in done.out
    assert done.out.rstrip().endswith(f"mcpmix run {config} train.epochs=3")
    assert not (config.parent / "runs").exists()


def test_check_finds_problems_of_every_kind_at_once(mcpmix, config, phantom_folder):
    first(phantom_folder / "masks").unlink()
    (phantom_folder / "images" / "p003_f00.png").write_bytes(b"no image")
    (config.parent / "runs").write_text("a file in the way")
    done = mcpmix(
        "check", config, "train.arms=[full-sup, mcpmx, mcpmix]", "segmenter.variant=b9",
        "runtime.device=cuda:99", "depth.model=nobody/nothing", "generator.base=nobody/nothing-else",
    )  # fmt: skip
    assert done.code == 2  # configuration is the gravest
    for text in ("p000_f00.png has no mask", "p003_f00.png cannot be read", "no strategy 'mcpmx'",
                 "unknown 'b9'", "'cuda:99' cannot be used", "No weights for 'nobody/nothing'",
                 "'nobody/nothing-else'", "runs is a file"):  # fmt: skip
        assert text in done.err, text
    assert "Traceback" not in done.err


def test_check_counts_unlabelled_images_and_names_those_of_the_test_part(mcpmix, config, phantom_folder):
    more, images = phantom_folder.parent / "more", phantom_folder / "images"
    more.mkdir()
    Image.effect_noise((40, 32), 90).convert("RGB").save(more / "x.png")
    settings = ("data.labelled=2", f"data.unlabelled={more}")
    done = mcpmix("check", config, *settings)
    assert done.code == 0, done.err
    counts = "2 for train, 2 for validation, 2 for test; 3 without masks (1 in more, 2 in training part)"
    assert counts in " ".join(done.out.split())
    for image in images.iterdir():
        (more / f"copy-{image.name}").write_bytes(image.read_bytes())
    text = error_of(mcpmix("check", config, *settings), 3)
    assert "4 images without masks cannot be used" in text  # copies of training images do no harm
    assert text.count("is the test image") == text.count("is the validation image") == 2


def test_check_refuses_copies_across_the_split(mcpmix, config, phantom_folder):
    images = phantom_folder / "images"
    for group in ("p003", "p006", "p009"):
        (images / f"{group}_f00.png").write_bytes((images / "p000_f00.png").read_bytes())
    assert "identical pixels" in error_of(mcpmix("check", config), 3)


# --- bad input ---------------------------------------------------------------------------------------------


def break_nothing(folder):
    del folder


def remove_mask(folder):
    first(folder / "masks").unlink()


def shrink_mask(folder):
    Image.fromarray(np.zeros((16, 20), np.uint8)).save(first(folder / "masks"))


def damage_image(folder):
    path = first(folder / "images")
    path.write_bytes(path.read_bytes()[:200])


def drop_group(folder):
    rows = list(csv.reader((folder / "groups.csv").open()))
    with (folder / "groups.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows[:-1])


@pytest.mark.parametrize("command", ["check", "train"])
@pytest.mark.parametrize(
    ("damage", "overrides", "code", "message"),
    [
        (remove_mask, (), 3, "p000_f00.png has no mask"),
        (shrink_mask, (), 3, "is 20 x 16 pixels, but its image"),
        (damage_image, (), 3, "p000_f00.png cannot be read"),
        (drop_group, (), 3, "is not in"),
        (break_nothing, ("data.images=/nowhere",), 3, "/nowhere does not exist"),
        (break_nothing, ("train.epoch=3",), 2, "unknown key train.epoch: did you mean epochs?"),
        (break_nothing, ("train.epochs=many",), 2, "train.epochs"),
        (break_nothing, ("epochs",), 2, "override 'epochs': expected key=value"),
        (break_nothing, ("train.arms=[]",), 2, "train.arms: empty"),
        (break_nothing, ("train.seeds=[1, 1]",), 2, "train.seeds: [1, 1] names one twice"),
        (break_nothing, ("segmenter.name=segfromer",), 2, "did you mean segformer?"),
        (break_nothing, ("train.arms=[mcpmix]", "depth.model=/nowhere"), 4, "No weights for '/nowhere'"),
    ],
)
def test_bad_input_gives_one_message(
    mcpmix, config, phantom_folder, command, damage, overrides, code, message
):
    damage(phantom_folder)
    done = mcpmix(command, config, *overrides)
    if message == "No weights for '/nowhere'":  # the embedded weights may be missing as well
        assert (done.code, message in done.err) == (code, True)
    else:
        assert message in error_of(done, code)


def test_missing_configuration(mcpmix, tmp_path):
    assert "No configuration at" in error_of(mcpmix("check", tmp_path / "none.yaml"), 2)


def test_all_typing_mistakes_of_a_configuration_at_once(mcpmix, config):
    tree = yaml.safe_load(config.read_text())
    tree["trian"] = tree.pop("train")
    tree["data"]["sise"] = 3
    config.write_text(yaml.safe_dump(tree))
    message = error_of(mcpmix("check", config), 2)
    assert "unknown key trian: did you mean train?" in message
    assert "unknown key data.sise: did you mean size?" in message


def test_missing_split_file_is_named_even_if_the_images_are_bad(mcpmix, config, phantom_folder):
    remove_mask(phantom_folder)
    message = error_of(mcpmix("check", config, "data.split.file=/nowhere.json"), 3)
    assert "has no mask" in message
    assert "/nowhere.json" in message


def test_a_folder_in_use_by_another_run(mcpmix, config):
    run = config.parent / "runs" / "study"
    run.mkdir(parents=True)
    with FileLock(run / ".dataset.lock"):
        message = error_of(mcpmix("depth", config), 5)
    assert f"{run / 'dataset'} is in use by another run" in message


def test_what_is_finished_is_kept_when_a_later_run_fails(mcpmix, config, phantom_folder):
    weightless = ("train.arms=[full-sup]", "depth.model=/nowhere")  # no arm needs it, so nobody asks for it
    assert mcpmix("depth", config, *weightless).code == 4  # after the data set is made
    index = config.parent / "runs" / "study" / "dataset" / "index.json"
    samples = json.loads(index.read_text())["samples"]
    remove_mask(phantom_folder)
    assert mcpmix("depth", config, *weightless).code == 3
    assert json.loads(index.read_text())["samples"] == samples


# --- audit -------------------------------------------------------------------------------------------------


def test_check_shows_warnings_and_writes_a_page(mcpmix, config, phantom_folder, tmp_path):
    mask = first(phantom_folder / "masks")
    Image.fromarray(np.zeros((32, 32), np.uint8)).save(mask)
    page = tmp_path / "pages" / "audit.html"
    done = mcpmix("check", config, "--html", page)
    assert done.code == 0, done.err
    assert "images: 8 readable of 8; 32 x 32 pixels" in done.out
    assert "warning: 1 x masks are empty" in done.out
    assert f"findings about the images: {page}" in done.out
    assert mask.stem in page.read_text(encoding="utf-8")


def test_check_of_a_damaged_set_writes_the_page_as_well(mcpmix, config, phantom_folder, tmp_path):
    damage_image(phantom_folder)
    done = mcpmix("check", config, "--html", tmp_path / "audit.html")
    assert done.code == 3
    assert "Files cannot be used" in done.err
    assert "cannot be read" in (tmp_path / "audit.html").read_text(encoding="utf-8")


def test_check_of_a_data_set_in_another_layout_with_its_own_split(mcpmix, config, phantom_folder, tmp_path):
    names = sorted(path.stem for path in (phantom_folder / "images").iterdir())
    parts = {"train": names[:4], "validation": names[4:6], "test": names[6:]}
    (phantom_folder / "split.json").write_text(json.dumps(parts))
    assert mcpmix("data", "convert", phantom_folder, tmp_path / "hub", "--to", "imagefolder").code == 0
    layout = ("data.source=imagefolder", f"data.root={tmp_path / 'hub'}", "data.split.method=official")
    done = mcpmix("check", config, *layout)
    assert done.code == 0, done.err
    assert "data: 8 images of 4 groups; 4 for train, 2 for validation, 2 for test" in done.out
    assert "no split 'pranet'" in error_of(
        mcpmix("check", config, *layout[:2], "data.split.method=pranet"), 2
    )
    assert "no source 'nowhere'" in error_of(mcpmix("check", config, "data.source=nowhere", layout[1]), 2)
    assert "needs `root`" in error_of(mcpmix("check", config, "data.source=nnunet"), 2)


def test_init_for_other_sources_uses_the_split_that_comes_with_them(mcpmix, phantom_folder, tmp_path):
    names = sorted(path.stem for path in (phantom_folder / "images").iterdir())
    parts = {"train": names[:4], "validation": names[4:6], "test": names[6:]}
    (phantom_folder / "split.json").write_text(json.dumps(parts))
    assert mcpmix("data", "convert", phantom_folder, tmp_path / "table", "--to", "manifest").code == 0
    done = mcpmix("init", tmp_path / "study", "--source", "manifest", "--root", tmp_path / "table")
    assert done.code == 0, done.err
    for text in ("8 images with masks", "4 groups (group)", "comes with the split official, used"):
        assert text in done.out
    config = load_config(tmp_path / "study" / "mcpmix.yaml")
    assert (config.data.source, config.data.split.method) == ("manifest", "official")
    assert config.data.root.resolve() == tmp_path / "table"


def test_init_needs_to_know_where_the_data_is(mcpmix, tmp_path):
    assert "give --images and --masks" in mcpmix("init", tmp_path).err.replace("\n", " ")
    (tmp_path / "nothing").mkdir()
    refused = mcpmix("init", tmp_path / "s", "--root", tmp_path / "nothing").err
    assert "layout is not known" in refused
    assert "--images DIR --masks DIR" in refused
    assert "needs --root" in mcpmix("init", tmp_path, "--source", "piccolo").err.replace("\n", " ")
    assert "no source 'picolo'" in mcpmix("init", tmp_path, "--source", "picolo", "--root", tmp_path).err


def isic_tree(root):
    for part, stem in (
        ("Training", "ISIC_0000000"),
        ("Validation", "ISIC_0012127"),
        ("Test_v2", "ISIC_0012086"),
    ):
        for name in (f"ISIC-2017_{part}_Data/{stem}.jpg",
                     f"ISIC-2017_{part}_Part1_GroundTruth/{stem}_segmentation.png"):  # fmt: skip
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((32, 32), len(stem) + len(name), np.uint8)).save(path)


def test_init_recognises_isic_and_takes_its_preset(mcpmix, tmp_path):
    isic_tree(tmp_path / "isic")
    done = mcpmix("init", tmp_path / "study", "--root", tmp_path / "isic")
    assert done.code == 0, done.err
    assert "source: isic-2017" in done.out
    assert "prompt: A clinical skin dermoscopic image showing a pigmented lesion" in done.out
    config = load_config(tmp_path / "study" / "mcpmix.yaml")
    assert (config.data.source, config.data.split.method) == ("isic-2017", "official")
    assert "endoscopic" not in config.generator.prompt.text
    assert config.data.size == 128  # there is no GPU here, so `tiny` comes before the preset of the data set
    paper = mcpmix("init", tmp_path / "paper", "--root", tmp_path / "isic", "--preset", "paper")
    assert paper.code == 0, paper.err
    config = load_config(tmp_path / "paper" / "mcpmix.yaml")
    assert (config.data.size, config.segmenter.variant, config.data.source) == (512, "b2", "isic-2017")
    assert "dermoscopic" in config.generator.prompt.text


def test_init_gives_own_copies_of_isic_images_its_prompt(mcpmix, phantom_folder, tmp_path):
    for kind in ("images", "masks"):
        for number, path in enumerate(sorted((phantom_folder / kind).iterdir())):
            path.rename(path.with_name(f"ISIC_{number:07}.png"))
    done = mcpmix(
        "init", tmp_path / "s", "--images", phantom_folder / "images", "--masks", phantom_folder / "masks"
    )
    assert "images are named like those of isic-2017, so its prompt is used" in done.out
    assert "dermoscopic" in load_config(tmp_path / "s" / "mcpmix.yaml").generator.prompt.text


@pytest.mark.parametrize("layout", ["folder", "manifest", "nnunet", "imagefolder"])
def test_init_recognises_own_layouts(mcpmix, phantom_folder, tmp_path, layout):
    out = tmp_path / "Dataset501_Phantom"
    assert mcpmix("data", "convert", phantom_folder, out, "--to", layout).code == 0
    done = mcpmix("init", tmp_path / "study", "--root", out)
    assert done.code == 0, done.err
    assert f"source: {layout}\n" in done.out
    assert "4 groups (group)" in done.out
    config = load_config(tmp_path / "study" / "mcpmix.yaml")
    assert config.data.source == layout
    assert "endoscopic" in config.generator.prompt.text


# --- fix ---------------------------------------------------------------------------------------------------


def test_fix_with_a_table_that_gives_no_image_a_group_says_what_to_do(mcpmix, config, tmp_path):
    table = tmp_path / "other.csv"
    table.write_text("id,group\nnobody,a\n", encoding="utf-8")
    refused = mcpmix("check", config, f"data.groups={table}", "--fix", tmp_path / "repaired")
    assert f"no image has a group in {table}" in refused.err
    assert "data.groups=null" in refused.err
    mcpmix("check", config, "data.groups=null", "--fix", tmp_path / "repaired")
    assert (tmp_path / "repaired" / "images").is_dir()


def test_a_page_in_the_place_of_a_folder_is_refused(mcpmix, config, tmp_path):
    (tmp_path / "pages").mkdir()
    refused = mcpmix("check", config, "--html", tmp_path / "pages")
    assert "cannot be used as a path: Is a directory. Choose another." in error_of(refused, 5)


def test_fix_puts_back_the_zeros_that_a_spreadsheet_took(mcpmix, config, phantom_folder, tmp_path):
    table = tmp_path / "cut.csv"
    rows = ["id,group"]
    for number, image in enumerate(sorted((phantom_folder / "images").iterdir())):
        mask = phantom_folder / "masks" / image.name
        for file in (image, mask):
            file.rename(file.with_name(f"00{number + 1}{file.suffix}"))
        rows.append(f"{number + 1},{image.stem.partition('_')[0]}")
    table.write_text("\n".join([*rows, "369,p001"]), encoding="utf-8")
    done = mcpmix("check", config, f"data.groups={table}", "--fix", tmp_path / "repaired")
    assert f"1 id in {table} belongs to no image: 369. Mistyped?" in done.err
    assert f"file: 1 id in {table} belongs to no image: 369: left out" in done.out
    assert "has lost the leading zeros of 8 ids" in done.err
    assert f"file: {table} has lost the leading zeros of 8 ids (1 in place of 001): put back" in done.out
    assert (tmp_path / "repaired" / "groups.csv").read_text().splitlines()[1] == f"00{rows[1]}"
    assert mcpmix(*done.out.rpartition("to use it: mcpmix ")[2].split()).code == 0


def test_fix_writes_a_repaired_copy_and_leaves_the_source(mcpmix, config, phantom_folder, tmp_path):
    remove_mask(phantom_folder)
    damaged = phantom_folder / "images" / "p009_f01.png"
    damaged.write_bytes(b"no image")
    before = {path: path.read_bytes() for path in phantom_folder.rglob("*") if path.is_file()}
    done = mcpmix("check", config, "--fix", tmp_path / "repaired")
    assert done.code == 3  # the source is still what it is
    assert f"repaired copy: {tmp_path / 'repaired'} (2 changes, " in done.out
    listed = (tmp_path / "repaired" / "changes.csv").read_text()
    assert "has no mask" in listed  # in no sample, and a change all the same
    assert "p009_f01,sample,left out: " in listed.replace('"', "")
    assert "\nfile: left out: " in done.out
    assert before == {path: path.read_bytes() for path in phantom_folder.rglob("*") if path.is_file()}
    assert len(list((tmp_path / "repaired" / "images").iterdir())) == 6
    use = done.out.rpartition("to use it: mcpmix ")[2].split()
    again = mcpmix(*use)
    assert again.code == 0, again.err
    refused = mcpmix("check", config, "--fix", tmp_path / "repaired")
    assert refused.code == 5
    assert "is not empty" in refused.err
    assert not refused.out  # told at once, not after all images were examined


def test_fix_names_each_setting_once_and_says_that_there_is_no_page(mcpmix, config, phantom_folder, tmp_path):
    remove_mask(phantom_folder)
    given = f"data.groups={phantom_folder / 'groups.csv'}"
    page = tmp_path / "audit.html"
    done = mcpmix("check", config, given, "--fix", tmp_path / "repaired", "--html", page)
    use = done.out.rpartition("to use it: mcpmix ")[2]
    assert use.count("data.groups=") == 1
    assert str(tmp_path / "repaired" / "groups.csv") in use
    assert page.exists() or f"{page} is not written" in done.err


def test_warnings_count_if_asked(mcpmix, config, phantom_folder):
    done = mcpmix("check", config)
    assert "warning: the test part has 2 images: test figures will be mostly chance" in done.out
    assert "no errors, but 1 warning above; next: " in done.out
    Image.fromarray(np.zeros((32, 32), np.uint8)).save(first(phantom_folder / "masks"))
    assert mcpmix("check", config).code == 0
    strict = mcpmix("check", config, "--strict")
    assert strict.code == 3
    assert "--strict" in strict.err
    assert "--fix" in mcpmix("check", config, "--drop-copies").err


# --- models ----------------------------------------------------------------------------------------------


def test_list_shows_licences_and_presence(mcpmix):
    done = mcpmix("models", "list")
    assert done.code == 0, done.err
    line = next(line for line in done.out.splitlines() if "stable-diffusion-v1-5" in line)
    assert "OpenRAIL" in line
    assert {"yes", "no"} & set(line.split())


def test_digest_prints_a_pin_that_is_then_accepted(mcpmix, random_models):
    done = mcpmix("models", "digest", random_models / "depth")
    assert done.code == 0, done.err
    assert mcpmix("models", "digest", done.out.strip()).out == done.out
    wrong = mcpmix("models", "digest", f"{random_models / 'depth'}@sha256:{'0' * 64}")
    assert (wrong.code, "not the pinned ones" in wrong.err) == (4, True)
