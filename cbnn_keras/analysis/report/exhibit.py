"""Samples of a data set as people see them: pictures, texts, or values."""

import base64
import io
from typing import Any

import keras
import numpy as np

from cbnn_keras.support.extras import need

_LARGEST = 160  # pixels of a picture
_NUM_VALUES = 12  # of a row of a table
_NUM_LETTERS = 280  # of a text


class Exhibit:
    """Shows samples of a data set: pictures, texts, or values.

    Args:
        x: Inputs of a model, in any structure.
    """

    def __init__(self, x: Any) -> None:
        if hasattr(x, "columns"):  # of pandas, whose rows have names
            x = {str(name): x[name].to_numpy() for name in x.columns}
        self._x = x
        self._scale = _pixel_scale(x) if is_images(x) else (0.0, 1.0)

    def show(self, index: int) -> Any:
        """HTML of one sample."""
        markupsafe = need("markupsafe", "report")
        if is_images(self._x):
            address = self._picture(self._x[index])
            return markupsafe.Markup('<img src="{}" alt="sample {}">').format(
                address, index
            )
        if isinstance(self._x, dict):
            lines = [
                f"{name}: {_text(array[index])}"
                for name, array in self._x.items()
            ]
            more = ["…"] if len(lines) > _NUM_VALUES else []
            return markupsafe.Markup("<br>").join(lines[:_NUM_VALUES] + more)
        parts = keras.tree.flatten(self._x)
        return markupsafe.Markup("<br>").join(_text(p[index]) for p in parts)

    def _picture(self, pixels: np.ndarray) -> str:
        images = need("PIL.Image", "report")
        low, high = self._scale
        values = (pixels.astype(np.float64) - low) / (high - low)
        values = np.clip(np.nan_to_num(values), 0, 1)
        values = np.round(255 * values).astype(np.uint8)
        if values.ndim == 3 and values.shape[-1] == 1:
            values = values[..., 0]
        image = images.fromarray(values)
        image.thumbnail((_LARGEST, _LARGEST))
        buffer = io.BytesIO()
        image.save(buffer, format="png")
        encoded = base64.b64encode(buffer.getvalue()).decode()
        return f"data:image/png;base64,{encoded}"


def is_images(x: Any) -> bool:
    """Whether inputs look like pictures.

    Four dimensions with 1, 3 or 4 channels in the end, or squares without
    channels.
    """
    if not isinstance(x, np.ndarray) or x.dtype.kind not in "uifb":
        return False
    if x.ndim == 4:
        return x.shape[-1] in (1, 3, 4) and min(x.shape[1:3]) > 1
    return x.ndim == 3 and x.shape[1] == x.shape[2] >= 8


def _pixel_scale(x: np.ndarray) -> tuple[float, float]:
    """The values that are black and white."""
    if x.dtype.kind == "b":
        return 0.0, 1.0
    finite = x[np.isfinite(x)]
    if not finite.size:
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    for usual in (1.0, 255.0):
        if low >= 0 and high <= usual:
            return 0.0, usual
    return low, max(high, low + 1e-9)  # normalised, in some way or other


def _text(sample: Any) -> str:
    values = np.asarray(sample)
    if values.dtype.kind in "USO":
        text = " ".join(map(_decoded, values.ravel().tolist()))
        return _shortened(text, _NUM_LETTERS)
    flat = values.ravel()
    form = ".4g" if flat.dtype.kind == "f" else ""
    shown = ", ".join(f"{v:{form}}" for v in flat[:_NUM_VALUES].tolist())
    return shown + (", …" if flat.size > _NUM_VALUES else "")


def _decoded(value: Any) -> str:
    is_bytes = isinstance(value, bytes)
    return value.decode("utf-8", "replace") if is_bytes else str(value)


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
