//! Targets for the wire format: identities, plain and sealed frames, COBS.

use fedbandit_core::wire::{
    Channel, DecodeError, EncodeError, Fate, HEADER_LEN, Identity, IdentityError, Message, SummaryMessage, TAG_LEN,
    cobs, unverified_address, unverified_run,
};
use fedbandit_core::{Model, Rewards};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Number of the fleet.
pub(super) const FLEET: u32 = 1;
const AGENT: u32 = 2;
const KEY: [u8; 32] = [3; 32];

/// Sender of a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Sender {
    Device,
    Controller,
}

/// Computes HMAC-SHA256.
fn hmac(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC accepts keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

/// Gives arbitrary bytes the address and the tag of a plain frame, in the run that they name.
pub(super) fn authenticated(key: &[u8; 32], agent: u32, sender: Sender, data: &[u8]) -> Vec<u8> {
    let mut frame = data.to_vec();
    if let Some(address) = frame.get_mut(4..12) {
        address[..4].copy_from_slice(&FLEET.to_le_bytes());
        address[4..].copy_from_slice(&agent.to_le_bytes());
    }
    let (plain, direction) = (0, if sender == Sender::Device { 1 } else { 2 });
    let run = frame.get(12..16).unwrap_or(&[0; 4]);
    let run_key = hmac(key, &[b"fedbandit v2", &[plain, direction], run]);
    frame.extend_from_slice(&hmac(&run_key, &[&frame])[..TAG_LEN]);
    frame
}

/// Returns the sender's and the receiver's end of a link, with the dimension and the run of a frame.
fn ends(frame: &[u8], sender: Sender, sealed: bool) -> (Channel, Channel) {
    let identity = Identity::new(FLEET, AGENT, frame.get(3).copied().unwrap_or_default(), KEY);
    let identity = if sealed { identity.with_sealed_frames() } else { identity };
    let run = unverified_run(frame).unwrap_or_default();
    let (mut device, controller) = (Channel::device(identity.clone(), 1), Channel::controller(identity, 1, run));
    device.enter_run(run);
    if sender == Sender::Device { (device, controller) } else { (controller, device) }
}

/// Plain frames of both ends: a decoded frame has the same bytes when encoded again, and no other end or run accepts it. Tried
/// as received and with a valid tag. Identities: see [`identity`].
pub(super) fn frame(data: &[u8]) {
    for sender in [Sender::Device, Sender::Controller] {
        for frame in [data.to_vec(), authenticated(&KEY, AGENT, sender, data)] {
            let _ = unverified_address(&frame);
            let (mut from, mut to) = ends(&frame, sender, false);
            let mut received = frame.clone();
            let Ok(message) = to.decode(&mut received) else { continue };
            let (length, signed) = (frame.len(), frame.len() - TAG_LEN);
            let mut again = vec![0; length];
            assert_eq!(from.encode(&message, &mut again[1..]), Err(EncodeError::BufferTooShort), "{message:?}");
            assert_eq!(from.encode(&message, &mut again), Ok(length), "{message:?}");
            let canonical = canonical(&frame);
            assert_eq!(again[..signed], canonical[..signed], "{message:?}");
            assert!(again == frame || canonical != frame, "{message:?} has another tag");
            assert_eq!(from.decode(&mut frame.clone()), Err(DecodeError::Tag), "reflected");
            let run = to.run();
            to.enter_run(run.wrapping_add(1));
            assert_eq!(to.decode(&mut frame.clone()), Err(DecodeError::Run(run)));
        }
    }
    identity(data);
}

/// Returns a frame without the fields that are ignored on decoding: unknown flags, three bytes of an ack, and the episode of
/// wait and next run.
fn canonical(frame: &[u8]) -> Vec<u8> {
    let mut canonical = frame.to_vec();
    canonical[2] &= u8::from(canonical[1] == 0x81);
    match canonical[1] {
        0x82 => canonical[HEADER_LEN + 1..HEADER_LEN + 4].fill(0),
        0x83 | 0x84 => canonical[16..HEADER_LEN].fill(0),
        _ => {}
    }
    canonical
}

/// Identities: the fields of a valid one are those of its blob, and the error of another names its first defect. Tried as
/// received, with a valid checksum, and also with a valid beginning.
fn identity(data: &[u8]) {
    const CONTENT: usize = Identity::BLOB_LEN - 4;
    let Some(data) = data.first_chunk::<{ Identity::BLOB_LEN }>() else { return };
    for repairs in 0..3 {
        let mut blob = *data;
        if repairs > 1 {
            blob[..5].copy_from_slice(b"FBID\x02");
        }
        let checksum = crc32(&blob[..CONTENT]);
        if repairs > 0 {
            blob[CONTENT..].copy_from_slice(&checksum.to_le_bytes());
        }
        let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| blob[at + i]));
        let [_, _, _, _, version, dimension, mode, flags, ..] = blob;
        let constants = [16, 20].map(|at| f32::from_bits(number(at)));
        let defect = match () {
            () if !blob.starts_with(b"FBID") => Some(IdentityError::NotAnIdentity),
            () if version != 2 => Some(IdentityError::Version(version)),
            () if number(CONTENT) != checksum => Some(IdentityError::Corrupt),
            () if mode > 1 => Some(IdentityError::Mode(mode)),
            () if flags > 1 => Some(IdentityError::Flags(flags)),
            () if dimension == 0 => Some(IdentityError::Dimension(0)),
            () if !constants.iter().all(|value| value.is_finite() && *value > 0.0) => Some(IdentityError::Constants),
            () => None,
        };
        let identity = match (Identity::from_blob(&blob), defect) {
            (Ok(identity), None) => identity,
            (found, defect) => {
                assert_eq!(found.err(), defect);
                continue;
            }
        };
        assert_eq!((identity.fleet(), identity.agent(), identity.dimension()), (number(8), number(12), dimension));
        assert_eq!((identity.is_sealed(), identity.allows_guard()), (mode == 1, flags == 1));
        assert_eq!([identity.noise(), identity.theta_norm()], constants);
        assert_eq!(identity.to_blob(), blob);
    }
}

