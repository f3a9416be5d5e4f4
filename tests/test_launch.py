"""The supervisor, with scripts that know nothing of JAX."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
import yaml

from cbnn_keras import launch

HOSTS = pathlib.Path(__file__).parents[1] / "examples" / "several_hosts"
# Of jobset.x-k8s.io/v1alpha2 and batch/v1: what may stand where.
JOBSET = {"apiVersion", "kind", "metadata", "spec"}
SPEC = {
    "replicatedJobs",
    "network",
    "failurePolicy",
    "successPolicy",
    "startupPolicy",
    "coordinator",
    "suspend",
    "managedBy",
    "ttlSecondsAfterFinished",
}
JOB = {
    "parallelism",
    "completions",
    "completionMode",
    "backoffLimit",
    "template",
}
POD = {"restartPolicy", "containers", "volumes", "nodeSelector"}
CONTAINER = {"name", "image", "command", "env", "volumeMounts", "resources"}


def script(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text(
        "import os, pathlib, signal, sys, time\n"
        "number = int(os.environ['JAX_PROCESS_ID'])\n"
        f"here = pathlib.Path({str(tmp_path)!r})\n" + text
    )
    return str(path)


def test_variables_that_are_missing_or_wrong_are_named(monkeypatch):
    monkeypatch.delenv("JAX_PROCESS_ID", raising=False)
    monkeypatch.delenv("JAX_NUM_PROCESSES", raising=False)
    assert launch._number("JAX_NUM_PROCESSES", "1") == 1
    with pytest.raises(ValueError, match=r"JAX_PROCESS_ID is not set\. Each"):
        launch._number("JAX_PROCESS_ID")
    monkeypatch.setenv("JAX_PROCESS_ID", "first")
    with pytest.raises(ValueError, match="'first', which is no number"):
        launch._number("JAX_PROCESS_ID")


def test_all_get_what_they_need_to_find_each_other(tmp_path):
    path = script(
        tmp_path,
        "names = ['KERAS_BACKEND', 'JAX_NUM_PROCESSES',"
        " 'JAX_COORDINATOR_ADDRESS']\n"
        "found = ' '.join(os.environ[name] for name in names)\n"
        "(here / str(number)).write_text(found + ' ' + sys.argv[1])\n",
    )
    assert launch.main(["--processes", "3", path, "more"]) == 0
    texts = {(tmp_path / str(i)).read_text() for i in range(3)}
    assert len(texts) == 1
    assert re.fullmatch(r"jax 3 127\.0\.0\.1:\d+ more", texts.pop())


def test_nobody_else_gets_the_port_before_the_first_process_is_there(tmp_path):
    path = script(
        tmp_path,
        "import socket\n"
        "host, port = os.environ['JAX_COORDINATOR_ADDRESS'].split(':')\n"
        "with socket.socket() as other:\n"
        "    try:\n"
        "        other.bind((host, int(port)))\n"
        "    except OSError as error:\n"
        "        (here / f'other{number}').write_text(error.strerror)\n"
        "if number == 0:  # as gRPC opens it\n"
        "    with socket.socket() as service:\n"
        "        option = socket.SOL_SOCKET, socket.SO_REUSEPORT, 1\n"
        "        service.setsockopt(*option)\n"
        "        service.bind((host, int(port)))\n"
        "        service.listen()\n"
        "        for _ in range(20):\n"
        "            with socket.create_connection((host, int(port)), 5):\n"
        "                service.accept()[0].close()\n",
    )
    assert launch.main(["--processes", "2", path]) == 0
    for number in range(2):
        other = (tmp_path / f"other{number}").read_text()
        assert other == "Address already in use"


def test_one_dies_and_all_are_started_again(tmp_path, capfd):
    path = script(
        tmp_path,
        "starts = here / f'starts{number}'\n"
        "starts.write_text(starts.read_text() + 'x' if starts.exists()"
        " else 'x')\n"
        "if number == 1 and starts.read_text() == 'x':\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "if starts.read_text() == 'x':\n"
        "    time.sleep(60)\n",
    )
    assert launch.main(["--restarts", "2", path]) == 0
    assert [(tmp_path / f"starts{i}").read_text() for i in (0, 1)] == ["xx"] * 2
    assert capfd.readouterr().err.splitlines() == [
        "cbnn_keras.launch: process 1 of 2 was ended by SIGKILL; all were "
        "ended, and are started again."
    ]


def test_it_gives_up(tmp_path, capfd):
    path = script(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)\n")
    assert launch.main(["--restarts", "1", path]) == 128 + 9
    lines = capfd.readouterr().err.splitlines()
    assert [line.endswith("started again.") for line in lines] == [True, False]


def test_an_error_of_the_script_is_not_repeated(tmp_path, capfd):
    path = script(tmp_path, "number or sys.exit('no data')\ntime.sleep(60)\n")
    assert launch.main([path]) == 1
    assert "process 0 of 2 ended with exit code 1" in capfd.readouterr().err


def test_wrong_arguments_are_not_repeated(tmp_path, capfd):
    assert launch.main([str(tmp_path / "missing.py")]) == 2
    assert capfd.readouterr().err.count("cbnn_keras.launch") == 1


@pytest.mark.large
def test_the_one_that_was_killed_counts_and_not_what_others_say_of_it(
    tmp_path, capfd, monkeypatch
):
    # Both have ended when the supervisor looks.
    monkeypatch.setattr(launch, "_LOOK_EVERY", 2.0)
    path = script(
        tmp_path,
        "time.sleep(0.5)\n"
        "number and os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.exit('lost the connection')\n",
    )
    assert launch.main(["--restarts", "1", path]) == 128 + 9
    lines = capfd.readouterr().err.splitlines()
    assert sum("process 1 of 2 was ended by SIGKILL" in x for x in lines) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nobody_is_left_when_it_is_ended(tmp_path, number):
    path = script(
        tmp_path,
        "(here / f'pid{number}').write_text(str(os.getpid()))\n"
        "time.sleep(100)\n",
    )
    launcher = subprocess.Popen(
        [sys.executable, "-m", "cbnn_keras.launch", path],
        stderr=subprocess.PIPE,
        # What a shell runs in the background ignores it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    files = [tmp_path / "pid0", tmp_path / "pid1"]
    while not all(file.exists() and file.read_text() for file in files):
        assert launcher.poll() is None
        time.sleep(0.05)
    launcher.send_signal(number)
    assert launcher.communicate(timeout=60)[1] == b""
    assert launcher.returncode == 128 + number
    for file in files:
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)


@pytest.mark.parametrize("wrong", [["--processes", "0"], ["--restarts", "-1"]])
def test_numbers_that_make_no_sense(wrong, capsys):
    with pytest.raises(SystemExit):
        launch.main([*wrong, "script.py"])
    assert "--processes is at least 1" in capsys.readouterr().err


def test_joining_needs_jax():
    with pytest.raises(ValueError, match="JAX backend.*'tensorflow'"):
        launch.join()


def test_the_jobset_is_one():
    manifest = yaml.safe_load((HOSTS / "jobset.yaml").read_text())
    assert manifest["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    assert manifest["kind"] == "JobSet"
    assert manifest.keys() == JOBSET
    spec = manifest["spec"]
    assert spec.keys() <= SPEC
    assert isinstance(spec["failurePolicy"]["maxRestarts"], int)
    assert spec["failurePolicy"].keys() <= {
        "maxRestarts",
        "restartStrategy",
        "rules",
    }
    assert spec["network"] == {"enableDNSHostnames": True}
    [replicated] = spec["replicatedJobs"]
    assert replicated.keys() == {"name", "replicas", "template"}
    job = replicated["template"]["spec"]
    assert job.keys() <= JOB
    assert job["completionMode"] == "Indexed"
    # One that fails has the JobSet start all of them again.
    assert job["backoffLimit"] == 0
    pod = job["template"]["spec"]
    assert pod.keys() <= POD and pod["restartPolicy"] == "Never"
    [container] = pod["containers"]
    assert container.keys() <= CONTAINER
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_the_jobset_says_what_join_reads():
    manifest = yaml.safe_load((HOSTS / "jobset.yaml").read_text())
    [replicated] = manifest["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    [container] = job["template"]["spec"]["containers"]
    values = {entry["name"]: entry for entry in container["env"]}
    assert values.keys() == {
        "KERAS_BACKEND",
        "JAX_COORDINATOR_ADDRESS",
        "JAX_NUM_PROCESSES",
        "JAX_PROCESS_ID",
    }
    count = int(values["JAX_NUM_PROCESSES"]["value"])
    assert job["parallelism"] == job["completions"] == count
    # <jobset>-<replicated job>-<job>-<pod>.<subdomain, that of the jobset>
    name = manifest["metadata"]["name"]
    host = f"{name}-{replicated['name']}-0-0.{name}"
    assert re.fullmatch(
        rf"{host}:\d+", values["JAX_COORDINATOR_ADDRESS"]["value"]
    )
    path = values["JAX_PROCESS_ID"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert "batch.kubernetes.io/job-completion-index" in path


def hooked(tmp_path, message):
    """A process that has joined others, with an error that nobody catches."""
    path = script(
        tmp_path,
        "import functools, tempfile\n"
        "from cbnn_keras import launch\n"
        "sys.excepthook = functools.partial(launch._end_clearly,"
        " sys.excepthook)\n"
        "kept = tempfile.TemporaryDirectory(dir=here)\n"
        f"raise ValueError({message!r})\n",
    )
    environment = {"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "3"}
    return subprocess.run(
        [sys.executable, path],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_who_is_left_says_so_in_one_line(tmp_path):
    done = hooked(tmp_path, "UNKNOWN: Gloo AllGather failed:\n closed by peer")
    assert done.returncode == 75
    assert done.stderr == (
        "cbnn_keras.launch: process 1 of 3 ends, because another one has died "
        "or cannot be reached. Start all of them again; with `resume=True` the "
        "run is resumed. (UNKNOWN: Gloo AllGather failed: closed by peer)\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_other_errors_are_shown_as_ever(tmp_path):
    done = hooked(tmp_path, "no such data")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("ValueError: no such data\n")
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]
