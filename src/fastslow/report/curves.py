"""Curves of one run as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def draw_run(rows: list[dict[str, Any]], path: Path) -> Path | None:
    """Loss, accuracy and flip ratio over the epochs as a PNG; None where matplotlib isn't installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        return None
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    epochs = [row["epoch"] for row in rows]
    panels = [
        ("cross-entropy", [("train", "train_loss", 1.0), ("test", "test_loss", 1.0)]),
        ("accuracy, %", [("train", "train_accuracy", 1.0), ("test", "test_accuracy", 1.0)]),
        ("bits flipped in an epoch, %", [("", "flip_ratio", 100.0)]),
    ]
    for axes, (title, series) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for label, key, factor in series:
            if key in rows[0]:
                axes.plot(epochs, [factor * row[key] for row in rows], marker=".", label=label)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        if len(series) > 1:
            axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    return path
