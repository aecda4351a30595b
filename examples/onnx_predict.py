"""Masks of new images from a file of `mcpmix export`. Needs onnxruntime and Pillow, nothing else.

python onnx_predict.py model.onnx images --out masks
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

ENDINGS = {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp"}


def read(path: Path) -> np.ndarray:
    """An upright RGB image, (H, W, 3) uint8."""
    with Image.open(path) as image:
        upright = ImageOps.exif_transpose(image)
        if upright.mode not in ("1", "L", "P", "RGB") or upright.has_transparency_data:
            raise ValueError(f"has the pixel format {upright.mode}; save it as opaque 8-bit RGB or grey")
        return np.asarray(upright.convert("RGB"))


def main(arguments: list[str] | None = None) -> int:
    """Write a mask for each image: lesion = 255, or the labels of several classes. Returns the failures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("images", type=Path, help="an image or a folder")
    parser.add_argument("--out", type=Path, default=Path("masks"))
    parser.add_argument("--threshold", type=float, default=0.5)
    given = parser.parse_args(arguments)
    session = onnxruntime.InferenceSession(given.model, providers=["CPUExecutionProvider"])
    facts = json.loads(session.get_modelmeta().custom_metadata_map["mcpmix"])
    print(f"{facts['name']} {facts['variant']}, trained at {facts['size']} px")
    found = given.images.rglob("*") if given.images.is_dir() else [given.images]
    files = [path for path in sorted(found) if path.suffix.lower() in ENDINGS]
    if not files:
        sys.exit(f"{given.images} holds no images ({', '.join(sorted(ENDINGS))}).")
    given.out.mkdir(parents=True, exist_ok=True)
    many, failed = "classes" in facts, 0
    for path in files:
        try:
            pixels = read(path)
        except (OSError, ValueError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            failed += 1
            continue
        image = pixels if facts["input"] == "uint8" else pixels.astype(np.float32) / 255
        (probability,) = session.run(["probability"], {"image": image})
        mask = probability.argmax(axis=0) if many else np.where(probability >= given.threshold, 255, 0)
        Image.fromarray(mask.astype(np.uint8)).save(given.out / f"{path.stem}.png")
    print(f"{len(files) - failed} masks in {given.out}")
    return failed


if __name__ == "__main__":
    sys.exit(min(main(), 1))
