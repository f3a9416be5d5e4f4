"""What of Keras models are made of: what an architecture may name.

What is done with the text of an architecture is in `architecture_config`.
"""

import inspect
from typing import Any

import keras

from cbnn_keras.models import keras_internals
from cbnn_keras.support.aliases import Json

# Where Keras says its classes are, as it writes them.
_PUBLIC = {
    "keras": keras,
    "keras.layers": keras.layers,
    "keras.models": keras.models,
    "keras.initializers": keras.initializers,
    "keras.regularizers": keras.regularizers,
    "keras.constraints": keras.constraints,
    "keras.dtype_policies": keras.dtype_policies,
    "keras.random": keras.random,
    "keras.quantizers": keras.quantizers,
}
PARTS = (
    keras.Operation,  # layers and models too
    keras.initializers.Initializer,
    keras.regularizers.Regularizer,
    keras.constraints.Constraint,
    keras.dtype_policies.DTypePolicy,
    keras.random.SeedGenerator,
    keras.quantizers.Quantizer,
)
# These run or load what is not in the file, or what is code in it.
CODE = {
    "Lambda",
    "TFSMLayer",
    "TorchModuleWrapper",
    "JaxLayer",
    "FlaxLayer",
}
# "builtins" is where earlier versions of Keras say its activations are.
_FUNCTIONS = {
    "keras.activations": keras.activations,
    "builtins": keras.activations,
    "keras.ops": keras.ops,
}
_NOT_ACTIVATIONS = {"get", "serialize", "deserialize"}


def is_of_keras(module: Any) -> bool:
    """Whether a module is one of Keras, by its name."""
    return isinstance(module, str) and module.split(".")[0] == "keras"


def is_part_of_models(module: str, name: str) -> bool:
    """Whether a class of Keras is one that models are made of."""
    return _class(module, name, PARTS) is not None


def is_function(module: str, name: str) -> bool:
    """Whether a function is one of Keras that layers may call."""
    if name in _NOT_ACTIVATIONS:
        return False
    return inspect.isfunction(getattr(_FUNCTIONS.get(module), name, None))


def is_layer(node: Json) -> bool:
    """Whether an object is a layer, or one of the user's classes."""
    name, module = node.get("class_name"), node.get("module")
    if not isinstance(name, str) or not isinstance(module, str):
        return False
    if not is_of_keras(module):
        return module != "builtins"
    return _class(module, name, (keras.Operation,)) is not None


def _class(module: str, name: str, kinds: tuple[type, ...]) -> type | None:
    """A class of Keras, if it is of one of these kinds."""
    if module in _PUBLIC:
        found = getattr(_PUBLIC[module], name, None)
        is_one = inspect.isclass(found) and issubclass(found, kinds)
        return found if is_one else None
    # Operations, and layers of keras.applications.
    return keras_internals.private_operation(module, name)
