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
import socket
import struct
import sys
import time
import zlib

HELLO, HEARTBEAT, SUMMARY, MODEL, ACK, NACK = 0x01, 0x02, 0x03, 0x81, 0x82, 0x83
PLAIN, SEALED = 0x01, 0x81  # version bytes
HEADER = struct.Struct("<BBBBIII")  # version, type, flags, dimension, run, agent, episode
WINDOW = 4  # maximum number of unacknowledged summaries
PATIENCE = 90  # seconds to wait for a new model before continuing with the last good one

# --- identity -------------------------------------------------------------------------------------------------------


class Identity:
    """Identity of a device: the 52 bytes of its provisioning blob."""

    def __init__(self, blob):
        if len(blob) != 52 or zlib.crc32(blob[:48]) != int.from_bytes(blob[48:], "little"):
            raise ValueError("invalid identity: wrong length or checksum")
        magic, version, self.dimension, mode, zero, self.run, self.agent, self.key = struct.unpack("<4sBBBBII32s", blob[:48])
        if (magic, version, zero) != (b"FBID", 1, 0) or mode > 1 or self.dimension == 0:
            raise ValueError("invalid identity: unsupported version")
        self.sealed = mode == 1

    def direction_keys(self):
        """Derives the keys that seal frames of the device, and of the controller."""
        block = chacha20_block(self.key, 0, struct.pack("<II4s", self.run, self.agent, b"keys"))
        return block[:32], block[32:]


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


