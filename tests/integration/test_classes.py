"""Two kinds of lesion from frames to report: all arms train, and every figure is that of a slow hand."""

import csv
import json

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import f1_score, jaccard_score, precision_score, recall_score

import mcpmix
from mcpmix.core.pixels import write_png
from mcpmix.data.index import DatasetIndex, load_arrays
from mcpmix.data.sample import read_image, read_mask
from mcpmix.generator.pair_export import export_to_nnunet
from mcpmix.mixing.registry import STRATEGIES, strategy_needs_set, unlabelled_source
from mcpmix.phantom import render
from mcpmix.run import run
from mcpmix.segmenter.onnx import export_segmenter
from mcpmix.segmenter.predict import predict_files
from mcpmix.studio.pictures import read_sample

CLASSES = ("flat", "raised")
ARMS = [
    name for name in STRATEGIES if not strategy_needs_set(name) and unlabelled_source(name) != "pseudo-masks"
]


@pytest.fixture(scope="module")
def made(make_config, tmp_path_factory):
    """A run of all arms that know several classes, one epoch each."""
    folder = tmp_path_factory.mktemp("classes")
    for patient in range(3):
        write_png(folder / f"more/{patient}.png", render(9, patient, 0, 64).image)
    config = make_config(
        folder / "runs",
        f"data.classes=[{','.join(CLASSES)}]",
        f"data.unlabelled={folder / 'more'}",
        f"train.arms=[{','.join(ARMS)}]",
        "train.epochs=1",
        "finetune.depth_under_mask=fill",
        "finetune.lesion_weight=3",
        "finetune.validation.every=1",
        "finetune.validation.images=1",
    )
    return config, run(config)


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_arm_trains_a_channel_for_each_label(made):
    _, result = made
    assert len(ARMS) > 15
    assert [arm for arm, _ in result.segmenters] == ARMS
    for (arm, _), segmenter in result.segmenters.items():
        (row,) = [json.loads(line) for line in (segmenter / "log.jsonl").read_text().splitlines()]
        assert np.isfinite(row["loss"]), arm
        assert np.isfinite(row["validation"]["dsc"]), arm
        assert mcpmix.load_segmenter(segmenter.folder).classes == CLASSES


def test_figures_of_each_class_are_those_of_scikit_learn(made):
    _, result = made
    index = DatasetIndex.read(result.dataset)
    for (arm, _), evaluation in result.evaluations.items():
        scored = {(row["id"], row["class"]): row for row in rows_of(evaluation / "scores-classes.csv")}
        means = {row["id"]: row for row in rows_of(evaluation / "scores.csv")}
        pixels = []
        for record in index.part("test"):
            truth = np.array(Image.open(record.mask)).ravel()
            found = np.array(Image.open(evaluation / f"predictions/{record.id}.png")).ravel()
            pixels.append((truth, found))
            each = []
            for label, name in enumerate(CLASSES, 1):
                pair, row = (truth == label, found == label), scored[record.id, name]
                if not (pair[0].any() or pair[1].any()):
                    assert np.isnan(float(row["dsc"]))
                    continue
                wanted = {
                    "dsc": f1_score(*pair, zero_division=0),
                    "precision": precision_score(*pair, zero_division=0),
                    "recall": recall_score(*pair, zero_division=0),
                    "miou": np.mean([jaccard_score(*pair), jaccard_score(~pair[0], ~pair[1])]),
                    "pixel_accuracy": (pair[0] == pair[1]).mean(),
                }
                assert {key: float(row[key]) for key in wanted} == pytest.approx(
                    {key: 100 * value for key, value in wanted.items()}
                ), arm
                each.append(100 * wanted["dsc"])
            assert float(means[record.id]["dsc"]) == pytest.approx(np.mean(each))
        summary = json.loads((evaluation / "summary.json").read_text())
        truth, found = (np.concatenate(part) for part in zip(*pixels, strict=True))
        pooled = 100 * f1_score(truth, found, labels=[1, 2], average="macro", zero_division=0)
        assert summary["dsc"]["pooled"] == pytest.approx(pooled)
        assert summary["dsc"]["mean"] == pytest.approx(np.mean([float(row["dsc"]) for row in means.values()]))
        assert set(json.loads((evaluation / "classes.json").read_text())) == set(CLASSES)


