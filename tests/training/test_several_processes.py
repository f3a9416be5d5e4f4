"""One training in several processes on JAX, killed and started again.

What takes minutes is asked for by CBNN_ALL_PROCESSES=1.
"""

import functools
import hashlib
import importlib.util
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile

import numpy as np
import process_worker
import pytest

from cbnn_keras import CheckpointEnsemble

HERE = pathlib.Path(__file__).parent
pytestmark = [
    pytest.mark.large,
    pytest.mark.skipif(
        importlib.util.find_spec("jax") is None, reason="jax is not installed"
    ),
]
needs_time = pytest.mark.skipif(
    not os.environ.get("CBNN_ALL_PROCESSES"),
    reason="CBNN_ALL_PROCESSES is not set",
)


@pytest.fixture(scope="module")
def train():
    """Trains by process_worker.py, the same only once."""
    with tempfile.TemporaryDirectory() as folder:
        yield functools.cache(functools.partial(_train, pathlib.Path(folder)))


def _train(
    folder,
    *,
    processes=1,
    devices=1,
    restarts=0,
    options="{}",
    directory=None,
):
    directory = directory or pathlib.Path(tempfile.mkdtemp(dir=folder))
    launcher = ["-m", "cbnn_keras.launch", "--processes", str(processes)]
    launcher += ["--restarts", str(restarts)]
    done = subprocess.run(
        [
            sys.executable,
            *(launcher if processes > 1 else []),
            str(HERE / "process_worker.py"),
            str(directory),
            options,
        ],
        env={
            **os.environ,
            "KERAS_BACKEND": "jax",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        },
        capture_output=True,
        text=True,
        timeout=1500,
    )
    return directory, done


def result(trained):
    directory, done = trained
    assert done.returncode == 0, done.stderr[-4000:]
    return np.load(directory / "result.npz")


def assert_same(one, other, *, tolerance):
    """Votes, weights and accuracy exactly, variables nearly."""
    assert len(one["votes"]) == 3
    for name in ("votes", "weights", "accuracy", "all_steps"):
        assert np.array_equal(one[name], other[name]), name
    for name in one.files:
        if name.startswith("arr_"):
            np.testing.assert_allclose(
                one[name], other[name], rtol=0, atol=tolerance
            )


