#!/usr/bin/env python3
"""A complete device in Python, written from docs/wire.md with the standard library alone.

It joins a controller over TCP, learns with the fleet, sends each summary until it is acknowledged, and reconnects when the link
is lost. It is meant to be read: as the protocol in another language, and as a starting point for other devices.
"""
import argparse
import hashlib
import hmac
import math
import os
import random
import secrets
import select
import socket
import struct
import sys
import time
import zlib

HELLO, HEARTBEAT, SUMMARY = 0x01, 0x02, 0x03
MODEL, ACK, WAIT, NEXT_RUN = 0x81, 0x82, 0x83, 0x84
PLAIN, SEALED = 0x02, 0x82  # version bytes
HEADER = struct.Struct("<BBBBIIII")  # version, type, flags, dimension, fleet, agent, run, episode
DEVICE, CONTROLLER = 1, 2  # directions of run keys
OUTBOX = 4  # largest number of unacknowledged summaries
PATIENCE = 90  # seconds to wait for a new model before continuing with the last valid one
HEARTBEAT_INTERVAL = 30  # seconds without any other frame
LONGEST_WAIT = 86_400_000  # milliseconds
LONGEST_EPISODE = 65_536
VALUE_LIMIT = 2.0**60
FATES = {
    1: "its episode is not open",
    2: "it has the wrong dimension",
    3: "it belongs to another run",
    4: "a value is not finite",
    5: "a norm or the trace is too large",
    6: "U is not positive semidefinite",
    7: "u is inconsistent with U",
    8: "this device is excluded",
}

# --- identity -------------------------------------------------------------------------------------------------------


class Identity:
    """Identity of a device: the 60 bytes of its provisioning blob."""

    def __init__(self, blob):
        if len(blob) != 60 or zlib.crc32(blob[:56]) != int.from_bytes(blob[56:], "little"):
            raise ValueError("invalid identity: wrong length or checksum")
        magic, version, self.dimension, mode, flags, self.fleet, self.agent, self.noise, self.theta_norm, self.key = struct.unpack(
            "<4sBBBBIIff32s", blob[:56]
        )
        if (magic, version) != (b"FBID", 2) or mode > 1 or flags > 1 or self.dimension == 0:
            raise ValueError("invalid identity: unsupported version, mode, flag or dimension")
        if not all(0 < constant < math.inf for constant in (self.noise, self.theta_norm)):
            raise ValueError("invalid identity: R and S must be positive and finite")
        self.sealed = mode == 1
        self.may_guard = flags == 1  # permission only: this device has no guard

    def run_key(self, direction, run):
        """Derives the key of all frames of one direction in a run."""
        return hmac.digest(self.key, b"fedbandit v2" + struct.pack("<BBI", self.sealed, direction, run), hashlib.sha256)


def count_start(path):
    """Increments the boot counter, and stores it durably before it is used."""
    boot = int(open(path).read()) + 1 if os.path.exists(path) else 1
    with open(path + ".new", "w") as file:
        file.write(str(boot))
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)
    directory = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
    return boot


# --- ChaCha20-Poly1305, RFC 8439 ------------------------------------------------------------------------------------


def chacha20_block(key, counter, nonce):
    start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *struct.unpack("<8I", key), counter, *struct.unpack("<3I", nonce)]
    x = start[:]
    columns = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
    diagonals = [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
    for a, b, c, d in (columns + diagonals) * 10:
        for to, add, turned, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[to] = (x[to] + x[add]) & 0xFFFFFFFF
            mixed = x[turned] ^ x[to]
            x[turned] = (mixed << by | mixed >> (32 - by)) & 0xFFFFFFFF
    return struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(x, start)))