/// CRC-32 of IEEE 802.3, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let shift = |crc: u32| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| shift(crc)))
}

/// Sealed frames: arbitrary bytes are rejected, a sealed message opens unchanged, and a flipped bit is detected.
pub(super) fn sealed_frame(data: &[u8]) {
    for sender in [Sender::Device, Sender::Controller] {
        let (mut from, to) = ends(data, sender, true);
        assert!(to.decode(&mut data.to_vec()).is_err(), "forged without the key");
        let mut plain = authenticated(&KEY, AGENT, sender, data);
        assert!(to.decode(&mut plain.clone()).is_err(), "plain frame on a sealed link");
        let (_, plain_end) = ends(data, sender, false);
        let length = plain.len() + 12;
        let Ok(message) = plain_end.decode(&mut plain) else { continue };
        let mut sealed = vec![0; length];
        assert_eq!(from.encode(&message, &mut sealed), Ok(length));
        let mut opened = sealed.clone();
        // Values may be NaN, which equals nothing.
        let opened = to.decode(&mut opened).map(|opened| format!("{opened:?}"));
        assert_eq!(opened, Ok(format!("{message:?}")));
        assert_eq!(from.decode(&mut sealed.clone()), Err(DecodeError::Tag), "reflected");
        let at = data.iter().fold(0, |sum, byte| sum + usize::from(*byte)) % (8 * length);
        sealed[at / 8] ^= 1 << (at % 8);
        let mut received = sealed.clone();
        assert!(to.decode(&mut received).is_err(), "frame with bit {at} flipped was accepted");
        assert_eq!(received, sealed, "a rejected frame was changed");
    }
}

/// COBS: an encoded frame decodes to itself after arbitrary bytes, which yield no frame longer than the buffer.
pub(super) fn cobs(data: &[u8]) {
    const ROOM: usize = 64;
    let mut decoder = cobs::Decoder::<ROOM>::new();
    for byte in data {
        assert!(decoder.push(*byte).is_none_or(|frame| *byte == 0 && frame.len() <= ROOM));
    }
    decoder.push(0);
    let frame = &data[..data.len().min(ROOM)];
    let encoded: Vec<u8> = cobs::encode(frame).collect();
    assert_eq!(encoded.iter().position(|byte| *byte == 0), Some(encoded.len() - 1));
    let decoded = encoded.iter().filter_map(|byte| decoder.push(*byte).map(|frame| frame.to_vec()));
    assert_eq!(decoded.collect::<Vec<_>>(), [frame]);
    // All of the input, which may have more than one group.
    let encoded: Vec<u8> = cobs::encode(data).collect();
    let mut buffer = vec![0xa5; cobs::max_encoded_len(data.len())];
    assert_eq!(cobs::encode_into(data, &mut buffer), Ok(encoded.len()));
    assert_eq!(buffer[..encoded.len()], encoded);
    let short = &mut buffer[1..encoded.len()];
    assert_eq!(cobs::encode_into(data, short), Err(EncodeError::BufferTooShort));
}

/// Returns one frame of each message, without its tag.
pub(super) fn examples() -> Vec<Vec<u8>> {
    let (triangle, vector) = ([0.5_f32; 3], [0.25_f32, -1.0]);
    let (gram, feature_sum) = ((&triangle).into(), (&vector).into());
    let summary = SummaryMessage { episode: 1, steps: 4, reward_sum: 1.0, gram, feature_sum };
    let messages = [
        (0, Message::Hello { model: 0, boot: 1, challenge: 5 }),
        (1, Message::Hello { model: 1, boot: 1, challenge: 6 }),
        (1, Message::Heartbeat { model: 2 }),
        (1, Message::Summary(summary)),
        (2, Message::Summary(summary)),
        (1, Message::Model(Model::new(1, 4, 0.5, Rewards::Clipped, &vector, &[1.0, 0.0, 1.0]))),
        (1, Message::Ack { episode: 3, fate: Fate::Counts, wait: 59_000 }),
        (1, Message::Ack { episode: 3, fate: Fate::Inconsistent, wait: 0 }),
        (1, Message::Ack { episode: 3, fate: Fate::Other(200), wait: 1 }),
        (1, Message::Wait { challenge: 6, wait: 59_000 }),
        (0, Message::NextRun { challenge: 5, run: 1 }),
    ];
    messages.iter().map(|(run, message)| encoded(*run, message)).collect()
}

fn encoded(run: u32, message: &Message<'_>) -> Vec<u8> {
    let mut channel = Channel::device(Identity::new(FLEET, AGENT, 2, KEY), 1);
    channel.enter_run(run);
    let mut frame = vec![0; 256];
    let length = channel.encode(message, &mut frame).expect("frame fits");
    frame.truncate(length - TAG_LEN);
    frame
}

/// Returns identities: plain, sealed, with a guard, and with invalid constants.
pub(super) fn example_identities() -> Vec<Vec<u8>> {
    let identity = Identity::new(FLEET, AGENT, 2, KEY);
    let sealed = identity.clone().with_sealed_frames();
    [identity.clone(), sealed, identity.clone().with_guard(), identity.with_constants(-1.0, f32::NAN)]
        .map(|identity| identity.to_blob().to_vec())
        .to_vec()
}
