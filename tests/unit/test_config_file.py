"""From files, presets and overrides to a checked configuration."""

import os
import re
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from mcpmix.config_file import load_config, preset_names, resolve_config, to_yaml, without_places
from mcpmix.core.errors import ConfigError

FOLDER = {"data": {"images": "images", "masks": "masks"}}


def problems_of(tree, overrides=()):
    """The lines of the message, without the headline."""
    with pytest.raises(ConfigError) as caught:
        resolve_config(tree, overrides)
    return [line.removeprefix("  - ") for line in str(caught.value).splitlines()[1:]]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


class TestMerging:
    def test_defaults_fill_what_is_not_given(self):
        config = resolve_config(FOLDER)

        assert config.train.epochs == 400
        assert (config.rla.s_max, config.rla.rho_max, config.rla.lambda_s) == (0.7, 0.5, 1e-3)
        assert config.folder == Path("runs/run")

    def test_preset_then_file_then_overrides(self):
        tree = {"preset": "tiny", "train": {"epochs": 7, "batch_size": 3}}
        config = resolve_config(tree, ["train.epochs=5"])
        preset = resolve_config({"preset": "tiny"})

        assert config.train.epochs == 5  # override over file
        assert config.train.batch_size == 3  # file over preset
        assert config.segmenter.variant == preset.segmenter.variant == "nano"  # preset over default
        assert config.train.weight_decay == 1e-4  # default

    def test_the_preset_itself_can_be_overridden(self):
        config = resolve_config({"preset": "tiny", **FOLDER}, ["preset=paper", "data.source=folder"])

        assert config == resolve_config({"preset": "paper", **FOLDER})

    def test_lists_are_replaced_not_joined(self):
        assert resolve_config(FOLDER, ["train.seeds=[4]"]).train.seeds == (4,)

    def test_the_given_tree_is_not_changed(self):
        tree = {"preset": "tiny", "train": {"epochs": 7}}
        resolve_config(tree, ["train.epochs=5", "data.size=64"])

        assert tree == {"preset": "tiny", "train": {"epochs": 7}}


class TestOverrides:
    @pytest.mark.parametrize(
        ("override", "path", "value"),
        [
            ("seed=7", "seed", 7),
            ("data.split.validation=0.3", "data.split.validation", 0.3),
            ("train.learning_rate=1e-4", "train.learning_rate", 1e-4),
            ("train.flip=false", "train.flip", False),
            ("train.arms=[full-sup, mcpmix]", "train.arms", ("full-sup", "mcpmix")),
            ("rla.tau0=0.05", "rla.tau0", 0.05),
            ("rla.tau0=auto", "rla.tau0", "auto"),
            ("segmenter.weights=null", "segmenter.weights", None),
            ("generator.prompt.target=a=b", "generator.prompt.target", "a=b"),
            ("output=elsewhere/runs", "output", Path("elsewhere/runs")),
        ],
    )
    def test_dots_reach_sections_and_values_are_yaml(self, override, path, value):
        node = resolve_config(FOLDER, [override])
        for name in path.split("."):
            node = getattr(node, name)

        assert node == value

    def test_later_overrides_win_and_do_not_erase_their_neighbours(self):
        config = resolve_config(FOLDER, ["train.epochs=1", "train.batch_size=2", "train.epochs=3"])

        assert (config.train.epochs, config.train.batch_size) == (3, 2)

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("train.epochs", "override 'train.epochs': expected key=value, e.g. train.epochs=50"),
            ("=5", "override '=5': expected key=value, e.g. train.epochs=50"),
            ("train.arms=[a", "override 'train.arms=[a': the value is not valid YAML"),
            ("name=2024-13-45", "override 'name=2024-13-45': the value is not valid YAML"),
        ],
    )
    def test_a_malformed_override_is_named(self, override, message):
        assert problems_of(FOLDER, [override]) == [message]