def test_the_report_has_the_mean_and_a_table_of_each_class(made):
    _, result = made
    table = json.loads((result.report / "table.json").read_text())
    found = {row["arm"]: row["metrics"]["dsc"]["values"]["0"] for row in table["rows"]}
    page = (result.report / "report.html").read_text(encoding="utf-8")
    text = (result.report / "table.md").read_text(encoding="utf-8")
    assert "mean over the classes flat, raised that are in its truth or in its prediction" in page
    for arm, evaluation in ((arm, item) for (arm, _), item in result.evaluations.items()):
        assert found[arm] == json.loads((evaluation / "summary.json").read_text())["dsc"]["mean"]
        for name in CLASSES:
            each = json.loads((evaluation / "classes.json").read_text())[name]["dsc"]["mean"]
            (row,) = (row for row in table["classes"]["test"][name]["rows"] if row["arm"] == arm)
            value = row["metrics"]["dsc"]["values"]["0"]
            assert (value is None and np.isnan(each)) or value == each
    for name in CLASSES:
        assert f"Class {name}" in page
        assert f"### {name}\n" in text


def test_the_generator_sees_each_label_at_its_level(made):
    config, result = made
    index = DatasetIndex.read(result.dataset)
    arrays = load_arrays(index.part("train"), 64)
    assert sorted(np.unique(arrays.masks)) == [0, 1, 2]
    from mcpmix.generator.counterparts import CounterpartMaker

    maker = CounterpartMaker(None, arrays, np.zeros(arrays.masks.shape, np.float32), config)
    for mask, shown in zip(arrays.masks, maker.conditions[range(len(arrays))][:, 0], strict=True):
        np.testing.assert_array_equal(shown.numpy(), mask / np.float32(2))


def test_predicted_labels_probabilities_and_overlays(made, tmp_path):
    _, result = made
    segmenter = result.segmenters["full-sup", 0].folder
    index, predictor = DatasetIndex.read(result.dataset), mcpmix.load_segmenter(segmenter)
    record = index.part("test")[0]
    image = read_image(record.image)
    chances = predictor.predict(image)
    assert chances.shape == (3, *image.shape[:2])
    np.testing.assert_allclose(chances.sum(0), 1, rtol=1e-5)

    out = tmp_path / "out"
    predict_files(segmenter, record.image, out, probabilities=True, overlay=True)
    mask = read_mask(out / f"masks/{record.id}.png", 3)
    np.testing.assert_array_equal(mask, chances.argmax(0))
    evaluated = result.evaluations["full-sup", 0] / f"predictions/{record.id}.png"
    np.testing.assert_array_equal(mask, read_mask(evaluated, 3))
    for label, name in enumerate(CLASSES, 1):
        levels = np.array(Image.open(out / f"probabilities/{name}/{record.id}.png"))
        np.testing.assert_allclose(levels / 65535, chances[label], atol=1e-5)
    assert read_image(out / f"overlays/{record.id}.png").shape == image.shape
    assert predict_files(segmenter, record.image, out, probabilities=True, overlay=True) == (0, 1)
    with pytest.raises(mcpmix.core.errors.ConfigError, match="flat, raised apart and takes the likeliest"):
        predict_files(segmenter, record.image, tmp_path / "other", threshold=0.3)


def test_what_is_exported_gives_the_probabilities_of_all_labels(made, tmp_path, examples):
    _, result = made
    segmenter, file = result.segmenters["mixup", 0].folder, tmp_path / "model.onnx"
    _, found = export_segmenter(segmenter, file)
    assert found.images == 2
    assert found.difference < 1e-4
    write_png(tmp_path / "new/frame.png", render(4, 0, 0, 80).image)
    assert (
        examples("onnx_predict").main([str(file), str(tmp_path / "new"), "--out", str(tmp_path / "out")]) == 0
    )
    predictor = mcpmix.load_segmenter(segmenter)
    expected = predictor.mask(predictor.predict(read_image(tmp_path / "new/frame.png")))
    assert (np.array(Image.open(tmp_path / "out/frame.png")) != expected).mean() < 0.001


def test_nnunet_gets_the_names_and_the_labels(made, tmp_path):
    config, result = made
    export_to_nnunet(config.folder, "Dataset501_Kinds", raw=tmp_path / "raw", preprocessed=tmp_path / "pre")
    folder = tmp_path / "raw/Dataset501_Kinds"
    described = json.loads((folder / "dataset.json").read_text())
    assert described["labels"] == {"background": 0, "flat": 1, "raised": 2}
    for record in DatasetIndex.read(result.dataset).part("train"):
        stored = np.array(Image.open(folder / f"labelsTr/{record.id}.png"))
        np.testing.assert_array_equal(stored, np.array(Image.open(record.mask)))


def test_the_studio_shows_lesions_of_all_classes(made):
    _, result = made
    record = DatasetIndex.read(result.dataset).part("train")[1]
    assert record.labels == 3
    stored = np.array(Image.open(record.mask))
    np.testing.assert_array_equal(read_sample(record, "mask"), (stored > 0) * np.uint8(255))
