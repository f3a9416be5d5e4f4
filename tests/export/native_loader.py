"""Runs a SavedModel as a C++ server does: without TensorFlow's Python.

    python native_loader.py SAVED_MODEL REQUESTS.npz ANSWERS.npz

Arrays are called `0/SIGNATURE/NAME`, with the number of a request. SAVED_MODEL
is the directory with `saved_model.pb`.

TensorFlow's C API is called through ctypes and protobufs are read by hand, so
that nothing is shared with the code that wrote them. What TensorFlow allocates
is not freed: the process serves one model and ends.
"""

import ctypes
import importlib.util
import math
import os
import sys

import numpy as np

BOOL, STRING = 10, 7
DTYPES = {
    1: np.float32,
    2: np.float64,
    3: np.int32,
    4: np.uint8,
    9: np.int64,
    BOOL: np.bool_,
}
CODES = {np.dtype(dtype): code for code, dtype in DTYPES.items()}
TSTRING_SIZE = 24  # of `TF_TString`, on every 64-bit machine
# A ConfigProto: one thread within and one between operations.
ONE_THREAD = b"\x10\x01\x28\x01"


# Protobuf's wire format.


def varint(data, position):
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position


def fields(message):
    """Pairs of field number and value: an int, or the bytes."""
    position = 0
    while position < len(message):
        key, position = varint(message, position)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, position = varint(message, position)
        else:
            if kind == 2:
                size, position = varint(message, position)
            else:
                size = {1: 8, 5: 4}[kind]
            value = message[position : position + size]
            position += size
            if len(value) < size:
                raise ValueError("A protobuf message is cut off.")
        yield number, value


def all_of(message, wanted):
    return [value for number, value in fields(message) if number == wanted]


def last_of(message, wanted, default=b""):
    return (all_of(message, wanted) or [default])[-1]


def text(data):
    return bytes(data).decode()


def map_of(message, wanted):
    """A `map<string, Message>`."""
    return {
        text(last_of(entry, 1)): last_of(entry, 2)
        for entry in all_of(message, wanted)
    }


# TensorFlow's C API.


class Buffer(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("deallocator", ctypes.c_void_p),
    ]


class Output(ctypes.Structure):
    _fields_ = [("operation", ctypes.c_void_p), ("index", ctypes.c_int)]