def chacha20(key, nonce, data):
    stream = b"".join(chacha20_block(key, 1 + i, nonce) for i in range((len(data) + 63) // 64))
    return bytes(a ^ b for a, b in zip(data, stream))


def poly1305_tag(key, nonce, header, data):
    one_time = chacha20_block(key, 0, nonce)
    r, s = int.from_bytes(one_time[:16], "little"), int.from_bytes(one_time[16:32], "little")
    r &= 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    padded = b"".join(part + bytes(-len(part) % 16) for part in (header, data)) + struct.pack("<QQ", len(header), len(data))
    total = 0
    for i in range(0, len(padded), 16):
        total = (total + int.from_bytes(padded[i : i + 16] + b"\1", "little")) * r % (2**130 - 5)
    return ((total + s) % 2**128).to_bytes(16, "little")


# --- frames ---------------------------------------------------------------------------------------------------------


def payload_length(kind, dimension):
    """Returns the length of a message's payload in bytes."""
    values = 8 + 4 * (dimension + dimension * (dimension + 1) // 2)
    lengths = {HELLO: 8, HEARTBEAT: 0, SUMMARY: values, MODEL: values, ACK: 8, WAIT: 8, NEXT_RUN: 8}
    if kind not in lengths:
        raise ValueError("unknown type")
    return lengths[kind]


class Link:
    """One end of a link: encodes frames, and decodes those of the other end. `boot` is the boot counter of this end. A controller
    has a run of its own, `service`."""

    def __init__(self, identity, boot, service=0):
        self.identity, self.boot, self.service, self.counter = identity, boot, service, 0
        self.directions = (CONTROLLER, DEVICE) if service else (DEVICE, CONTROLLER)
        self.enter_run(service)

    def enter_run(self, run):
        """Continues in a run, under its keys. The frame counter runs on."""
        self.run = run
        self.own_key, self.other_key = (self.identity.run_key(direction, run) for direction in self.directions)

    def encode(self, kind, episode, payload=b"", flags=0):
        me = self.identity
        version = SEALED if me.sealed else PLAIN
        header = HEADER.pack(version, kind, flags, me.dimension, me.fleet, me.agent, self.run, episode)
        if not me.sealed:
            return header + payload + hmac.digest(self.own_key, header + payload, hashlib.sha256)[:16]
        nonce = struct.pack("<III", self.boot, self.service, self.counter)
        self.counter += 1  # a nonce is used once
        data = chacha20(self.own_key, nonce, payload)
        return header + nonce + data + poly1305_tag(self.own_key, nonce, header, data)

    def decode(self, frame):
        """Returns type, flags, dimension, episode and payload. Raises ValueError if the frame must be dropped."""
        me, start = self.identity, 32 if self.identity.sealed else 20
        if len(frame) < 36:
            raise ValueError("too short")
        header, data, tag = frame[:20], frame[start:-16], frame[-16:]
        version, kind, flags, dimension, fleet, agent, run, episode = HEADER.unpack(header)
        if version != (SEALED if me.sealed else PLAIN):
            raise ValueError("wrong version or mode")
        if (fleet, agent) != (me.fleet, me.agent):
            raise ValueError("wrong address")
        if run != self.run:
            raise ValueError("wrong run")
        if me.sealed:
            if len(frame) < 48:
                raise ValueError("too short")
            expected = poly1305_tag(self.other_key, frame[20:32], header, data)
        else:
            expected = hmac.digest(self.other_key, header + data, hashlib.sha256)[:16]
        if not hmac.compare_digest(tag, expected):
            raise ValueError("wrong tag")
        if len(data) != payload_length(kind, dimension):
            raise ValueError("wrong length")
        if me.sealed:
            data = chacha20(self.other_key, frame[20:32], data)
        return kind, flags, dimension, episode, data


def cobs_encode(frame):
    out = bytearray()
    for run in frame.split(b"\0"):
        while len(run) >= 254:
            out += b"\xff" + run[:254]
            run = run[254:]
        out += bytes([len(run) + 1]) + run
    return bytes(out) + b"\0"


def cobs_decode(stuffed):
    out, at = bytearray(), 0
    while at < len(stuffed):
        code = stuffed[at]
        if at + code > len(stuffed):
            raise ValueError("truncated")
        out += stuffed[at + 1 : at + code]
        at += code
        if code < 255 and at < len(stuffed):
            out.append(0)
    return bytes(out)


# --- the bandit -----------------------------------------------------------------------------------------------------


class Agent:
    """LinUCB: the current model, and the sums of the running episode."""

    def __init__(self, dimension):
        self.dimension, self.factor = dimension, None
        self.restart()

    def restart(self):
        """Returns to episode 1 of a run, of which no model is known. The last model stays in use."""
        self.episode, self.last_model = 1, 0
        self.clear()

    def clear(self):
        self.steps, self.reward = 0, 0.0
        self.gram = [[0.0] * self.dimension for _ in range(self.dimension)]
        self.feature_sum = [0.0] * self.dimension

    def begin(self, episode, flags, dimension, payload):
        """Applies a model. Raises ValueError and keeps the last valid one if it must be rejected."""
        d, clip = self.dimension, bool(flags & 1)
        if dimension != d:
            raise ValueError("model has another dimension")
        length, beta, *values = struct.unpack(f"<If{d}f{d * (d + 1) // 2}f", payload)
        if not 1 <= length <= LONGEST_EPISODE:
            raise ValueError("model has an invalid episode length")
        ran_ahead = episode > self.last_model and self.steps == 0
        if episode < self.episode and not ran_ahead:
            raise ValueError("model is of an earlier episode")
        if self.steps > 0 and (episode, length, clip) != (self.episode, self.length, self.clip):
            raise ValueError("model would interrupt an episode")
        if not all(abs(value) <= VALUE_LIMIT for value in (beta, *values)) or beta < 0:
            raise ValueError("model has a value out of range")
        packed = iter(values[d:])
        design = [[0.0] * d for _ in range(d)]
        for i in range(d):
            for j in range(i, d):
                design[i][j] = design[j][i] = next(packed)
        factor = [[0.0] * d for _ in range(d)]  # Cholesky
        for i in range(d):
            for j in range(i + 1):
                rest = design[i][j] - sum(factor[i][k] * factor[j][k] for k in range(j))
                if i == j and not rest > max(design[i][i] * 2.0**-23, 2.0**-60):
                    raise ValueError("model is not positive definite")
                factor[i][j] = math.sqrt(rest) if i == j else rest / factor[j][j]
        self.episode = self.last_model = episode
        self.length, self.clip, self.theta, self.beta, self.factor = length, clip, values[:d], beta, factor

    def score(self, x):
        """Returns ⟨x,θ⟩ + β‖x‖_{Λ⁻¹}. With Λ = CCᵀ, the norm is ‖y‖ for Cy = x."""
        y = []
        for row, x_i in zip(self.factor, x):
            y.append((x_i - sum(c * y_k for c, y_k in zip(row, y))) / row[len(y)])
        return sum(a * b for a, b in zip(x, self.theta)) + self.beta * math.sqrt(sum(a * a for a in y))

    def record(self, x, reward):
        reward = min(max(reward, -1.0), 1.0) if self.clip else reward
        for i, x_i in enumerate(x):
            self.feature_sum[i] += x_i * reward
            for j, x_j in enumerate(x):
                self.gram[i][j] += x_i * x_j
        self.steps += 1
        self.reward += reward

    def finish(self):
        """Returns episode and payload of the summary. The next episode starts with the same model."""
        d, ended = self.dimension, self.episode
        packed = [self.gram[i][j] for i in range(d) for j in range(i, d)]
        payload = struct.pack(f"<If{len(packed) + d}f", self.steps, self.reward, *packed, *self.feature_sum)
        self.clear()
        self.episode += 1
        return ended, payload


def decision_set(dimension, step):
    """Returns the five actions of a step, with norms of at most 1."""
    return [[math.cos(2.4 * i + 0.7 * step + 1.9 * j) / math.sqrt(dimension) for j in range(dimension)] for i in range(5)]


def world_reward(x):
    return sum(x_j * (-0.5) ** j for j, x_j in enumerate(x))


# --- the device -----------------------------------------------------------------------------------------------------


class Device:
    def __init__(self, identity, boot, episodes):
        self.identity, self.boot, self.episodes = identity, boot, episodes
        self.link, self.agent = Link(identity, boot), Agent(identity.dimension)
        self.outbox, self.settled, self.world_step = [], 0, 0
        self.wants_model, self.model_deadline, self.challenge = True, math.inf, None
        self.attempts, self.next_send, self.next_heartbeat = 0, 0.0, 0.0
        self.heard = False  # a valid frame on this connection

    # What to send, and when

    def send_after(self, seconds):
        """Schedules the next summary or hello and resets the backoff."""
        self.attempts, self.next_send = 0, time.monotonic() + seconds

    def link_up(self):
        """A new connection: sends what is pending at once, else a heartbeat, so that the controller knows the connection."""
        self.heard, self.next_heartbeat = False, 0.0
        self.send_after(0)

    def next_frame_at(self):
        pending = self.outbox or self.wants_model
        return min(self.next_heartbeat, self.next_send if pending else math.inf)

    def due_frame(self):
        """Returns the frame to send now, if any: a summary, a hello or a heartbeat. A hello takes a heartbeat's place while the device
        waits for a model."""
        now = time.monotonic()
        if now < self.next_frame_at():
            return None
        self.next_heartbeat = now + HEARTBEAT_INTERVAL * random.uniform(0.5, 1)
        if now >= self.next_send and (self.outbox or self.wants_model):
            self.next_send = now + 2**self.attempts * random.uniform(0.5, 1)
            self.attempts = min(self.attempts + 1, 6)
            if self.outbox:
                return self.outbox[0][1]  # a repeated frame has the same bytes
        elif self.outbox or not self.wants_model:
            return self.link.encode(HEARTBEAT, self.agent.last_model)
        self.challenge = secrets.randbits(32)
        return self.link.encode(HELLO, self.agent.last_model, struct.pack("<II", self.boot, self.challenge))

    # What the controller says

    def handle(self, frame):
        """Handles a frame. Raises ValueError if it is dropped or its model is rejected."""
        kind, flags, dimension, episode, payload = self.link.decode(frame)
        self.heard = True
        if kind == MODEL:
            newer = episode > self.agent.last_model
            self.agent.begin(episode, flags, dimension, payload)
            self.wants_model, self.challenge = False, None
            if newer:
                self.send_after(0)
        elif kind == ACK:
            self.handle_ack(episode, *struct.unpack("<B3xI", payload))
        elif kind in (WAIT, NEXT_RUN):
            challenge, number = struct.unpack("<II", payload)
            if challenge != self.challenge:
                return  # recorded earlier, or answered before
            if kind == WAIT:
                self.challenge = None
                self.next_send = max(self.next_send, time.monotonic() + delay_after(number))
            elif number != 0:
                self.enter_run(number)

    def handle_ack(self, episode, fate, wait):
        if all(pending != episode for pending, _ in self.outbox):
            return
        self.outbox = [entry for entry in self.outbox if entry[0] != episode]
        self.settled += 1
        if fate != 0:
            reason = FATES.get(fate, "unknown reason")
            print(f"summary of episode {episode} does not count: {reason} (fate {fate})", flush=True)
        self.send_after(0 if self.outbox else delay_after(wait))

    def enter_run(self, run):
        """Starts in another run, or in the same one anew: pending summaries and open steps are lost. Backoff and patience run on."""
        print(f"run {run}", flush=True)
        self.link.enter_run(run)
        self.agent.restart()
        self.outbox, self.wants_model, self.challenge = [], True, None

    # What the device does

    def may_step(self):
        out_of_patience = self.agent.factor and time.monotonic() >= self.model_deadline
        return (not self.wants_model or out_of_patience) and len(self.outbox) + self.settled < self.episodes

    def step(self):
        """Takes one step of the episode. After the last one, queues the summary."""
        actions = decision_set(self.identity.dimension, self.world_step)
        self.world_step += 1
        x = max(actions, key=self.agent.score)
        self.agent.record(x, world_reward(x))
        if self.agent.steps == self.agent.length:
            print(f"episode {self.agent.episode}: mean reward {self.agent.reward / self.agent.steps:.4f}", flush=True)
            episode, payload = self.agent.finish()
            if all(pending != episode for pending, _ in self.outbox):  # an episode has one summary
                self.outbox = (self.outbox + [(episode, self.link.encode(SUMMARY, episode, payload))])[-OUTBOX:]
            self.wants_model, self.challenge, self.model_deadline = True, None, time.monotonic() + PATIENCE
            self.send_after(0)

    def run(self, host, port):
        """Runs until all summaries are settled. Episodes continue while the connection is down."""
        stream, failures, reconnect_at, received = None, 0, 0.0, bytearray()
        while self.settled < self.episodes:
            if self.may_step():
                self.step()
            try:
                if stream:
                    self.exchange(stream, received)
                elif time.monotonic() < reconnect_at:
                    time.sleep(0 if self.may_step() else 0.05)
                else:
                    stream = socket.create_connection((host, port), timeout=10)
                    stream.sendall(b"\0")
                    received.clear()
                    self.link_up()
            except OSError as reason:
                print(f"not connected: {reason}", flush=True)
                if stream:
                    stream.close()
                    failures = 0 if self.heard else failures
                reconnect_at = time.monotonic() + 2**failures * random.uniform(0.5, 1)
                stream, failures = None, min(failures + 1, 6)

    def exchange(self, stream, received):
        """Sends the frame that is due, waits for the next event, and handles what has arrived."""
        frame = self.due_frame()
        if frame:
            stream.sendall(cobs_encode(frame))
        pause = 0 if self.may_step() else min(max(self.next_frame_at() - time.monotonic(), 0), 1)
        if not select.select([stream], [], [], pause)[0]:
            return
        data = stream.recv(4096)
        if not data:
            raise ConnectionError("closed by the controller")
        received += data
        longest = 48 + payload_length(MODEL, self.identity.dimension)
        longest += longest // 254 + 1  # encoded
        while b"\0" in received:
            end = received.index(0)
            stuffed = bytes(received[:end])
            del received[: end + 1]
            try:
                if 0 < len(stuffed) <= longest:
                    self.handle(cobs_decode(stuffed))
            except ValueError as reason:
                print(f"frame dropped: {reason}", flush=True)
        del received[longest + 1 :]  # too long for a frame: dropped at the next zero byte


def delay_after(wait):
    """Returns the seconds until the next hello, after an answer that announces a deadline in `wait` milliseconds."""
    wait = min(wait, LONGEST_WAIT) / 1000
    return wait * (1 + 1 / 32) + random.uniform(0, wait / 32) + random.uniform(0.5, 1)


def main():
    parser = argparse.ArgumentParser(description="A fedbandit device in Python.")
    parser.add_argument("--connect", required=True, metavar="HOST:PORT")
    parser.add_argument("--identity", required=True, metavar="FILE", help="provisioning blob; FILE.boot is the boot counter")
    parser.add_argument("--episodes", type=int, required=True, metavar="N", help="number of summaries to deliver")
    arguments = parser.parse_args()
    identity = Identity(open(arguments.identity, "rb").read())
    boot = count_start(arguments.identity + ".boot")
    mode = "sealed" if identity.sealed else "plain"
    print(f"agent {identity.agent} of fleet {identity.fleet}, start {boot}, {mode}", flush=True)
    host, _, port = arguments.connect.rpartition(":")
    Device(identity, boot, arguments.episodes).run(host, int(port))


if __name__ == "__main__":
    sys.exit(main())
