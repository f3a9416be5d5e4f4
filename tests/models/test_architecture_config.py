"""Texts of architectures that Keras must not act on."""

import copy
import inspect
import json
import os
import sys

import keras
import pytest

from cbnn_keras.models import architecture_config, keras_parts
from cbnn_keras.models.architecture_config import UnknownClassesError
from cbnn_keras.models.foreign import Foreign, RebuildError

LIMIT = 2**32
LAYER = {"class_name": "Dense", "module": "keras.layers", "config": {}}


def model_with(value, setting="kernel_initializer"):
    """A description of a model, one setting of whose layer is the value."""
    layer = {**LAYER, "config": {"units": 3, setting: value}}
    layers = [{**LAYER, "class_name": "InputLayer"}, layer]
    return {
        "module": "keras",
        "class_name": "Sequential",
        "config": {"name": "a", "layers": layers},
        "registered_name": None,
    }


def function(module, name, registered_name=None):
    return {
        "module": module,
        "class_name": "function",
        "config": name,
        "registered_name": registered_name,
    }


def instance(module, name, registered_name=None, /, **config):
    return {
        "module": module,
        "class_name": name,
        "config": config,
        "registered_name": registered_name,
    }


def array(value, dtype="float32", kind="__numpy__"):
    return {"class_name": kind, "config": {"value": value, "dtype": dtype}}


def check(config, custom_objects=None, max_bytes=LIMIT):
    architecture_config.check(config, custom_objects or {}, max_bytes)


PART = "no part of a model"
OLD = "format of old versions"
CODE = "which is code"
HIDDEN = "array of objects"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        # Functions that do something else than compute.
        (function("keras.utils", "get_file"), PART),
        (function("keras.saving", "load_model"), PART),
        (function("keras.models", "load_model"), PART),
        (function("keras.config", "enable_unsafe_deserialization"), PART),
        (function("keras.activations", "deserialize"), PART),
        (function("keras.src.utils.python_utils", "func_load"), PART),
        (function("builtins", "eval"), PART),
        (function("builtins", "__import__"), PART),
        (function("builtins", "get_file"), "classes of its maker: get_file"),
        (function("keras.layers", "Dense"), PART),
        (function("keras.ops", "relu", "eval"), "under another name"),
        (function("keras.ops", ["relu"]), "under another name"),
        # The same, named as classes.
        (instance("keras.utils", "get_file"), PART),
        (instance("keras.saving", "load_model"), PART),
        (instance("keras.utils", "Sequence"), PART),
        (instance("keras.callbacks", "LambdaCallback"), PART),
        (instance("keras.optimizers", "Adam"), PART),
        (instance("keras.layers", "deserialize"), PART),
        (instance("keras.src.saving.saving_lib", "DiskIOStore"), PART),
        (instance("keras.src.layers.core.dense", "Layer"), PART),
        (instance("keras.src.models.variable_mapping_test", "A"), PART),
        (instance("keras.src.layers", "Dense"), PART),
        # Layers that run or load.
        (instance("keras.layers", "Lambda"), CODE),
        (instance("keras.src.layers.core.lambda_layer", "Lambda"), CODE),
        (instance("keras.layers", "TFSMLayer", filepath="a"), CODE),
        (instance("keras.layers", "TorchModuleWrapper"), CODE),
        (instance("keras.layers", "JaxLayer"), CODE),
        (instance("keras.layers", "FlaxLayer"), CODE),
        ({"class_name": "__lambda__", "config": {"value": []}}, CODE),
        # Values that hide something.
        (array({"class_name": "Lambda"}, "object"), HIDDEN),
        (array([1, 2], "object"), HIDDEN),
        (array([1, 2], "O"), HIDDEN),
        (array([1, 2], "f4,O"), HIDDEN),
        (array([1, 2], [["a", "O"]]), HIDDEN),
        (array([1, 2], None), HIDDEN),
        (array([[1], {}]), HIDDEN),
        (array([None]), HIDDEN),
        (array({}, kind="__tensor__"), HIDDEN),
        ({"class_name": "__numpy__"}, HIDDEN),
        ({"class_name": "__typespec__", "config": []}, "kind '__typespec__'"),
        ({"class_name": "__tuple__", "items": []}, "kind '__tuple__'"),
        # What Keras would look for in its own way.
        ({"class_name": "Dense", "config": {}}, OLD),
        ({"class_name": "Lambda", "config": {}}, OLD),
        ({"class_name": "Dense", "module": "keras.layers"}, OLD),
        ({"class_name": ["Dense"], "config": {}}, "is not a text"),
        ({"class_name": None, "config": {}}, "is not a text"),
        ({**LAYER, "config": "relu"}, "settings of Dense .* no object"),
        ({**LAYER, "compile_config": {"loss": "mse"}}, "compiled model within"),
        # Files.
        (instance("keras.layers", "StringLookup", vocabulary="a"), "in a file"),
        (
            instance("keras.layers", "TextVectorization", vocabulary="gs://a"),
            "TextVectorization in it has its vocabulary in a file elsewhere",
        ),
        (
            instance("keras.layers", "IntegerLookup", idf_weights="/a"),
            "IntegerLookup in it has its idf_weights in a file elsewhere",
        ),
        (
            instance("keras.layers", "StringLookup", vocabulary=array("a")),
            "in a file",
        ),
        (
            instance(
                *("keras.layers", "StringLookup"),
                vocabulary={"class_name": "__bytes__", "config": {"value": ""}},
            ),
            "in a file",
        ),
        # Lists without end.
        (
            instance("keras.layers", "TextVectorization", ngrams=10**9),
            "ngrams=",
        ),
        (
            instance("keras.layers", "StringLookup", num_oov_indices=2**27),
            "num_oov_indices=134,217,728, which takes more than 4,294,967,296",
        ),
    ],
)
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [[{"a": v}]]])
def test_what_is_no_part_of_a_model_is_refused(value, message, wrap):
    with pytest.raises(ValueError, match=message):
        check(model_with(wrap(value)))


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (function("os", "system"), "os.system"),
        (function("posix", "system", "function"), "posix.system"),
        (instance("subprocess", "Popen"), "subprocess.Popen"),
        (instance("keras_cv.layers", "CutMix"), "keras_cv.layers.CutMix"),
        (instance("kerasx", "A"), "kerasx.A"),
        (instance(None, "Mine"), "Mine"),
        (instance("keras.layers", "Dense", "My>Dense"), "keras.layers.Dense"),
    ],
)
def test_what_is_not_of_keras_is_asked_for(value, name):
    before = set(sys.modules)
    with pytest.raises(UnknownClassesError) as caught:
        check(model_with([value, value]))
    assert caught.value.names == [name]
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    "value",
    [
        function("keras.activations", "relu", "relu"),
        function("keras.ops", "tanh"),
        function("builtins", "softmax", "function"),
        instance("keras.initializers", "GlorotUniform", seed=None),
        instance("keras.regularizers", "L2", l2=0.1),
        instance("keras.constraints", "MaxNorm"),
        instance("keras", "DTypePolicy", name="float32"),
        instance("keras.random", "SeedGenerator", seed=3),
        instance("keras.src.models.functional", "Functional", "Functional"),
        instance("keras.src.ops.numpy", "Mean", "Mean", axis=1),
        instance("keras.src.applications.convnext", "LayerScale"),
        instance("keras.layers", "StringLookup", vocabulary=["a", "b"]),
        instance("keras.layers", "IntegerLookup", vocabulary=array([1, 2])),
        instance("keras.layers", "TextVectorization", ngrams=[1, 2]),
        array([[1.0, float("inf")], [0, True]]),
        array(["a", "b"], "string"),
        {"class_name": "__slice__", "config": {"start": None}},
        {"class_name": "__ellipsis__", "config": {}},
        "keras.utils.get_file",
        float("nan"),
    ],
)
def test_parts_of_models_are_let_through(value):
    config = model_with(value)
    before = copy.deepcopy(config)
    check(config)
    assert repr(config) == repr(before)