class TestMessages:
    @pytest.mark.parametrize(
        ("tree", "message"),
        [
            ({"trian": {}}, "unknown key trian: did you mean train?"),
            ({"train": {"epoch": 3}}, "unknown key train.epoch: did you mean epochs?"),
            (
                {"generator": {"prompt": {"templte": "x"}}},
                "unknown key generator.prompt.templte: did you mean template?",
            ),
            ({"depth": {"xyz": 1}}, "unknown key depth.xyz: known: model, batch_size, near"),
        ],
    )
    def test_an_unknown_key_comes_with_a_suggestion(self, tree, message):
        assert problems_of({**FOLDER, **tree}) == [message]

    def test_an_unknown_preset_comes_with_a_suggestion(self):
        with pytest.raises(ConfigError, match="unknown preset papper: did you mean paper"):
            resolve_config({"preset": "papper"})
        with pytest.raises(ConfigError, match=r"unknown preset xyz: known: .*paper, .*small, tiny"):
            resolve_config({"preset": "xyz"})

    def test_all_problems_come_at_once(self):
        tree = {
            "name": "has space",
            "data": {"source": "folder", "split": {"validation": 0.6, "test": 0.6}},
            "train": {"epochs": 0, "epoch": 3},
            "rla": {"tau0": "atuo"},
            "generator": {"prompt": {"template": "a {site}"}},
        }
        problems = problems_of(tree, ["train.batch_size", "seed=-1"])
        text = "\n".join(problems)

        for expected in (
            "override 'train.batch_size': expected key=value",
            "name: String should match pattern",
            "got 'has space'",
            "seed: Input should be greater than or equal to 0, got -1",
            "data.split: validation + test must stay below 1, got 0.6 + 0.6",
            "train.epochs: Input should be greater than 0, got 0",
            "unknown key train.epoch: did you mean epochs?",
            "generator.prompt: template may use only {position} and {target}",
            "rla.tau0",
            "got 'atuo'",
        ):
            assert expected in text
        assert not any(line.startswith("    ") for line in problems)

    def test_the_headline_names_the_source_and_counts(self):
        with pytest.raises(ConfigError, match=r"^study\.yaml: 2 problem\(s\)\n"):
            resolve_config({**FOLDER, "a": 1, "b": 2}, source="study.yaml")

    def test_no_data_section(self):
        assert problems_of({}) == ["data: missing"]

    def test_a_section_that_is_not_one(self):
        (problem,) = problems_of({**FOLDER, "train": 5})

        assert problem.startswith("train: Input should be a valid dictionary")
        assert problem.endswith("got 5")


