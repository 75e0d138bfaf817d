"""Compare `fedbandit aggregate` with byzfl, an independent implementation of the same rules.

    python3 -m venv venv && venv/bin/pip install byzfl==0.0.11 numpy
    cargo build --release
    venv/bin/python host/tests/peers/rules.py target/release/fedbandit

Prints the largest relative difference per rule; exits with status 1 if one exceeds its limit.

Two definitions differ and are reconciled here:
- Krum: byzfl sums over the n-f-1 nearest others, Blanchard et al. and fedbandit over n-f-2, so byzfl with f+1 equals
  fedbandit with f. byzfl's multi-Krum then averages one point less; the next best row is added to it.
- Geometric median: byzfl performs 3 Weiszfeld steps from 0 by default; here it runs to convergence.
"""

import json
import subprocess
import sys
import tempfile

import byzfl
import numpy as np

LIMITS = {"mean": 1e-13, "coordinate-median": 0.0, "trimmed-mean": 1e-13, "krum": 0.0, "multi-krum": 1e-12,
          "geometric-median": 1e-6, "geometric-median objective": 1e-9}


def fedbandit(binary, path, rule, *options):
    command = [binary, "aggregate", "--rule", rule, *options, path]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def next_best(x, f, rank):
    """Return the row of a given rank by the literal score."""
    distances = ((x[:, None, :] - x[None, :, :]) ** 2).sum(axis=2)
    scores = np.sort(distances, axis=1)[:, 1:len(x) - f - 1].sum(axis=1)
    return x[np.argsort(scores, kind="stable")[rank]]


def expected(x, f):
    n = len(x)
    best = byzfl.MultiKrum(f + 1)(x)
    return {
        "mean": byzfl.Average()(x),
        "coordinate-median": byzfl.Median()(x),
        "trimmed-mean": byzfl.TrMean(f)(x),
        "krum": byzfl.Krum(f + 1)(x),
        "multi-krum": (best * (n - f - 1) + next_best(x, f, n - f - 1)) / (n - f),
        "geometric-median": byzfl.GeometricMedian(nu=1e-12, T=5000)(x),
    }


def differences(binary, path, x, f):
    size = np.abs(x).max()
    for rule, theirs in expected(x, f).items():
        # Half a point more, so that the share rounds down to f.
        options = ["--corrupt", str((f + 0.5) / len(x))] if rule in ("trimmed-mean", "krum", "multi-krum") else []
        # The distance to the median is of the order of the root of the gap.
        options = ["--tolerance", "1e-14"] if rule == "geometric-median" else options
        ours = fedbandit(binary, path, rule, *options)
        yield rule, np.abs(np.array(ours["point"]) - theirs).max() / size
        if rule == "geometric-median":
            least = np.linalg.norm(x - theirs, axis=1).mean()
            yield "geometric-median objective", abs(ours["objective"] - least) / least


def inputs(seed):
    rng = np.random.default_rng(seed)
    n, p = int(rng.integers(5, 120)), int(rng.integers(2, 60))
    f = int(rng.integers(0, (n - 3) // 2 + 1))
    x = rng.standard_normal((n, p))
    if seed % 2:
        x[:f] += 10 * rng.standard_normal(p)
    return (np.asfortranarray(x) if seed % 3 == 0 else x), f


def main(binary, runs=200):
    worst = dict.fromkeys(LIMITS, 0.0)
    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        for seed in range(runs):
            x, f = inputs(seed)
            np.save(file.name, x)
            for rule, difference in differences(binary, file.name, np.ascontiguousarray(x), f):
                worst[rule] = max(worst[rule], difference)
    for rule, difference in worst.items():
        print(f"{rule:27} {difference:9.2e}  {'ok' if difference <= LIMITS[rule] else 'MISMATCH'}")
    print(f"{runs} random inputs against byzfl")
    return any(difference > LIMITS[rule] for rule, difference in worst.items())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
