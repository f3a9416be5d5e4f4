"""What grows with the number of samples: an update, an order, an exchange.

    python benchmarks/growth.py [--sizes 5 6 7 8] [--turns 3]
    python benchmarks/growth.py --sizes --hosts 8 1000

For n = 10^5 to 10^8, each measurement in a process of its own and in turns:

- an update of the sample weights, from the bits of a round to the variable that
  batches look weights up in, with a float64 per sample and by patterns: seconds
  of the processor a round, bytes a sample at the peak (the bits of the round
  included; beyond what two million samples take), and how far the
  votes are apart (targets for patterns at 10^8: 3 s, 3 bytes, 1e-12);
- the order of a pass, with all indices in memory and by a formula.

Then a pass through a pipeline that looks weights up either way, in one process.

Then the exchange of 8 to 1,000 hosts for 10^9 samples is simulated: one host
counts its share in fact, the counts of the others are drawn, all are added and
the round is computed. Beside it stands what is to be sent, on paper.

Needs 4.5 GB for 10^8 samples, which are measured once, not in turns.
"""

import argparse
import itertools
import json
import pathlib
import re
import statistics
import subprocess
import sys
import time
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from common import alternate, ratio, versions
from rich.console import Console
from rich.progress import track
from rich.table import Table

from cbnn_keras import patterns, weighted
from cbnn_keras.boosting import Integers
from cbnn_keras.boosting_policies import Boosting
from cbnn_keras.data import order
from cbnn_keras.data.weight_table import weight_table
from cbnn_keras.runs.run import unpack_bits

NUM_CLASSES = 100
ERRORS = (0.5, 0.3, 0.2, 0.1, 0.08, 0.05)  # of the rounds
SUBJECTS = ("float64", "patterns", "indices", "formula")
# Whose memory is not counted: it is mostly that of the pieces of an update.
WARM_UP = 2 * 10**6
# From how many samples on there are patterns, or a formula.
NEVER, ALWAYS = 2**62, 0


class Growth(NamedTuple):
    """What a process of its own has measured."""

    seconds: float  # of the processor
    bytes: float  # a sample, at the peak
    votes: list[float]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sizes", type=int, nargs="*", default=[5, 6, 7, 8])
    parser.add_argument("--turns", type=int, default=3)
    hosts = [8, 32, 100, 1000]
    parser.add_argument("--hosts", type=int, nargs="*", default=hosts)
    parser.add_argument("--samples", type=int, default=10**9)
    parser.add_argument("--measure", choices=SUBJECTS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(options.measure, 10 ** options.sizes[0])))
        return
    console = Console(width=130)
    console.print(f"{versions()}, NumPy {np.__version__}")
    if options.sizes:
        console.print(*compare_sizes(options.sizes, options.turns), sep="\n")
        console.print(compare_lookups(options.turns))
    if options.hosts:
        console.print(exchange_table(options.hosts, options.samples))


# Sizes.


def compare_sizes(sizes: list[int], turns: int) -> list[Table]:
    """An update and an order, each by two ways."""
    jobs = [
        (size, subject)
        for size in sizes
        for _ in range(turns if size < 8 else 1)
        for subject in SUBJECTS
    ]
    found: dict[tuple[int, str], list[Growth]] = {job: [] for job in jobs}
    for job in track(jobs, "processes"):
        found[job].append(in_own_process(*job))
    updates = Table(title="an update: processor seconds, bytes a sample")
    orders = Table(title="the order of a pass: the same")
    tables = (updates, SUBJECTS[:2]), (orders, SUBJECTS[2:])
    for table, (before, after) in tables:
        names = [f"{name}, {unit}" for name in (before, after) for unit in "sB"]
        for column in ("n", *names, f"{after} / {before}", "votes apart"):
            table.add_column(column)
        for size in sizes:
            old, new = found[size, before], found[size, after]
            numbers = [
                statistics.median(getattr(growth, unit) for growth in kind)
                if unit == "seconds" or 10**size > WARM_UP
                else np.nan
                for kind in (old, new)
                for unit in ("seconds", "bytes")
            ]
            apart = np.abs(np.subtract(old[0].votes, new[0].votes))
            table.add_row(
                f"10^{size}",
                *("" if np.isnan(x) else f"{x:.3g}" for x in numbers),
                ratio([x.seconds for x in new], [x.seconds for x in old]),
                f"{apart.max():.1e}" if apart.size else "",
            )
    return [updates, orders]


def in_own_process(size: int, subject: str) -> Growth:
    command = [sys.executable, __file__, "--sizes", str(size)]
    result = subprocess.run(
        [*command, "--measure", subject],
        check=True,
        capture_output=True,
        text=True,
    )
    return Growth(*json.loads(result.stdout.splitlines()[-1]))


def measured(subject: str, num_samples: int) -> Growth:
    patterns.LARGE = ALWAYS if subject == "patterns" else NEVER
    order.LARGE = ALWAYS if subject == "formula" else NEVER
    # What is allocated once, whatever the number of samples.
    if subject in SUBJECTS[:2]:
        update(WARM_UP)
    else:
        one_pass(WARM_UP)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    before = memory("VmRSS")
    if subject in SUBJECTS[:2]:
        seconds, votes = update(num_samples)
    else:
        seconds, votes = one_pass(num_samples), []
    return Growth(seconds, (memory("VmHWM") - before) / num_samples, votes)


