"""`fedbandit privacy` against dp_accounting, Google's library of privacy accountants.

    python3 -m venv venv && venv/bin/pip install dp-accounting
    cargo build --release
    venv/bin/python host/tests/peers/privacy.py target/release/fedbandit

For a grid of budgets and episodes, the noise that the command prints is handed to two accountants. A message is in `levels`
nodes with Gaussian noise of node_sigma/sensitivity each, so what it costs is that many Gaussian events composed; blt has its
own factor instead of a number of levels, which is computed here.

- RDP: its best order must give back mu, within the step of its orders; that checks the conversion from zCDP.
- PLD: the exact loss must be below mu, but not by more than 15 %: what is claimed is true and not wasteful.

Prints the extremes; exits with 1 if one is beyond its limit.
"""

import itertools
import json
import math
import subprocess
import sys

import numpy as np
from dp_accounting import dp_event, pld, rdp

MU = [0.5, 1, 2, 4, 8]
NU = [1e-10, 1e-8, 1e-6, 1e-5, 1e-3]
EPISODES = [2, 3, 8, 32, 33, 256, 1024, 4096]
MECHANISMS = ["tree", "honaker", "blt"]
LIMITS = {"rdp": (1 - 1e-6, 1 + 1e-5), "pld": (0.85, 1 + 1e-6), "sigma": (1 - 1e-9, 1 + 1e-8)}

# Of the BLT that is tuned for so many episodes.
THETA = {256: ([.996641, .947413, .622773], [.983615, .850955, .238888]),
         1024: ([.998973, .978560, .743283], [.994450, .922609, .327381]),
         4096: ([.999682, .991003, .826365], [.998067, .959243, .411712])}
# Fine, since a best order may be as low as 1.2 or as high as 1,000.
ORDERS = 1 + np.geomspace(0.01, 1e4, 6000)


def fedbandit(binary, **options):
    arguments = [text for name, value in options.items() for text in ("--" + name.replace("_", "-"), str(value))]
    command = [binary, "privacy", "--episode-len", "64", "--dim", "10", "--json", *arguments]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def blt_norm_squared(episodes):
    """The sum of c_i² over the released episodes, term by term."""
    theta, other = map(np.array, THETA[min(k for k in THETA if k >= episodes)])
    omega = [np.prod(t - other) / np.prod([t - s for s in theta if s != t]) for t in theta]
    c = [1.0] + [float(np.dot(omega, theta ** (i - 1))) for i in range(1, episodes - 1)]
    return math.fsum(x * x for x in c)


def epsilon(accountant, multiplier, count, nu):
    accountant.compose(dp_event.GaussianDpEvent(multiplier), count)
    return accountant.get_epsilon(nu)


def checks(binary):
    for mu, nu, episodes, mechanism in itertools.product(MU, NU, EPISODES, MECHANISMS):
        report = fedbandit(binary, mu=mu, nu=nu, episodes=episodes, mechanism=mechanism)
        multiplier, levels = report["node_sigma"] / report["sensitivity"], report["levels"]
        squared = levels or blt_norm_squared(episodes)
        yield "sigma", multiplier / math.sqrt(squared / (2 * report["rho"]))
        if levels is None:
            multiplier, levels = multiplier / math.sqrt(squared), 1
        yield "rdp", epsilon(rdp.RdpAccountant(ORDERS), multiplier, levels, nu) / mu
        # All mechanisms composed to one Gaussian now, and the slow accountant need not see them all.
        if episodes in (2, 33):
            yield "pld", epsilon(pld.PLDAccountant(value_discretization_interval=1e-4), multiplier, levels, nu) / mu


def main(binary):
    seen = {}
    for name, ratio in checks(binary):
        low, high, count = seen.get(name, (math.inf, -math.inf, 0))
        seen[name] = min(low, ratio), max(high, ratio), count + 1
    failed = False
    for name, (low, high, count) in seen.items():
        least, most = LIMITS[name]
        good = least <= low and high <= most
        failed |= not good
        print(f"{name:6} {count:4} ratios from {low:.9f} to {high:.9f}  {'ok' if good else 'BEYOND ITS LIMIT'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
