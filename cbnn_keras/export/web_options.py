"""What the page of a web export can be told, checked in one place."""

import dataclasses
import math
import numbers
from collections.abc import Sequence

import numpy as np

from cbnn_keras.support import arguments
from cbnn_keras.support.aliases import Json

INPUTS = ("drawing", "image", "row")
# What a page can give a model, of the types that ONNX has.
TYPES = ("float32", "float64", "uint8", "int32", "int64")
_ADVICE = "Export an ONNX file and write a page of your own for it."


@dataclasses.dataclass(frozen=True, kw_only=True)
class PageOptions:
    """What the page of `export_web` can be told, as keyword arguments.

    How a picture becomes what the model takes is stated here, and written into
    the page as `config`: pixels are averaged down to the model's size, turned
    to gray if the model has one channel, inverted if so said, and scaled.

    Args:
        input: What people give the model: `"drawing"`, `"image"` (a file) or
            `"row"` (numbers). By default what the shape of the model's input
            suggests: a drawing for one channel, an image for three, else a row.
        title: The heading of the page.
        image_shape: `(height, width)`, for models that take an image as a flat
            row; by default a square.
        value_range: What the darkest and the brightest pixel become, such as
            `(-1, 1)`. Defaults to None: `(0, 1)`, and `(0, 255)` for a model
            that takes integers.
        invert: Whether dark becomes bright before that. Defaults to True for
            drawings, dark ink on white paper, since models are mostly trained
            on bright ink, and to False for images.
        margin: Drawings are cut out, centred and scaled so that this share of
            the picture stays free at each side; None leaves them as they were
            drawn. Defaults to 0.
        pen: The width of the pen, as a share of the paper. Defaults to 0.1.
        crop: Whether of images only the middle is taken, with the model's
            proportions. Defaults to False: they are stretched.

    Raises:
        ValueError: If an option cannot be right, whatever the model.
    """

    input: str | None = None
    title: str = "Checkpoint ensemble"
    image_shape: Sequence[int] | None = None
    value_range: Sequence[float] | None = None
    invert: bool | None = None
    margin: float | None = 0.0
    pen: float = 0.1
    crop: bool = False

    def __post_init__(self) -> None:
        if self.input is not None and self.input not in INPUTS:
            raise ValueError(
                f"input must be one of {', '.join(INPUTS)}, not {self.input!r}."
            )
        _check_title(self.title)
        for name, others in (("invert", [None]), ("crop", [])):
            _check_flag(name, getattr(self, name), others)
        if self.image_shape is not None:
            _check_pair("image_shape", self.image_shape)
            for size in self.image_shape:
                arguments.integer("export_web", "image_shape", size)
        if self.value_range is not None:
            _check_pair("value_range", self.value_range)
        if self.margin is not None:
            margin = arguments.number(
                "export_web",
                "margin",
                self.margin,
                at_least=0,
                below=0.5,
                allowed="None, or at least 0 and below 0.5",
            )
            object.__setattr__(self, "margin", margin)
        pen = arguments.number(
            "export_web",
            "pen",
            self.pen,
            above=0,
            below=1,
            allowed="above 0 and below 1",
        )
        object.__setattr__(self, "pen", pen)

    def fitted_to(self, shape: Sequence[int | None], dtype: str) -> Json:
        """What the page has to know of its input.

        Args:
            shape: Of the model's input, without the first dimension; None for
                those that are open.
            dtype: Its type.

        Raises:
            ValueError: If no page can give the model its input.
        """
        if dtype not in TYPES:
            raise ValueError(
                f"A page can give a model numbers ({', '.join(TYPES)}), but "
                f"this one takes {dtype}. {_ADVICE}"
            )
        if any(size is None for size in shape):
            raise ValueError(
                "A page needs to know the size of the model's input, but of "
                f"{tuple(shape)} a dimension is open. Give the export "
                "inputs=keras.Input(...) with all of them."
            )
        sizes = [int(size) for size in shape if size is not None]
        kind = self.input or _kind(sizes)
        config: Json = {"kind": kind}
        if kind == "row":
            return config
        height, width, channels = self._image(sizes)
        invert = kind == "drawing" if self.invert is None else self.invert
        return config | {
            "image": {"height": height, "width": width, "channels": channels},
            "value_range": self._range(dtype),
            "invert": bool(invert),
            "margin": self.margin,
            "pen": self.pen,
            "crop": bool(self.crop),
        }

    def _range(self, dtype: str) -> list[float]:
        """What the darkest and the brightest pixel become."""
        is_integer = not dtype.startswith("float")
        given = self.value_range
        if given is None:
            given = (0, 255) if is_integer else (0, 1)
        low, high = (float(value) for value in given)
        # A page would make other numbers of these, and say nothing.
        if dtype == "uint8" and not (0 <= low <= 255 and 0 <= high <= 255):
            raise ValueError(
                f"export_web(value_range={given!r}): the model takes uint8, "
                "from 0 to 255."
            )
        return [low, high]

    def _image(self, sizes: list[int]) -> tuple[int, int, int]:
        """Height, width and channels of the model's input."""
        total = math.prod(sizes)
        if len(sizes) >= 2:
            height, width = sizes[:2]
        elif self.image_shape is not None:
            height, width = (int(size) for size in self.image_shape)
        else:
            height = width = math.isqrt(total)
        channels, rest = divmod(total, height * width)
        given = self.image_shape
        is_other = given is not None and [*given] != [height, width]
        if rest or channels not in (1, 3) or is_other:
            raise ValueError(
                f"The model's input of shape {tuple(sizes)} is not an image of "
                "one or three channels"
                + (f" and of image_shape={tuple(given)}" if given else "")
                + ". Say image_shape=(height, width), or input='row'."
            )
        return height, width, channels


def _kind(sizes: list[int]) -> str:
    """What the shape of an input suggests."""
    is_image = len(sizes) == 3 and sizes[2] in (1, 3)
    if not is_image:
        return "row"
    return "drawing" if sizes[2] == 1 else "image"


def _check_title(title: str) -> None:
    is_text = isinstance(title, str)
    # Arguments of a command can be bytes that are no text.
    if not is_text or any("\ud800" <= letter <= "\udfff" for letter in title):
        raise ValueError(f"export_web(title={title!r}): title must be a text.")


def _check_flag(name: str, value: object, others: list[None]) -> None:
    if not isinstance(value, (bool, np.bool_)) and value not in others:
        allowed = ", ".join(str(one) for one in ("True", "False", *others))
        raise ValueError(
            f"export_web({name}={value!r}): {name} must be one of {allowed}."
        )


def _check_pair(name: str, pair: Sequence[float]) -> None:
    is_pair = isinstance(pair, Sequence) and len(pair) == 2
    if not is_pair or not all(
        isinstance(v, numbers.Real) and math.isfinite(v) for v in pair
    ):
        raise ValueError(
            f"export_web({name}={pair!r}): {name} must be two numbers."
        )