def memory(name: str) -> int:
    """Bytes of this process."""
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.findall(rf"{name}:\s*(\d+) kB", status)[0])


def update(num_samples: int) -> tuple[float, list[float]]:
    """Seconds of a round, the slowest of them, and the votes of all."""
    first = patterns.uniform(num_samples)
    booster = patterns.begin_boosting(first, NUM_CLASSES, Boosting())
    table: Any = weight_table(first)
    generator, seconds = np.random.default_rng(0), []
    for error in ERRORS:
        bits = random_bits(generator, num_samples, error)
        start = time.process_time()
        if isinstance(booster, patterns.PatternBooster):
            booster.add(bits)
        else:
            booster.add(unpack_bits(bits, num_samples))
        table.assign(booster.weights)
        seconds.append(time.process_time() - start)
    return max(seconds), booster.votes


def random_bits(
    generator: np.random.Generator, num_samples: int, error: float
) -> np.ndarray:
    """Which samples are right, a bit each, made in pieces."""
    bits = np.empty(-(-num_samples // 8), np.uint8)
    for i in range(0, num_samples, 2**16):
        size = min(2**16, num_samples - i)
        part = generator.random(size, np.float32) > error
        bits[i // 8 : -(-(i + size) // 8)] = np.packbits(part)
    return bits


def one_pass(num_samples: int) -> float:
    """Seconds of all indices of a pass."""
    key = tf.constant([1, 2], tf.int64)
    blocks = order.index_blocks(num_samples, True, lambda: key)
    start = time.process_time()
    for _ in blocks:
        pass
    return time.process_time() - start


# Lookups.


def compare_lookups(turns: int) -> str:
    """Batches of 16 numbers a sample: the worst case for a lookup."""
    num_batches = 4000
    data = np.zeros((10**6, 16), "f4"), np.zeros(10**6, int)
    ways = {}
    for name, large in (("float32", NEVER), ("patterns", ALWAYS)):
        patterns.LARGE = large
        ways[name] = weighted(*data, batch_size=128, seed=0)

    def consume(name: str) -> None:
        for _ in itertools.islice(ways[name], num_batches):
            pass

    seconds = alternate(
        {
            "float32": lambda: consume("float32"),
            "patterns": lambda: consume("patterns"),
        },
        turns,
        time.process_time,
    )
    micro = {k: 1e6 * min(v) / num_batches for k, v in seconds.items()}
    return (
        "a batch of 128, weights by patterns / float32 per sample: "
        f"{ratio(seconds['patterns'], seconds['float32'])}; at best "
        f"{micro['patterns']:.0f} and {micro['float32']:.0f} us"
    )


# Hosts.


class Hosts:
    """The hosts of one run; all but the first have counts and no samples.

    Args:
        num_hosts: How many.
        num_samples: Of all together.
    """

    def __init__(self, num_hosts: int, num_samples: int) -> None:
        self._generator = np.random.default_rng(num_hosts)
        shares = np.full(num_hosts, num_samples // num_hosts)
        shares[: num_samples % num_hosts] += 1
        self._counts = shares[:, None]  # of each host and pattern
        self.error = 0.0
        self.seconds = 0.0
        first = patterns.GroupedWeights(
            np.zeros(shares[0], np.uint8), np.array([1 / num_samples])
        )
        self._booster = patterns.PatternBooster(
            first, NUM_CLASSES, Boosting(), self._exchange
        )

    def round(self, error: float) -> float:
        """Seconds of a round on the first host."""
        self.error = error
        size = int(self._counts[0].sum())
        correct = random_bits(self._generator, size, error)
        # What the others do is drawn outside of what is measured.
        right = self._generator.binomial(self._counts, 1 - error)
        self._drawn = np.stack([self._counts - right, right], axis=-1)
        start = time.process_time()
        self._booster.add(correct)
        return time.process_time() - start

    def _exchange(self, own: Integers) -> Integers:
        self._drawn[0] = own
        start = time.process_time()
        total = self._drawn.sum(axis=0)
        self.seconds = time.process_time() - start
        occurs = total.ravel() > 0
        self.num_bytes = own.nbytes
        self._counts = self._drawn.reshape(len(self._drawn), -1)[:, occurs]
        return total


def exchange_table(hosts: list[int], num_samples: int) -> Table:
    """The last update of a run, for several numbers of hosts."""
    table = Table(title=f"{num_samples:,} samples, {len(ERRORS)} rounds")
    for column in (
        "hosts",
        "samples a host",
        "counts a host sends, bytes",
        "bits a host sends, MB",
        "a round on a host, s",
        "of it adding all counts, ms",
        "memory a host by patterns, on paper, MB",
        "with float64, on paper, MB",
    ):
        table.add_column(column)
    for num_hosts in track(hosts, "hosts"):
        every = Hosts(num_hosts, num_samples)
        seconds = max([every.round(error) for error in ERRORS])
        own = -(-num_samples // num_hosts)
        table.add_row(
            f"{num_hosts:,}",
            f"{own:,}",
            f"{every.num_bytes:,}",
            f"{own / 8 / 1e6:.3g}",
            f"{seconds:.3g}",
            f"{1e3 * every.seconds:.2g}",
            f"{3 * own / 1e6:,.0f}",
            # Every host has the bits and omega of all, 42 bytes at the peak.
            f"{42 * num_samples / 1e6:,.0f}",
        )
    return table


if __name__ == "__main__":
    main()
