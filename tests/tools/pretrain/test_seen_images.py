"""The base lists its unlabelled images, so that test images among them are found years later."""

import numpy as np
import pytest
from PIL import Image
from tools.pretrain.build import OwnImages, Training, build_weights

from mcpmix.data.leakage import SeenImage, read_seen, write_seen
from mcpmix.data.likeness import look_of
from mcpmix.data.sample import pixel_digest, read_image
from tools.pretrain import build as building


@pytest.fixture
def photographs(tmp_path):
    folder = tmp_path / "photographs"
    folder.mkdir()
    for number, name in enumerate(("a.png", "b.png")):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)
    return folder


def listed(folder, *names):
    images = {name: read_image(folder / name) for name in names}
    return [SeenImage(name, pixel_digest(image), look_of(image)) for name, image in images.items()]


def test_a_base_lists_its_images_before_it_is_trained(photographs, tmp_path, monkeypatch):
    found = []

    def train(name, corpus, folder, plan, progress):
        found.append((name, read_seen(folder / "pipeline")))

    monkeypatch.setattr(building, "build", train)
    for _ in range(2):  # the second time from the decoded corpus
        build_weights("base", tmp_path / "out", own=OwnImages(folder=photographs), training=Training(steps=1))
    wanted = listed(photographs, "a.png", "b.png")
    assert found == [(name, wanted) for name in ("autoencoder", "base")] * 2


def test_the_images_of_a_start_are_listed_as_well(photographs, tmp_path, monkeypatch):
    start = tmp_path / "start"
    start.mkdir()
    write_seen(start, [SeenImage("older", "0" * 64), *listed(photographs, "a.png")])
    corpus = building.image_corpus([photographs / "b.png"], [""], tmp_path / "corpus", 32)
    building._list_images(tmp_path / "pipeline", corpus, Training(start=str(start)))
    assert [image.id for image in read_seen(tmp_path / "pipeline")] == ["older", "a.png", "b.png"]