def open_library():
    """The wheel's library, found without importing the package."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None:
        raise ModuleNotFoundError("tensorflow is not installed")
    (directory,) = spec.submodule_search_locations
    # It needs libtensorflow_framework, whose functions are found through it.
    library = ctypes.CDLL(os.path.join(directory, "libtensorflow_cc.so.2"))
    pointer, integer, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    for name, result, *arguments in [
        ("NewStatus", pointer),
        ("GetCode", integer, pointer),
        ("Message", ctypes.c_char_p, pointer),
        ("NewSessionOptions", pointer),
        ("SetConfig", None, pointer, ctypes.c_char_p, size, pointer),
        ("NewGraph", pointer),
        ("NewBuffer", ctypes.POINTER(Buffer)),
        (
            "LoadSessionFromSavedModel",
            pointer,
            *[pointer, pointer, ctypes.c_char_p],
            *[ctypes.POINTER(ctypes.c_char_p), integer],
            *[pointer, ctypes.POINTER(Buffer), pointer],
        ),
        ("GraphOperationByName", pointer, pointer, ctypes.c_char_p),
        (
            "SessionRun",
            None,
            *[pointer, pointer],
            *[ctypes.POINTER(Output), ctypes.POINTER(pointer), integer] * 2,
            *[ctypes.POINTER(pointer), integer, pointer, pointer],
        ),
        ("AllocateTensor", pointer, integer, pointer, integer, size),
        ("TensorType", integer, pointer),
        ("TensorData", pointer, pointer),
        ("TensorByteSize", size, pointer),
        ("NumDims", integer, pointer),
        ("Dim", ctypes.c_int64, pointer, integer),
        ("StringInit", None, pointer),
        ("StringCopy", None, pointer, ctypes.c_char_p, size),
        ("StringGetDataPointer", pointer, pointer),
        ("StringGetSize", size, pointer),
    ]:
        function = getattr(library, f"TF_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class SavedModel:
    """A session on the graph with the tag `serve`."""

    def __init__(self, path):
        self.library = library = open_library()
        self.status = library.TF_NewStatus()
        self.graph = library.TF_NewGraph()
        options = library.TF_NewSessionOptions()
        library.TF_SetConfig(options, ONE_THREAD, len(ONE_THREAD), self.status)
        self.check()
        meta_graph = library.TF_NewBuffer()
        self.session = library.TF_LoadSessionFromSavedModel(
            options,
            None,
            os.fsencode(path),
            (ctypes.c_char_p * 1)(b"serve"),
            1,
            self.graph,
            meta_graph,
            self.status,
        )
        self.check()
        buffer = meta_graph.contents
        message = memoryview(ctypes.string_at(buffer.data, buffer.length))
        self.signatures = map_of(message, 5)

    def check(self):
        code = self.library.TF_GetCode(self.status)
        if code:
            message = self.library.TF_Message(self.status).decode()
            raise RuntimeError(f"TensorFlow, status {code}: {message}")

    def run(self, signature, inputs):
        """Outputs by name."""
        if signature not in self.signatures:
            known = ", ".join(sorted(self.signatures))
            raise ValueError(f"No signature {signature!r}; there are: {known}.")
        definition = self.signatures[signature]
        sources, targets = map_of(definition, 1), map_of(definition, 2)
        if sources.keys() != inputs.keys():
            raise ValueError(
                f"{signature} takes {sorted(sources)}, not {sorted(inputs)}."
            )
        fed = [self.write_tensor(inputs[name]) for name in sources]
        fetched = (ctypes.c_void_p * len(targets))()
        self.library.TF_SessionRun(
            self.session,
            None,
            self.places(sources.values()),
            (ctypes.c_void_p * len(fed))(*fed),
            len(fed),
            self.places(targets.values()),
            fetched,
            len(fetched),
            None,
            0,
            None,
            self.status,
        )
        self.check()
        results = [self.read_tensor(handle) for handle in fetched]
        return dict(zip(targets, results, strict=True))

    def places(self, infos):
        """Where in the graph the tensors of some TensorInfos are."""
        outputs = []
        for info in infos:
            name, _, index = text(last_of(info, 1)).partition(":")
            operation = self.library.TF_GraphOperationByName(
                self.graph, name.encode()
            )
            if not operation:
                raise ValueError(f"The graph has no operation {name!r}.")
            outputs.append(Output(operation, int(index or 0)))
        return (Output * len(outputs))(*outputs)

    def write_tensor(self, array):
        if array.dtype.kind in "SUO":
            code, size = STRING, array.size * TSTRING_SIZE
        else:
            code, size = CODES[array.dtype], array.nbytes
        dims = (ctypes.c_int64 * array.ndim)(*array.shape)
        handle = self.library.TF_AllocateTensor(code, dims, array.ndim, size)
        start = self.library.TF_TensorData(handle)
        if code == STRING:
            for i, value in enumerate(array.ravel().tolist()):
                data = value.encode() if isinstance(value, str) else value
                place = start + i * TSTRING_SIZE
                self.library.TF_StringInit(place)
                self.library.TF_StringCopy(place, data, len(data))
        else:
            data = np.ascontiguousarray(array)
            ctypes.memmove(start, data.ctypes.data, size)
        return handle

    def read_tensor(self, handle):
        library = self.library
        code = library.TF_TensorType(handle)
        ndim = library.TF_NumDims(handle)
        shape = [library.TF_Dim(handle, i) for i in range(ndim)]
        start = library.TF_TensorData(handle)
        if code == STRING:
            strings = []
            for i in range(math.prod(shape)):
                place = start + i * TSTRING_SIZE
                data = library.TF_StringGetDataPointer(place)
                size = library.TF_StringGetSize(place)
                strings.append(ctypes.string_at(data, size))
            return np.array(strings, "S").reshape(shape)
        data = ctypes.string_at(start, library.TF_TensorByteSize(handle))
        return np.frombuffer(data, DTYPES[code]).reshape(shape)


def main(saved_model, requests, answers):
    model, results = SavedModel(saved_model), {}
    with np.load(requests) as arrays:
        inputs = {}
        for key, array in arrays.items():
            request, _, name = key.rpartition("/")
            inputs.setdefault(request, {})[name] = array
    for request, given in inputs.items():
        signature = request.partition("/")[2]
        for name, array in model.run(signature, given).items():
            results[f"{request}/{name}"] = array
    np.savez(answers, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
    assert "tensorflow" not in sys.modules
