#!/usr/bin/env python3
"""Generates the examples of docs/wire.md with the device in Python. Checks its cipher against RFC 8439 first."""
import struct
import zlib

from reference_device import ACK, HEARTBEAT, HELLO, MODEL, NACK, SUMMARY, Identity, Link, chacha20, chacha20_block, poly1305_tag

# RFC 8439, 2.3.2 and 2.8.2
block = chacha20_block(bytes(range(32)), 1, bytes.fromhex("000000090000004a00000000"))
assert block.hex().startswith("10f1e7e4d13b5915500fdd1fa32071c4") and block.hex().endswith("b5129cd1de164eb9cbd083e8a2503c4e")
TEXT = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would be it."
KEY, NONCE, DATA = bytes(range(0x80, 0xA0)), bytes.fromhex("070000004041424344454647"), bytes.fromhex("50515253c0c1c2c3c4c5c6c7")
encrypted = chacha20(KEY, NONCE, TEXT)
assert encrypted.hex().startswith("d31a8d34648e60db7b86afbc53ef7ec2") and encrypted.hex().endswith("6116")
assert poly1305_tag(KEY, NONCE, DATA, encrypted).hex() == "1ae10b594f09e26a7e902ecbd0600691"

DEVICE = [
    ("hello, episode 5, boot 9", HELLO, 5, struct.pack("<I", 9), 0),
    ("heartbeat, episode 5", HEARTBEAT, 5, b"", 0),
    ("summary, episode 5, 3 steps, Σr = −1.5, U = (1.5, −0.25; 0.75), u = (0.5, −2)", SUMMARY, 5, struct.pack("<I6f", 3, -1.5, 1.5, -0.25, 0.75, 0.5, -2), 0),
]
CONTROLLER = [
    ("model, episode 6, clipped, L = 64, β = 1.25, θ = (0.5, −0.125), Λ = (4, 0.5; 2)", MODEL, 6, struct.pack("<I6f", 64, 1.25, 0.5, -0.125, 4, 0.5, 2), 1),
    ("ack, episode 5", ACK, 5, b"", 0),
    ("nack, episode 4, wrong episode", NACK, 4, b"", 1),
]

for mode in (0, 1):
    content = struct.pack("<4sBBBBII32s", b"FBID", 1, 2, mode, 0, 0x01020304, 0x0A0B0C0D, bytes(range(32)))
    blob = content + struct.pack("<I", zlib.crc32(content))
    print(f"| identity | `{blob.hex(' ', -4)}` |")
    device, controller = Link(Identity(blob), 9), Link(Identity(blob), 4, controller=True)
    for sender, receiver, messages in ((device, controller, DEVICE), (controller, device, CONTROLLER)):
        for name, kind, episode, payload, flags in messages:
            frame = sender.encode(kind, episode, payload, flags)
            assert receiver.decode(frame) == (kind, flags, 2, episode, payload)
            print(f"| {name} | `{frame[:-16].hex(' ', -4)} {frame[-16:].hex()}` |")
