"""Make the embedded mini set from the official binary files of CIFAR-10.

    python tools/make_mini.py FOLDER      # FOLDER holds data_batch_1.bin ... data_batch_5.bin and test_batch.bin

The choice is deterministic: of each class the first 400 training and the first 100 test images, all in their official
order. 1,000 images make one lossless WebP mosaic (40 images a row, row by row); `labels.bin` holds one byte an image,
training set first. The last lines printed are the checksums that `fastslow/data/embedded.py` records.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
from PIL import Image

OUT = Path(__file__).resolve().parent.parent / "src" / "fastslow" / "data" / "mini"
COLUMNS, ROWS = 40, 25
PER_MOSAIC = COLUMNS * ROWS


def first_per_class(paths: list[Path], count: int) -> tuple[np.ndarray, np.ndarray]:
    """The first `count` images of each class as (images (N, 3, 32, 32), labels (N,)), in official order."""
    records = np.concatenate([np.fromfile(path, np.uint8).reshape(-1, 3073) for path in paths])
    labels = records[:, 0]
    chosen = np.sort(np.concatenate([np.flatnonzero(labels == label)[:count] for label in range(10)]))
    return records[chosen, 1:].reshape(-1, 3, 32, 32), labels[chosen]


def mosaic(images: np.ndarray) -> Image.Image:
    grid = images.reshape(ROWS, COLUMNS, 3, 32, 32).transpose(0, 3, 1, 4, 2)
    return Image.fromarray(np.ascontiguousarray(grid.reshape(ROWS * 32, COLUMNS * 32, 3)))


def main(folder: Path) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    all_labels = []
    for split, names, count in (
        ("train", [f"data_batch_{i}.bin" for i in range(1, 6)], 400),
        ("test", ["test_batch.bin"], 100),
    ):
        images, labels = first_per_class([folder / name for name in names], count)
        for i in range(len(images) // PER_MOSAIC):
            part = images[i * PER_MOSAIC : (i + 1) * PER_MOSAIC]
            mosaic(part).save(OUT / f"{split}{i}.webp", lossless=True, quality=100, method=6)
        all_labels.append(labels)
        print(
            split,
            images.shape,
            "MD5 of pixels then labels:",
            hashlib.md5(images.tobytes() + labels.tobytes()).hexdigest(),
        )
    (OUT / "labels.bin").write_bytes(np.concatenate(all_labels).tobytes())
    print(sum(path.stat().st_size for path in OUT.iterdir()), "bytes in", OUT)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
