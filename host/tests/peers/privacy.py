"""Compare `fedbandit privacy` with dp_accounting, Google's library of privacy accountants.

    python3 -m venv venv && venv/bin/pip install dp-accounting
    cargo build --release
    venv/bin/python host/tests/peers/privacy.py target/release/fedbandit

For a grid of budgets and episodes, two accountants compute the privacy loss of the noise that the command prints. A message
is part of `levels` nodes, each with a noise multiplier of node_sigma/sensitivity, so its loss is the composition of that many
Gaussian events. For blt, a factor computed here takes the place of the number of levels.

- RDP: the best order must reproduce mu, up to the spacing of the orders. This checks the conversion from zCDP.
- PLD: the exact loss must be below mu, but by no more than 15 %, so that the guarantee holds without excessive noise.

Prints the extreme ratios; exits with status 1 if one is outside its limits.
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

# Parameters theta and theta_hat of the BLT, by the number of episodes it is tuned for.
THETA = {256: ([.996641, .947413, .622773], [.983615, .850955, .238888]),
         1024: ([.998973, .978560, .743283], [.994450, .922609, .327381]),
         4096: ([.999682, .991003, .826365], [.998067, .959243, .411712])}
# A fine grid, since the best order may be as low as 1.2 or as high as 1,000.
ORDERS = 1 + np.geomspace(0.01, 1e4, 6000)


def fedbandit(binary, **options):
    arguments = [text for name, value in options.items() for text in ("--" + name.replace("_", "-"), str(value))]
    command = [binary, "privacy", "--episode-len", "64", "--dim", "10", "--json", *arguments]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def blt_norm_squared(episodes):
    """Return the sum of c_i² over the released episodes, term by term."""
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
        # Every mechanism is equivalent to a single Gaussian here, so the slow accountant needs only a few cases.
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
        print(f"{name:6} {count:4} ratios from {low:.9f} to {high:.9f}  {'ok' if good else 'OUT OF RANGE'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
