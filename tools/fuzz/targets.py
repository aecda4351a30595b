"""Everything that reads files, each with a whole input of its kind and how it is damaged."""

import csv
import io
import json
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tools.fuzz.damage import TEXTS, Rng, damage, damage_lines, damage_tree, either

from mcpmix.config_file import load_config, resolve_config
from mcpmix.core.stage_folder import StageKey, read_artifact, verify, workspace
from mcpmix.core.training import load_state, restore, save_state
from mcpmix.data.archives import Limits, unpack
from mcpmix.data.dataset import build_index, load_collection
from mcpmix.data.index import DatasetIndex
from mcpmix.data.layouts import scan_folder
from mcpmix.data.leakage import LeakSearch, SeenImage, look_of, read_seen, write_seen
from mcpmix.data.sample import Sample, read_image
from mcpmix.data.sample import read_mask as read_training_mask
from mcpmix.data.splits import Split, read_split
from mcpmix.generator.ledger import LEDGER, Ledger, read_verified
from mcpmix.metrics.files import read_mask
from mcpmix.networks.segmenter import build_segmenter, load_network, save_segmenter

Target = Callable[[Rng, Path], Callable[[], object]]
"""Writes a damaged input into an empty folder, and returns what reads it."""


def _picture(ending: str, mode: str) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    if mode == "1":
        pixels = np.where(pixels > 128, 255, 0).astype(np.uint8)
    made = io.BytesIO()
    kind = {"jpg": "JPEG", "tif": "TIFF"}.get(ending, ending.upper())
    Image.fromarray(pixels).convert("L" if mode == "1" else mode).save(made, kind)
    return made.getvalue()


def image(rng: Rng, folder: Path) -> Callable[[], object]:  # noqa: D103
    ending = rng.choice(("png", "jpg", "tif", "bmp"))
    path = folder / f"a.{ending}"
    path.write_bytes(damage(rng, _picture(ending, rng.choice(("RGB", "L")))))
    return lambda: read_image(path)


def training_mask(rng: Rng, folder: Path) -> Callable[[], object]:  # noqa: D103
    ending = rng.choice(("png", "tif", "bmp"))
    path = folder / f"a.{ending}"
    path.write_bytes(damage(rng, _picture(ending, "1")))
    return lambda: read_training_mask(path)


def evaluated_mask(rng: Rng, folder: Path) -> Callable[[], object]:  # noqa: D103
    ending = rng.choice(("png", "tif", "gif", "npy", "npy"))
    path = folder / f"a.{ending}"
    if ending == "npy":
        made = io.BytesIO()
        np.save(made, np.zeros((4, 5), rng.choice((np.uint8, np.float32, np.bool_))))
        content = made.getvalue()
        if rng.random() < 0.5:  # a head that claims another shape
            shape = rng.choice((b"(4, 0)", b"(9999999, 9999999)", b"(-1, 5)", b"(4,)", b"(20,)"))
            content = content.replace(b"(4, 5)", shape)
    else:
        content = _picture(ending, "1")
    path.write_bytes(damage(rng, content) if rng.random() < 0.8 else content)
    return lambda: read_mask(path, rng.choice((None, 0.5)))


def archive(rng: Rng, folder: Path) -> Callable[[], object]:  # noqa: D103
    ending = rng.choice(("zip", "tar", "tar.gz", "tar.bz2"))
    made = io.BytesIO()
    names = [rng.choice(("images/a.png", "../b", "/c", "d\0", "x" * 300, "a/b/c")) for _ in range(3)]
    if ending == "zip":
        with warnings.catch_warnings(), zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as packed:
            warnings.simplefilter("ignore")  # of names that are there twice
            for name in names:
                packed.writestr(zipfile.ZipInfo(name.replace("\0", "")), b"content" * 40)
    else:
        kind = {"tar": "w:", "tar.gz": "w:gz", "tar.bz2": "w:bz2"}[ending]
        with tarfile.open(fileobj=made, mode=kind) as tape:
            for name in names:
                member = tarfile.TarInfo(name)
                member.size, member.type = (
                    280,
                    rng.choice((tarfile.REGTYPE, tarfile.REGTYPE, tarfile.SYMTYPE)),
                )
                tape.addfile(member, io.BytesIO(b"content" * 40))
    path = folder / f"a.{ending}"
    path.write_bytes(damage(rng, made.getvalue()))
    return lambda: unpack([path], limits=Limits(files=50, size=10**8, free=10**7))