@keras.saving.register_keras_serializable("test_config")
class Registered(keras.layers.Layer):
    pass


def test_classes_of_the_user_are_let_through():
    registered = instance("elsewhere", "Registered", "test_config>Registered")
    given = instance("elsewhere", "Given", "Given", vocabulary="mine")
    named = function("elsewhere", "named", "named")
    mine = {"Given": Registered, "named": os.getcwd}
    check(model_with([registered, given, named]), mine)
    with pytest.raises(UnknownClassesError, match=r"Given, elsewhere\.named$"):
        check(model_with([registered, given, named]))
    # A class of the user does not open a layer of Keras that is code.
    code = instance("keras.layers", "Lambda", "Given")
    with pytest.raises(ValueError, match=CODE):
        check(model_with(code), mine)
    with pytest.raises(ValueError, match=CODE):
        check(model_with(instance("keras.layers", "Lambda")), {"Lambda": int})


def named_lambda(name="named", registered=None, module="builtins"):
    return instance(
        *("keras.layers", "Lambda", registered),
        function=function(module, name),
    )


def test_a_lambda_layer_is_let_through_with_a_function_that_was_given():
    mine = {"named": os.getcwd}
    check(model_with(named_lambda()), mine)
    with pytest.raises(UnknownClassesError, match="its maker: named$"):
        check(model_with(named_lambda()))
    with pytest.raises(UnknownClassesError, match="its maker: other"):
        check(model_with(named_lambda("other")), mine)


@keras.saving.register_keras_serializable("test_config")
def registered_function(x):
    return x


