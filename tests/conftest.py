"""One thread per test process, and every test starts from the same seeds."""

import gc
import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

# Thousands of files are written, and no test cuts the power. What is synced,
# and when, is tested with functions that are put in its place.
os.fsync = lambda descriptor: None

# No doctests are looked for in these.
collect_ignore_glob = ["*conftest.py"]


def pytest_configure(config):
    is_worker = hasattr(config, "workerinput")
    if getattr(config.option, "numprocesses", 0) and not is_worker:
        return  # it waits for others, and they for it: no seconds of importing

    gc.disable()  # until everything is imported
    import tensorflow as tf

    # The suite runs in one process a core.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    # For `MirroredStrategy`: what is put nowhere stays on the first of them.
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 3,
    )
    # To optimise graphs takes a third of the time of small trainings. What is
    # large, and CI runs in a second command, is done with it.
    if "not large" in config.option.markexpr:
        options = {"disable_meta_optimizer": True}
        tf.config.optimizer.set_experimental_options(options)


def pytest_collection_finish():
    # Modules stay until the end. To look through them at every collection of
    # garbage, which some tests ask for, would take most of a second each.
    gc.enable()
    gc.collect()
    gc.freeze()
    # To trace makes many objects that stay. Looking for garbage among them as
    # often as Python does would take a tenth of the time of all tests.
    gc.set_threshold(50_000, 10, 10)


@pytest.fixture(autouse=True)
def fresh_keras():
    import keras

    # Resets the names of layers; freeing memory too would cost 0.2 s a test.
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    yield
    keras.config.set_dtype_policy("float32")
