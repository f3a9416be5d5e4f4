"""One run, several processes: the first has the directory, others a copy.

All processes do the same to their runs, so that the copies stay equal, and no
disk has to be shared. A copy is made when a run is resumed, and is gone with
its process.
"""

import io
import pathlib
import shutil
import zipfile

from cbnn_keras.runs.run_files import holds_run
from cbnn_keras.support.processes import Processes


def mirror(directory: pathlib.Path, processes: Processes) -> None:
    """Gives every process the run that the first one has in its directory.

    Args:
        directory: Of this process; of the others than the first it is
            replaced.
        processes: All of them call this.
    """
    if processes.count == 1:
        return
    content = processes.first_only(lambda: _packed(directory))
    if processes.is_first or not content:
        return
    shutil.rmtree(directory, ignore_errors=True)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        archive.extractall(directory)


def _packed(directory: pathlib.Path) -> bytes:
    if not holds_run(directory):
        return b""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(directory.rglob("*")):
            if path.is_file() and not path.is_symlink():
                archive.write(path, path.relative_to(directory))
    return buffer.getvalue()