@pytest.mark.parametrize("prefix", ["", "test_config>"])
def test_a_registered_function_is_given_by_either_name(tmp_path, prefix):
    layer = keras.layers.Lambda(registered_function)
    model = keras.Sequential([keras.Input((2,)), layer])
    model.save(tmp_path / "model.keras")
    given = {f"{prefix}registered_function": registered_function}
    loaded = Foreign(given).load(tmp_path / "model.keras")
    assert loaded.layers[0].function is registered_function
    # Another one of its name in the code is not the one in the file.
    other = {"registered_function": lambda x: x}
    with pytest.raises(RebuildError, match=r"{'registered_function': regis"):
        Foreign(other).load(tmp_path / "model.keras")


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        # What is registered may be somebody else's, and takes arguments here.
        (named_lambda("test_config>registered_function"), "of its maker"),
        (named_lambda("eval"), CODE),
        (named_lambda("relu", module="keras.activations"), CODE),
        (named_lambda("get_file", module="keras.utils"), CODE),
        (named_lambda("named", "Given"), CODE),
        (
            instance(
                *("keras.layers", "Lambda", "Lambda"),
                function=function("builtins", "named"),
                mask={"class_name": "__lambda__", "config": {}},
            ),
            CODE,
        ),
        (
            instance(
                *("keras.layers", "Lambda", "Lambda"),
                function={"class_name": "__lambda__", "config": {}},
            ),
            CODE,
        ),
    ],
)
def test_no_other_lambda_layer_is(layer, message):
    with pytest.raises(ValueError, match=message):
        check(model_with(layer), {"named": os.getcwd, "Given": Registered})


def test_training_of_the_model_itself_is_not_looked_at():
    config = model_with(None)
    config["compile_config"] = {"optimizer": instance("keras.optimizers", "A")}
    check(config)


def test_deep_nesting_is_refused():
    nested = []
    for _ in range(250):
        nested = [nested]
    with pytest.raises(ValueError, match="nested more than 200 deep"):
        check(model_with(nested))


def test_long_names_are_refused():
    check(model_with({"name": "x" * 1000}))
    message = "^a name in it has more than 1,000 characters$"
    with pytest.raises(ValueError, match=message):
        check(model_with({"name": "x" * 1001}))


def test_parse():
    assert architecture_config.parse(b'{"a": [1, {"b": 2}]}') == {
        "a": [1, {"b": 2}]
    }
    with pytest.raises(ValueError, match="an object in its text has two 'b'"):
        architecture_config.parse(b'{"a": [1, {"b": 2, "c": 1, "b": 2}]}')
    with pytest.raises(ValueError, match="is not an object of JSON"):
        architecture_config.parse(b"[1]")
    with pytest.raises(RecursionError):
        architecture_config.parse(b"[" * 10**6)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (instance("keras.layers", "LSTM", stateful=True), True),
        (instance("keras.layers", "LSTM", stateful=False), False),
        (instance("keras.layers", "Normalization", mean=1.0), True),
        (instance("keras.layers", "Normalization", mean=None), False),
    ],
)
def test_allocates_while_built(value, expected):
    config = json.loads(json.dumps(model_with([value])))
    assert architecture_config.allocates_while_built(config) is expected


def test_no_class_of_keras_that_is_let_through_takes_code_or_files():
    """Says which one, when a version of Keras brings another such class."""
    telling = ("file", "path", "url", "func", "fn", "module", "code")
    # Their vocabularies are looked at; of what they call, only the user's own
    # functions and those of Keras are let through.
    known = {
        "CTCDecode": "top_paths",
        "StochasticDepth": "drop_path_rate",
        "VectorizedMap": "function",
    }
    found = {}
    for module in sys.modules.copy():
        public = keras_parts._PUBLIC.get(module)
        owner = public or sys.modules[module]
        if public is None and not module.startswith("keras.src."):
            continue
        for name in dir(owner):
            if name in keras_parts.CODE or name.startswith("__"):
                continue
            if keras_parts.is_part_of_models(module, name):
                options = inspect.signature(getattr(owner, name)).parameters
                taken = [o for o in options if any(t in o for t in telling)]
                if taken and [known.get(name)] != taken:
                    found[f"{module}.{name}"] = taken
    assert found == {}


def test_layers_take_memory_beside_their_weights():
    config = model_with(None)
    layers = config["config"]["layers"]
    layers += [dict(LAYER)] * 100  # in all 103 with the model itself
    check(config, max_bytes=71 * 2**19)
    with pytest.raises(ValueError, match="it has 103 layers or more, which"):
        check(config, max_bytes=71 * 2**19 - 1)
    # A layer of the user's is one too; initializers are none.
    layers[-1] = {**LAYER, "module": "theirs"}
    with pytest.raises(ValueError, match="it has 103 layers or more, which"):
        check(config, max_bytes=71 * 2**19 - 1)
    layers[-1] = instance("keras.initializers", "Zeros")
    check(config, max_bytes=71 * 2**19 - 1)