class Link:
    """One end of a link: encodes frames, and decodes those of the other end. `boot` is the boot counter."""

    def __init__(self, identity, boot, controller=False):
        self.identity, self.boot, self.counter = identity, boot, 0
        self.own_key, self.other_key = identity.direction_keys()
        if controller:
            self.own_key, self.other_key = self.other_key, self.own_key

    def encode(self, kind, episode, payload=b"", flags=0):
        me = self.identity
        version = SEALED if me.sealed else PLAIN
        header = HEADER.pack(version, kind, flags, me.dimension, me.run, me.agent, episode)
        if not me.sealed:
            return header + payload + hmac.digest(me.key, header + payload, hashlib.sha256)[:16]
        nonce = struct.pack("<IQ", self.boot, self.counter)
        self.counter += 1  # a nonce is used once
        data = chacha20(self.own_key, nonce, payload)
        return header + nonce + data + poly1305_tag(self.own_key, nonce, header, data)

    def decode(self, frame):
        """Returns type, flags, dimension, episode and payload. Raises ValueError if the frame must be dropped."""
        me, start = self.identity, 28 if self.identity.sealed else 16
        if len(frame) < start + 16:
            raise ValueError("too short")
        header, data, tag = frame[:16], frame[start:-16], frame[-16:]
        version, kind, flags, dimension, run, agent, episode = HEADER.unpack(header)
        if version != (SEALED if me.sealed else PLAIN):
            raise ValueError("wrong version or mode")
        if (run, agent) != (me.run, me.agent):
            raise ValueError("wrong address")
        if me.sealed:
            expected = poly1305_tag(self.other_key, frame[16:28], header, data)
        else:
            expected = hmac.digest(me.key, header + data, hashlib.sha256)[:16]
        if not hmac.compare_digest(tag, expected):
            raise ValueError("wrong tag")
        if me.sealed:
            data = chacha20(self.other_key, frame[16:28], data)
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
        self.dimension, self.episode, self.factor, self.last_model = dimension, 1, None, 0
        self.clear()

    def clear(self):
        self.steps, self.reward = 0, 0.0
        self.gram = [[0.0] * self.dimension for _ in range(self.dimension)]
        self.feature_sum = [0.0] * self.dimension

    def begin(self, episode, flags, payload):
        """Adopts a model. Raises ValueError and keeps the last good one if it is invalid."""
        d = self.dimension
        if len(payload) != 8 + 4 * (d + d * (d + 1) // 2):
            raise ValueError("model has a wrong length")
        length, beta, *values = struct.unpack(f"<If{d}f{d * (d + 1) // 2}f", payload)
        if episode < self.episode and episode <= self.last_model or self.steps > 0 or length == 0:
            raise ValueError("model of a wrong episode")
        if not all(map(math.isfinite, [beta, *values])) or beta < 0:
            raise ValueError("model is not finite")
        packed = iter(values[d:])
        design = [[0.0] * d for _ in range(d)]
        for i in range(d):
            for j in range(i, d):
                design[i][j] = design[j][i] = next(packed)
        factor = [[0.0] * d for _ in range(d)]  # Cholesky
        for i in range(d):
            for j in range(i + 1):
                rest = design[i][j] - sum(factor[i][k] * factor[j][k] for k in range(j))
                if i == j and rest <= 0:
                    raise ValueError("model is not positive definite")
                factor[i][j] = math.sqrt(rest) if i == j else rest / factor[j][j]
        self.episode, self.length, self.clip = episode, length, bool(flags & 1)
        self.last_model = episode
        self.theta, self.beta, self.factor = values[:d], beta, factor

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
    def __init__(self, identity, boot):
        self.identity, self.boot = identity, boot
        self.link, self.agent = Link(identity, boot), Agent(identity.dimension)
        self.outbox, self.settled, self.world_step = [], 0, 0
        self.wants_model, self.model_deadline = True, math.inf
        self.attempts, self.next = 0, 0.0

    def speak_in(self, seconds):
        self.attempts, self.next = 0, time.monotonic() + seconds

    def due_frame(self):
        """Returns the frame to send now, if any. Without an answer, the next one is due later and later."""
        now = time.monotonic()
        if now < self.next:
            return None
        wait = 30 if not self.outbox and not self.wants_model else 2**self.attempts
        self.attempts, self.next = min(self.attempts + 1, 6), now + wait * random.uniform(0.5, 1.0)
        if self.outbox:
            return self.outbox[0][1]  # a repeated frame has the same bytes
        if self.wants_model:
            return self.link.encode(HELLO, self.agent.episode, struct.pack("<I", self.boot))
        return self.link.encode(HEARTBEAT, self.agent.episode)

    def handle(self, frame):
        kind, flags, dimension, episode, payload = self.link.decode(frame)
        if kind == MODEL and dimension == self.identity.dimension:
            self.agent.begin(episode, flags, payload)
            self.wants_model = False
        elif kind in (ACK, NACK) and not payload and any(waiting == episode for waiting, _ in self.outbox):
            self.outbox = [entry for entry in self.outbox if entry[0] != episode]
            self.settled += 1
        else:
            return
        self.speak_in(0 if self.outbox else 1)

    def step(self):
        """Takes one step of the episode. After the last one, queues the summary."""
        actions = decision_set(self.identity.dimension, self.world_step)
        self.world_step += 1
        x = max(actions, key=self.agent.score)
        self.agent.record(x, world_reward(x))
        if self.agent.steps == self.agent.length:
            print(f"episode {self.agent.episode}: mean reward {self.agent.reward / self.agent.steps:.4f}", flush=True)
            episode, payload = self.agent.finish()
            if all(waiting != episode for waiting, _ in self.outbox):  # an episode has one summary
                self.outbox = (self.outbox + [(episode, self.link.encode(SUMMARY, episode, payload))])[-WINDOW:]
            self.wants_model, self.model_deadline = True, time.monotonic() + PATIENCE
            self.speak_in(0)

    def talk(self, stream, episodes):
        """Uses one connection, until it is lost or all summaries are answered."""
        stream.sendall(b"\0")
        received = bytearray()
        longest = 28 + 8 + 4 * (self.identity.dimension * (self.identity.dimension + 3) // 2) + 16
        while self.settled < episodes:
            frame = self.due_frame()
            if frame:
                stream.sendall(cobs_encode(frame))
            busy = not self.wants_model or (self.agent.factor and time.monotonic() >= self.model_deadline)
            if busy and len(self.outbox) + self.settled < episodes:
                self.step()
                continue
            stream.settimeout(max(min(self.next, self.model_deadline) - time.monotonic(), 0.01))
            try:
                data = stream.recv(4096)
            except socket.timeout:
                continue
            if not data:
                raise ConnectionError("closed by the controller")
            received += data
            while b"\0" in received:
                stuffed, _, rest = received.partition(b"\0")
                received = bytearray(rest)
                try:
                    if 0 < len(stuffed) <= longest + longest // 254 + 1:
                        self.handle(cobs_decode(stuffed))
                except ValueError as reason:
                    print(f"frame dropped: {reason}", flush=True)
            del received[: -2 * longest]  # too long for a frame; the rest is dropped at the next zero

    def run(self, host, port, episodes):
        failures = 0
        while self.settled < episodes:
            try:
                with socket.create_connection((host, port), timeout=10) as stream:
                    failures = 0
                    self.speak_in(0)
                    self.talk(stream, episodes)
            except OSError as reason:
                print(f"not connected: {reason}", flush=True)
                time.sleep(min(2**failures, 64) * random.uniform(0.5, 1.0))
                failures += 1


def main():
    parser = argparse.ArgumentParser(description="A fedbandit device in Python.")
    parser.add_argument("--connect", required=True, metavar="HOST:PORT")
    parser.add_argument("--identity", required=True, metavar="FILE", help="provisioning blob; FILE.boot is the boot counter")
    parser.add_argument("--episodes", type=int, required=True, metavar="N", help="number of summaries to deliver")
    arguments = parser.parse_args()
    identity = Identity(open(arguments.identity, "rb").read())
    boot = count_start(arguments.identity + ".boot")
    print(f"agent {identity.agent} of run {identity.run}, start {boot}, {'sealed' if identity.sealed else 'plain'}", flush=True)
    host, _, port = arguments.connect.rpartition(":")
    Device(identity, boot).run(host, int(port), arguments.episodes)


if __name__ == "__main__":
    sys.exit(main())