def content(directory):
    run = directory / "run"
    return {
        str(path.relative_to(run)): hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        for path in run.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("num", [2, pytest.param(3, marks=needs_time)])
def test_processes_are_devices_of_one(train, num):
    """Though the last batch of 13 does not divide."""
    several, one = train(processes=num), train(devices=num)
    assert_same(result(several), result(one), tolerance=1e-6)
    loaded = CheckpointEnsemble.load(several[0] / "run")
    assert len(loaded) == 3


@needs_time
@pytest.mark.parametrize(
    "options",
    [{"phases": 2}, {"is_snapshot": True}, {"is_dataset": True}],
    ids=str,
)
def test_phases_other_methods_and_datasets(train, options):
    """Of a dataset, patterns of all samples are kept by all."""
    several, one = (
        train(**where, options=json.dumps(options))
        for where in ({"processes": 2}, {"devices": 2})
    )
    found, expected = result(several), result(one)
    assert len(found["votes"]) == 3 * options.get("phases", 1)
    for name in ("votes", "weights", "accuracy", "all_steps"):
        assert np.array_equal(found[name], expected[name]), name
    assert content(several[0]) == content(one[0])


@needs_time
def test_restarts_by_held_out_data(train):
    """All start anew by what the first process finds."""
    options = json.dumps({"restarts": "auto", "epochs": 24})
    several, one = (
        train(**where, options=options)
        for where in ({"processes": 2}, {"devices": 2})
    )
    found, expected = result(several), result(one)
    assert np.array_equal(found["all_steps"], expected["all_steps"])
    np.testing.assert_allclose(found["votes"], expected["votes"], rtol=1e-9)
    assert CheckpointEnsemble.load(several[0] / "run").run.auto_cycles.starts


@needs_time
def test_sigterm_of_one_ends_all_and_they_are_resumed(train):
    whole = train(processes=2)
    options = {"resumes": True, "dies": [1, 7], "signal": "SIGTERM"}
    ended = train(processes=2, restarts=1, options=json.dumps(options))
    assert "CBNNCallback: training was ended by SIGTERM" in ended[1].stderr
    assert ", and are started again." in ended[1].stderr
    result(ended)
    assert content(ended[0]) == content(whole[0])


def own_of_each(directory, name, num):
    files = [np.load(directory / f"process_{i}.npz") for i in range(num)]
    return [file[name] for file in files]


two_or_three = pytest.mark.parametrize(
    "num", [2, pytest.param(3, marks=needs_time)], ids=lambda num: f"{num}"
)


@two_or_three
@pytest.mark.parametrize(
    "augments", [False, pytest.param(True, marks=needs_time)]
)
def test_of_arrays_each_process_has_its_own(train, num, augments):
    """Reads, weighs and scores them, and the run is that of one process."""
    options = {"sharded": True, "augments": augments, "batch_size": 6 * num}
    options = json.dumps(options)
    several = train(processes=num, options=options)
    one = train(devices=num, options=options)
    found, expected = result(several), result(one)
    for name in ("votes", "accuracy", "all_steps"):
        assert np.array_equal(found[name], expected[name]), name
    assert len(found["votes"]) == 3
    ends = [93 * i // num for i in range(num + 1)]
    weights = own_of_each(several[0], "weights", num)
    assert [len(own) for own in weights] == np.diff(ends).tolist()
    assert np.array_equal(np.concatenate(weights), expected["weights"])
    assert len(np.unique(expected["weights"])) > 3
    # Its own samples, each once.
    for name in "xy":
        read = own_of_each(several[0], name, num)
        for own, start, stop in zip(read, ends, ends[1:], strict=False):
            assert own.tolist() == list(range(start, stop))
        assert own_of_each(one[0], name, 1)[0].tolist() == list(range(93))
    if num == 2:
        assert content(several[0]) == content(one[0])
        return
    # Sums over three devices are rounded in another order: the model differs
    # in its last bits, and a loss with it.
    for own, others in zip(records(several), records(one), strict=True):
        assert own == pytest.approx(others, rel=1e-6, abs=0)
        assert own["vote"] == others["vote"]
    bits = [
        {k: v for k, v in content(d).items() if k.startswith("rounds")}
        for d, _ in (several, one)
    ]
    assert bits[0] == bits[1] and len(bits[0]) == 3


def manifest(trained):
    return json.loads((trained[0] / "run" / "manifest.json").read_text())


def records(trained):
    return manifest(trained)["rounds"]


@two_or_three
def test_of_datasets_each_process_has_the_part_that_it_gives(train, num):
    """Every second sample, so that one has one more than the other."""
    several = train(processes=num, options=dataset_options(num))
    votes = result(several)["votes"]
    own = [np.arange(93)[i::num] for i in range(num)]
    read = own_of_each(several[0], "x", num)
    for found, expected in zip(read, own, strict=True):
        # In every pass, and nothing else.
        assert np.unique(found).tolist() == expected.tolist()
    # omega from the bits of the rounds, by the formulas of the paper.
    _, labels = process_worker.data()
    omega = np.where(labels[np.concatenate(own)] == 0, 2.0, 1.0)
    omega /= omega.sum()
    rate = manifest(several)["settings"]["deviation_rate"]
    assert len(records(several)) == 3
    for record, vote in zip(records(several), votes, strict=True):
        path = several[0] / "run" / "rounds" / f"{record['step']}.npy"
        correct = np.unpackbits(np.load(path), count=93).astype(bool)
        error = omega[~correct].sum()
        assert record["error"] == pytest.approx(error, rel=1e-9)
        expected = np.log((1 - error) / error) + np.log(2)
        assert vote == pytest.approx(expected, rel=1e-9)
        if not record["is_final"]:
            omega *= np.exp(-rate * vote * correct)
            omega /= omega.sum()
    weights = own_of_each(several[0], "weights", num)
    assert [len(w) for w in weights] == [len(index) for index in own]
    np.testing.assert_allclose(np.concatenate(weights), 93 * omega, rtol=1e-6)
    for found in own_of_each(several[0], "votes", num):
        assert np.array_equal(found, votes)


def dataset_options(num, **others):
    options = {"sharded": True, "is_dataset": True, "augments": True}
    return json.dumps({**options, "batch_size": 6 * num, **others})


@needs_time
def test_float64_is_as_one_plain_process(train):
    several = train(processes=2, options=json.dumps({"float64": True}))
    plain = train(options=json.dumps({"float64": True, "joins": False}))
    assert_same(result(several), result(plain), tolerance=1e-4)


@needs_time
def test_restarts_and_augmentation(train):
    options = json.dumps({"restarts": 2, "augments": True})
    several, one = (
        result(train(processes=2, options=options)),
        result(train(devices=2, options=options)),
    )
    for name in ("votes", "weights"):
        assert np.array_equal(one[name], several[name]), name


@pytest.mark.parametrize(
    "dies",
    [
        pytest.param([1, 7], id="mid-epoch"),
        pytest.param([0, 2], id="first epoch", marks=needs_time),
        pytest.param([1, 3], id="other, first epoch", marks=needs_time),
        pytest.param([0, 12], id="first, mid-epoch", marks=needs_time),
        pytest.param([0, "save"], id="first, in a save", marks=needs_time),
        pytest.param([1, "save"], id="other, in a save", marks=needs_time),
    ],
)
def test_killed_and_started_again_by_the_supervisor(train, dies):
    whole = train(processes=2)
    options = json.dumps({"resumes": True, "dies": dies})
    killed = train(processes=2, restarts=2, options=options)
    assert (killed[0] / "has_died").exists()
    lines = [
        line for line in killed[1].stderr.splitlines() if "all were" in line
    ]
    assert lines == [
        f"cbnn_keras.launch: process {dies[0]} of 2 was ended by SIGKILL; all "
        "were ended, and are started again."
    ]
    result(killed)
    assert content(killed[0]) == content(whole[0])


@pytest.mark.parametrize(
    ("is_dataset", "dies"),
    [
        pytest.param(True, [1, 10], id="dataset"),
        pytest.param(True, [0, "save"], id="save, dataset", marks=needs_time),
        pytest.param(False, [1, 7], id="arrays", marks=needs_time),
        pytest.param(False, [0, "save"], id="save, arrays", marks=needs_time),
    ],
)
def test_with_samples_of_their_own_killed_and_started_again(
    train, is_dataset, dies
):
    plain = {"sharded": True, "augments": False, "batch_size": 12}
    options = dataset_options(2) if is_dataset else json.dumps(plain)
    whole = train(processes=2, options=options)
    again = {**json.loads(options), "resumes": True, "dies": dies}
    killed = train(processes=2, restarts=2, options=json.dumps(again))
    assert (killed[0] / "has_died").exists()
    result(killed)
    assert content(killed[0]) == content(whole[0])


@pytest.mark.parametrize("number", [0, 1])
def test_without_a_supervisor_the_other_ends_and_says_why(tmp_path, number):
    """Within a minute, though nobody ends it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, str(HERE / "process_worker.py"), str(tmp_path)]
    command.append(json.dumps({"dies": [number, 7]}))
    outputs = [tmp_path / f"output_{i}" for i in range(2)]
    started = []
    for i, output in enumerate(outputs):
        environment = {
            **os.environ,
            "KERAS_BACKEND": "jax",
            "JAX_COORDINATOR_ADDRESS": address,
            "JAX_COORDINATOR_BIND_ADDRESS": address,
            "JAX_NUM_PROCESSES": "2",
            "JAX_PROCESS_ID": str(i),
        }
        with output.open("wb") as file:
            process = subprocess.Popen(
                command, env=environment, stdout=file, stderr=file
            )
        started.append(process)
    other = 1 - number
    try:
        assert started[number].wait(300) == -signal.SIGKILL
        code = started[other].wait(60)
    finally:
        for process in started:
            process.kill()
    text = outputs[other].read_text()
    if number == 0 and code == -signal.SIGABRT:  # JAX came before Python
        assert "This most likely indicates that another task died" in text
        return
    assert code == 75, text[-3000:]
    own = [line for line in text.splitlines() if "cbnn_keras.launch" in line]
    assert len(own) == 1 and "Traceback" not in text
    assert own[0].startswith(
        f"cbnn_keras.launch: process {other} of 2 ends, because another one "
        "has died or cannot be reached. Start all of them again"
    )


@needs_time
def test_a_finished_run_is_opened_again(train, tmp_path):
    whole, _ = train(processes=2)
    before = content(whole)
    again = _train(
        tmp_path,
        processes=2,
        options=json.dumps({"resumes": True}),
        directory=whole,
    )
    found = result(again)
    assert len(found["votes"]) == 3 and not len(found["accuracy"])
    assert content(whole) == before


def test_an_error_of_one_ends_all_before_a_directory_is_made(train):
    options = json.dumps({"wrong_labels": 1})
    directory, done = train(processes=2, options=options)
    assert done.returncode == 1
    assert "Process 1 of 2 differs from process 0 in the labels" in done.stderr
    assert not (directory / "run").exists()