def table(rng: Rng, folder: Path) -> Callable[[], object]:  # noqa: D103
    rows = [
        {"image": "a.png", "mask": "b.png", "group": "p1", "split": "train", "id": f"n{n}"} for n in range(3)
    ]
    for name in ("a.png", "b.png"):
        (folder / name).write_bytes(b"x")
    if rng.random() < 0.5:
        path = folder / "manifest.jsonl"
        lines = [json.dumps(row) for row in rows]
        lines[rng.randrange(3)] = damage_tree(rng, rows[0])
        path.write_text("\n".join(lines), encoding="utf-8", errors="surrogatepass")
    else:
        path = folder / "manifest.csv"
        made = io.StringIO()
        writer = csv.DictWriter(made, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        path.write_text(damage_lines(rng, made.getvalue()), encoding="utf-8")
    if rng.random() < 0.2:
        path.write_bytes(damage(rng, path.read_bytes()))
    return lambda: load_collection("manifest", root=path)


def groups(rng: Rng, folder: Path) -> Callable[[], object]:  # noqa: D103
    for kind in ("images", "masks"):
        (folder / kind).mkdir()
        (folder / kind / "a.png").write_bytes(_picture("png", "1"))
    path = folder / "groups.csv"
    path.write_text(damage_lines(rng, "id,group\na,p1\nb,p2\n"), encoding="utf-8")
    if rng.random() < 0.3:
        path.write_bytes(damage(rng, path.read_bytes()))
    return lambda: scan_folder(folder / "images", folder / "masks", path)


def split(rng: Rng, folder: Path) -> Callable[[], object]:  # noqa: D103
    samples = [Sample(name, folder, folder, name, "x") for name in "abc"]
    path = folder / "split.json"
    path.write_bytes(either(rng, {"train": ["a"], "validation": ["b"], "test": ["c"], "images": {"a": "0"}}))
    return lambda: read_split(path, samples)


def nnunet(rng: Rng, folder: Path) -> Callable[[], object]:  # noqa: D103
    (folder / "imagesTr").mkdir()
    (folder / "labelsTr").mkdir()
    (folder / "imagesTr" / "a_0000.png").write_bytes(b"x")
    (folder / "labelsTr" / "a.png").write_bytes(b"x")
    (folder / "dataset.json").write_bytes(either(rng, {"file_ending": ".png", "labels": {"background": 0}}))
    (folder / "samples.csv").write_text(damage_lines(rng, "id,group,split\na,p,train\n"), encoding="utf-8")
    return lambda: load_collection("nnunet", root=folder)


_CONFIG = """\
preset: tiny
name: trial
data:
  source: folder
  images: images
  masks: masks
  split: {validation: 0.2, test: 0.2}
generator:
  prompt: {template: "a {position} with a {target}", position: colon}
train:
  arms: [full-sup, mcpmix]
  seeds: [0, 1]
  epochs: 3
  strategies: {mixup: {alpha: 0.4}}
runtime: {jobs: 1}
"""


def config(rng: Rng, folder: Path) -> Callable[[], object]:  # noqa: D103
    path = folder / "c.yaml"
    text = damage_lines(rng, _CONFIG)
    if rng.random() < 0.1:
        names = "abcdefghij"
        text += "\na: &a [x, x]\n" + "".join(
            f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in pairwise(names)
        )
    path.write_text(text, encoding="utf-8")
    if rng.random() < 0.2:
        path.write_bytes(damage(rng, path.read_bytes()))
    return lambda: load_config(path)


def override(rng: Rng, folder: Path) -> Callable[[], object]:  # noqa: ARG001, D103
    keys = (
        "train.epochs",
        "data.images",
        "train.strategies",
        "name",
        "a." * 3000,
        "",
        "data",
        "preset",
        "train.arms",
    )
    text = f"{rng.choice(keys)}{rng.choice(('=', '=', '=', ''))}{rng.choice((*TEXTS, '[' * 3000, '{a: 1}'))}"
    tree = {"preset": "tiny", "data": {"images": "a", "masks": "b", "source": "folder"}}
    return lambda: resolve_config(tree, [text])


def checkpoint(rng: Rng, folder: Path) -> Callable[[], object]:  # noqa: D103
    path = folder / "checkpoint.safetensors"
    network = torch.nn.Linear(2, 2)
    state: Any = {"steps": 3, "state": {"network": network.state_dict()}}
    if rng.random() < 0.3:  # whole, but of something else
        state = rng.choice(
            ({}, [], {"state": 1, "steps": 2}, {"state": {"network": {"weight": torch.zeros(9)}}})
        )
    save_state(path, state)
    path.write_bytes(damage(rng, path.read_bytes()) if rng.random() < 0.8 else path.read_bytes())
    return lambda: (load_state(path), restore({"network": network}, path))


def segmenter(rng: Rng, folder: Path) -> Callable[[], object]:  # noqa: D103
    description = {"name": "segnet", "variant": "small", "size": 32, "arm": "mcpmix", "validation_dsc": 1.0}
    save_segmenter(_network(), folder, description)
    if rng.random() < 0.6:
        description |= rng.choice(
            ({}, {"name": "unet", "variant": "resnet18", "options": {"decoder_channels": [1]}})
        )
        (folder / "config.json").write_bytes(either(rng, description))
    else:
        path = folder / "model.safetensors"
        path.write_bytes(damage(rng, path.read_bytes()))
    return lambda: load_network(folder)


_made: dict[str, Any] = {}


def _network() -> torch.nn.Module:
    return _made.setdefault("network", build_segmenter("segnet", "small"))


def seen(rng: Rng, folder: Path) -> Callable[[], object]:  # noqa: D103
    pixels = np.random.default_rng(1).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    write_seen(folder, [SeenImage("a", "0" * 64, look_of(pixels))], private=rng.random() < 0.5)
    path = folder / "images.json"
    path.write_bytes(either(rng, json.loads(path.read_text())))
    return lambda: LeakSearch([SeenImage("t", "1" * 64, look_of(pixels))]).copies(read_seen(folder))


def stage(rng: Rng, folder: Path) -> Callable[[], object]:  # noqa: D103
    with workspace(folder / "stage", StageKey("x", {"a": 1})) as space:
        (space.folder / "file").write_text("content")
        made = space.finish(count=1)
    path = made / "manifest.json"
    path.write_bytes(either(rng, json.loads(path.read_text())))

    def read() -> None:
        found = read_artifact(made.folder)
        if found is not None:
            verify(found)

    return read


def ledger(rng: Rng, folder: Path) -> Callable[[], object]:  # noqa: D103
    book = Ledger(folder / LEDGER, "root")
    for number in range(3):
        book.append({"parent": "a", "replica": number, "admitted": True, "file": "x.png"})
    lines = book.path.read_bytes().splitlines(keepends=True)
    place = rng.randrange(3)
    lines[place] = either(rng, json.loads(lines[place])) + b"\n"
    book.path.write_bytes(b"".join(lines))
    return lambda: read_verified(folder, "root", book.head)


def index(rng: Rng, folder: Path) -> Callable[[], object]:  # noqa: D103
    path = folder / "a.png"
    path.write_bytes(_picture("png", "1"))
    build_index([Sample("a", path, path, "a", "x")], Split(("a",), (), ())).write(folder)
    path = folder / "index.json"
    path.write_bytes(either(rng, json.loads(path.read_text())))
    return lambda: DatasetIndex.read(folder).digest


TARGETS: dict[str, Target] = {
    each.__name__: each
    for each in (
        *(image, training_mask, evaluated_mask, archive, table, groups, split, nnunet, config, override),
        *(checkpoint, segmenter, seen, stage, ledger, index),
    )
}
