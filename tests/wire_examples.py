#!/usr/bin/env python3
"""Generates the examples of docs/wire.md with the device in Python. Checks its cipher against RFC 8439 first."""
import struct
import zlib

from reference_device import (
    ACK, CONTROLLER, DEVICE, HEARTBEAT, HELLO, MODEL, NEXT_RUN, SUMMARY, WAIT, Identity, Link, chacha20, chacha20_block, poly1305_tag
)

# RFC 8439, 2.3.2 and 2.8.2
block = chacha20_block(bytes(range(32)), 1, bytes.fromhex("000000090000004a00000000"))
assert block.hex().startswith("10f1e7e4d13b5915500fdd1fa32071c4") and block.hex().endswith("b5129cd1de164eb9cbd083e8a2503c4e")
TEXT = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would be it."
KEY, NONCE, DATA = bytes(range(0x80, 0xA0)), bytes.fromhex("070000004041424344454647"), bytes.fromhex("50515253c0c1c2c3c4c5c6c7")
encrypted = chacha20(KEY, NONCE, TEXT)
assert encrypted.hex().startswith("d31a8d34648e60db7b86afbc53ef7ec2") and encrypted.hex().endswith("6116")
assert poly1305_tag(KEY, NONCE, DATA, encrypted).hex() == "1ae10b594f09e26a7e902ecbd0600691"

RUN = 7
FIRST, SECOND = 0x11223344, 0x55667788  # challenges
# Sender, run, name, type, flags, episode, payload
MESSAGES = [
    (DEVICE, 0, "hello in run 0, episode 0, boot 9, challenge 0x11223344", HELLO, 0, 0, struct.pack("<II", 9, FIRST)),
    (CONTROLLER, 0, "next run in run 0, challenge 0x11223344, run 7", NEXT_RUN, 0, 0, struct.pack("<II", FIRST, RUN)),
    (DEVICE, RUN, "hello, episode 5, boot 9, challenge 0x55667788", HELLO, 0, 5, struct.pack("<II", 9, SECOND)),
    (DEVICE, RUN, "heartbeat, episode 5", HEARTBEAT, 0, 5, b""),
    (DEVICE, RUN, "summary, episode 5, 3 steps, Σr = −1.5, U = (1.5, −0.25; 0.75), u = (0.5, −2)", SUMMARY, 0, 5, struct.pack("<I6f", 3, -1.5, 1.5, -0.25, 0.75, 0.5, -2)),
    (CONTROLLER, RUN, "model, episode 6, clipped, L = 64, β = 1.25, θ = (0.5, −0.125), Λ = (4, 0.5; 2)", MODEL, 1, 6, struct.pack("<I6f", 64, 1.25, 0.5, -0.125, 4, 0.5, 2)),
    (CONTROLLER, RUN, "ack, episode 5, fate 0, wait 59,000", ACK, 0, 5, struct.pack("<II", 0, 59_000)),
    (CONTROLLER, RUN, "ack, episode 5, fate 6, wait 0", ACK, 0, 5, struct.pack("<II", 6, 0)),
    (CONTROLLER, RUN, "wait, challenge 0x55667788, wait 59,000", WAIT, 0, 0, struct.pack("<II", SECOND, 59_000)),
    (CONTROLLER, RUN, "next run, challenge 0x55667788, run 8", NEXT_RUN, 0, 0, struct.pack("<II", SECOND, 8)),
]

for mode, flags in ((0, 1), (1, 0)):
    content = struct.pack("<4sBBBBIIff32s", b"FBID", 2, 2, mode, flags, 0x01020304, 0x0A0B0C0D, 0.5, 1.25, bytes(range(32)))
    blob = content + struct.pack("<I", zlib.crc32(content))
    identity = Identity(blob)
    print(f"| identity | `{blob.hex(' ', -4)}` |")
    for direction, sender in ((DEVICE, "device"), (CONTROLLER, "controller")):
        for run in (0, RUN):
            print(f"| key of the {sender}'s frames in run {run} | `{identity.run_key(direction, run).hex(' ', -4)}` |")
    device, controller = Link(identity, 9), Link(identity, 4, service=RUN)
    for direction, run, name, kind, flags, episode, payload in MESSAGES:
        sender, receiver = (device, controller) if direction == DEVICE else (controller, device)
        for end in (sender, receiver):
            end.enter_run(run)
        frame = sender.encode(kind, episode, payload, flags)
        assert receiver.decode(frame) == (kind, flags, 2, episode, payload)
        print(f"| {name} | `{frame[:-16].hex(' ', -4)} {frame[-16:].hex()}` |")
