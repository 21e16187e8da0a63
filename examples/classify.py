"""Classify an image file with a packed model: Pillow and numpy, no torch.

python examples/classify.py model.safetensors cat.jpg
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from fastslow.deploy import Engine, load_packed


def read_pixels(path: Path, channels: int, height: int, width: int) -> np.ndarray:
    """The middle of the image in the network's size: the short side is scaled to fit, the long one is cropped."""
    with Image.open(path) as image:
        image = image.convert("L" if channels == 1 else "RGB")
        scale = max(width / image.width, height / image.height)
        size = (max(width, round(image.width * scale)), max(height, round(image.height * scale)))
        image = image.resize(size, Image.Resampling.BILINEAR)
        left, top = (size[0] - width) // 2, (size[1] - height) // 2
        pixels = np.asarray(image.crop((left, top, left + width, top + height)))
    return pixels.reshape(height, width, channels)


def classify(engine: Engine, path: Path, count: int) -> list[tuple[str, float]]:
    """The most likely classes and their probabilities."""
    logits = engine(engine.preprocess(read_pixels(path, *engine.input_shape))).astype(np.float64)
    exponentials = np.exp(logits - logits.max())
    probabilities = exponentials / exponentials.sum()
    best = np.argsort(-probabilities)[:count]
    names = engine.info.classes or [f"class {index}" for index in range(len(logits))]
    return [(names[index], float(probabilities[index])) for index in best]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a packed model: fastslow pack RUN model.safetensors")
    parser.add_argument("images", type=Path, nargs="+", help="image files")
    parser.add_argument("--top", type=int, default=3, help="how many classes to print")
    options = parser.parse_args()
    engine = load_packed(options.model)
    for path in options.images:
        guesses = ", ".join(f"{name} {share:.1%}" for name, share in classify(engine, path, options.top))
        print(f"{path}: {guesses}")


if __name__ == "__main__":
    main()