class TestFiles:
    def test_relative_paths_are_anchored_at_the_file(self, tmp_path, monkeypatch):
        text = """
            output: out
            data:
              images: pictures
              masks: ../masks
              groups: groups.csv
              split: {file: split.json}
        """
        path = write(tmp_path / "study" / "config.yaml", text)
        monkeypatch.chdir(tmp_path)
        config = load_config(path)

        assert config.output == tmp_path / "study" / "out"
        assert config.data.images == tmp_path / "study" / "pictures"
        assert config.data.masks == tmp_path / "masks"  # not study/../masks
        assert config.data.groups == tmp_path / "study" / "groups.csv"
        assert config.data.split.file == tmp_path / "study" / "split.json"

    def test_absolute_and_home_paths_stay_what_they_are(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", "/home/somebody")
        path = write(tmp_path / "c.yaml", "data: {images: /data/images, masks: ~/masks}")
        config = load_config(path)

        assert config.data.images == Path("/data/images")
        assert config.data.masks == Path("/home/somebody/masks")

    @pytest.mark.parametrize(
        ("given", "found"), [("more", ["more"]), ("[more, /data/frames.zip]", ["more", "/data/frames.zip"])]
    )
    def test_places_of_unlabelled_images_are_one_or_several(self, tmp_path, given, found):
        path = write(tmp_path / "c.yaml", f"data: {{images: a, masks: b, unlabelled: {given}}}")
        config = load_config(path)

        assert config.data.unlabelled == tuple(tmp_path / place for place in found)
        assert load_config(write(tmp_path / "again.yaml", to_yaml(config))).data == config.data

    def test_overrides_are_relative_to_the_working_directory(self, tmp_path):
        path = write(tmp_path / "c.yaml", "data: {images: a, masks: b}")
        config = load_config(path, ["data.images=here", "output=there"])

        assert config.data.images == Path("here")
        assert config.output == Path("there")
        assert config.data.masks == tmp_path / "b"

    def test_the_folder_of_results_is_next_to_the_file_unless_it_is_named(self, tmp_path):
        path = write(tmp_path / "study" / "c.yaml", "data: {images: a, masks: b}")

        assert load_config(path).folder == tmp_path / "study" / "runs" / "run"

    def test_weights_that_lie_near_the_file_are_found_from_anywhere(self, tmp_path):
        (tmp_path / "nets" / "base").mkdir(parents=True)
        (tmp_path / "embedded").mkdir()
        text = "data: {images: a, masks: b}\ngenerator: {base: nets/base}\ndepth: {model: Intel/dpt-large}"
        config = load_config(write(tmp_path / "c.yaml", f"{text}\nrla: {{features: embedded}}"))

        assert config.generator.base == str(tmp_path / "nets" / "base")
        assert (config.depth.model, config.rla.features) == ("Intel/dpt-large", "embedded")
        shown = without_places(config)
        assert (shown.generator.base, str(shown.data.images), str(shown.output)) == ("base", "a", "runs")
        assert str(tmp_path) not in to_yaml(shown)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("train: {epochs: 3}\ntrain: {batch_size: 2}", "train given twice in the section from line 1"),
            ("train: {epochs: 3, epochs: 4}", "epochs given twice"),
            ("a: &a [x, x]\n" + "".join(
                f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in pairwise("abcdefghij")
            ), "aliases make it too large"),
            ("a: &a [*a]", "nested too deeply"),
            ("a: " + "[" * 1000 + "]" * 1000, "nested too deeply"),
            ("a: " + "[" * 20_000, "nested too deeply"),
            ("generator: {prompt: {template: '{position:2000000000}'}}", "template may use only {position}"),
            ("generator: {prompt: {template: '{position.x}'}}", "template may use only {position}"),
            ("seed: 0x" + "f" * 9000, "seed|large"),
            ("seed: " + "9" * 9000, "not valid YAML"),
            ("preset: 0x" + "f" * 9000, "unknown preset a very large int"),
        ],
    )  # fmt: skip
    def test_texts_that_would_lose_a_section_hang_or_flood_the_memory(self, tmp_path, text, message):
        path = write(tmp_path / "c.yaml", "data: {images: a, masks: b}")
        path.write_text(text + "\ndata: {images: a, masks: b}\n")

        with pytest.raises(ConfigError) as caught:
            load_config(path)
        assert re.search(message, str(caught.value)), str(caught.value)[:300]
        assert len(str(caught.value)) < 3000

    def test_odd_places_and_pipes(self, tmp_path):
        path = write(tmp_path / "c.yaml", "data: {images: ~nobody-of-this-name/a, masks: b}")
        os.mkfifo(tmp_path / "pipe")

        assert load_config(path).data.images == tmp_path / "~nobody-of-this-name" / "a"
        with pytest.raises(ConfigError, match="not a regular file"):
            load_config(tmp_path / "pipe")
        with pytest.raises(ConfigError, match="no setting lies that deep"):
            load_config(path, ["a." * 5000 + "b=1"])

    def test_the_message_names_the_file(self, tmp_path):
        path = write(tmp_path / "c.yaml", "data: {images: a, masks: b}\nsed: 1")

        with pytest.raises(
            ConfigError, match=r"c\.yaml: 1 problem\(s\)\n  - unknown key sed: did you mean seed\?"
        ):
            load_config(path)

    def test_a_missing_file(self, tmp_path):
        with pytest.raises(ConfigError, match=r"No configuration at .*c\.yaml\. `mcpmix init` writes one\."):
            load_config(tmp_path / "c.yaml")

    def test_a_folder_in_place_of_the_file(self, tmp_path):
        with pytest.raises(ConfigError, match=r"is a folder\. Name the file in it, e\.g\. .*mcpmix\.yaml"):
            load_config(tmp_path)

    def test_a_file_that_is_not_text(self, tmp_path):
        path = tmp_path / "c.yaml"
        path.write_bytes(b"\xff\xfe\x00binary")

        with pytest.raises(ConfigError, match=r"Cannot read the configuration .*decode"):
            load_config(path)

    @pytest.mark.parametrize("text", ["data: [1, 2", "a: b: c", "name: 2024-13-45", "\tname: x"])
    def test_bad_yaml_is_said_to_be_that(self, tmp_path, text):
        with pytest.raises(ConfigError, match=r"c\.yaml is not valid YAML: "):
            load_config(write(tmp_path / "c.yaml", text))

    @pytest.mark.parametrize(("text", "kind"), [("- a\n- b", "list"), ("only words", "str")])
    def test_yaml_that_is_not_a_mapping(self, tmp_path, text, kind):
        with pytest.raises(ConfigError, match=f"expected `key: value` lines, got a {kind}"):
            load_config(write(tmp_path / "c.yaml", text))

    def test_an_empty_file_lacks_only_the_data(self, tmp_path):
        with pytest.raises(ConfigError, match=r"1 problem.*\n  - data: missing"):
            load_config(write(tmp_path / "c.yaml", "# nothing yet\n"))


class TestYaml:
    @pytest.mark.parametrize("preset", preset_names())
    def test_round_trip(self, preset):
        data = {**FOLDER["data"], "root": "place"}  # whatever the source of the preset needs
        config = resolve_config(
            {"preset": preset, "data": data, "generator": {"prompt": {"target": "Läsion"}}}
        )
        text = to_yaml(config)

        assert resolve_config(yaml.safe_load(text)) == config
        assert "Läsion" in text

    def test_order_is_that_of_the_schema(self):
        keys = list(yaml.safe_load(to_yaml(resolve_config(FOLDER))))

        assert keys[:4] == ["name", "seed", "output", "data"]
        assert keys[-1] == "runtime"
