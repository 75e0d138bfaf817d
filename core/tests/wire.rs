//! Plain and sealed frames against an independent implementation, COBS against the `cobs` crate, and hostile input.
#![cfg(feature = "wire")]

use fedbandit_core::wire::{
    Channel, DecodeError, EncodeError, Fate, Identity, IdentityError, Message, SummaryMessage, VERSION, cobs, is_model,
    max_frame_len, plain_frame_len, unverified_address, unverified_run,
};
use fedbandit_core::{Agent, Model, Prior, Rewards, Values};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

const FLEET: u32 = 0x0102_0304;
const AGENT: u32 = 0x0a0b_0c0d;
const RUN: u32 = 7;
const KEY: [u8; 32] = {
    let mut key = [0; 32];
    let mut i = 0;
    while i < 32 {
        key[i] = i as u8;
        i += 1;
    }
    key
};

fn unguarded() -> Identity {
    Identity::new(FLEET, AGENT, 2, KEY).with_constants(0.5, 1.25)
}

fn identity() -> Identity {
    unguarded().with_guard()
}

const MODEL: Model<'static> = Model {
    episode: 6,
    episode_len: 64,
    beta: 1.25,
    rewards: Rewards::Clipped,
    theta: Values::Native(&[0.5, -0.125]),
    design: Values::Native(&[4.0, 0.5, 2.0]),
};

const SUMMARY: SummaryMessage<'static> = SummaryMessage {
    episode: 5,
    steps: 3,
    reward_sum: -1.5,
    gram: Values::Native(&[1.5, -0.25, 0.75]),
    feature_sum: Values::Native(&[0.5, -2.0]),
};

/// Every message with its run, in the order of the examples of `docs/wire.md`.
const MESSAGES: [(u32, Message<'static>); 10] = [
    (0, Message::Hello { model: 0, boot: 9, challenge: 0x1122_3344 }),
    (0, Message::NextRun { challenge: 0x1122_3344, run: RUN }),
    (RUN, Message::Hello { model: 5, boot: 9, challenge: 0x5566_7788 }),
    (RUN, Message::Heartbeat { model: 5 }),
    (RUN, Message::Summary(SUMMARY)),
    (RUN, Message::Model(MODEL)),
    (RUN, Message::Ack { episode: 5, fate: Fate::Counts, wait: 59_000 }),
    (RUN, Message::Ack { episode: 5, fate: Fate::NotPositiveSemidefinite, wait: 0 }),
    (RUN, Message::Wait { challenge: 0x5566_7788, wait: 59_000 }),
    (RUN, Message::NextRun { challenge: 0x5566_7788, run: 8 }),
];

/// An example: a message with the run and the bytes of its frame.
struct Example {
    run: u32,
    message: Message<'static>,
    frame: Vec<u8>,
}

/// The identity's blob, the device's key in [`RUN`] and the frames, plain or sealed, that the device in Python computed
/// (`tests/wire_examples.py`); `docs/wire.md` shows them.
fn examples(sealed: bool) -> (Vec<u8>, Vec<u8>, Vec<Example>) {
    let (_, section) = include_str!("../../docs/wire.md").split_once("## Examples").unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix("` |")?.split_once(" | `"));
    let rows: Vec<(&str, Vec<u8>)> = rows.map(|(name, text)| (name, hex(&text.replace(' ', "")))).collect();
    assert_eq!(rows.len(), 2 * (5 + MESSAGES.len()), "rows of both modes");
    let rows = &rows[if sealed { 5 + MESSAGES.len() } else { 0 }..][..5 + MESSAGES.len()];
    assert_eq!(rows[2].0, "key of the device's frames in run 7");
    let frames = rows[5..].iter().zip(MESSAGES);
    let examples = frames.map(|((_, frame), (run, message))| Example { run, message, frame: frame.clone() }).collect();
    (rows[0].1.clone(), rows[2].1.clone(), examples)
}

/// Sender and receiver of a message: devices send types below 0x80.
fn ends(identity: &Identity, frame: &[u8]) -> (Channel, Channel) {
    let (device, controller) = (Channel::device(identity.clone(), 9), Channel::controller(identity.clone(), 4, RUN));
    if frame[1] < 0x80 { (device, controller) } else { (controller, device) }
}

/// The receiver of an example, in its run.
fn receiver(identity: &Identity, example: &Example) -> Channel {
    let (_, mut receiver) = ends(identity, &example.frame);
    receiver.enter_run(example.run);
    receiver
}

/// The values of a message as bits, wherever they are stored.
fn values(message: &Message<'_>) -> Vec<u32> {
    let values: Vec<f32> = match message {
        Message::Summary(SummaryMessage { gram, feature_sum, .. }) => gram.iter().chain(feature_sum.iter()).collect(),
        Message::Model(Model { theta, design, .. }) => theta.iter().chain(design.iter()).collect(),
        _ => Vec::new(),
    };
    values.into_iter().map(f32::to_bits).collect()
}

fn hex(text: &str) -> Vec<u8> {
    text.as_bytes().chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn encode(channel: &mut Channel, message: &Message<'_>) -> Vec<u8> {
    let mut frame = vec![0; max_frame_len(2)];
    let length = channel.encode(message, &mut frame).unwrap();
    frame.truncate(length);
    frame
}

/// Checks that both ends of a channel, each with one start, encode and decode all examples.
fn assert_golden(identity: &Identity, examples: &[Example]) {
    let (mut device, mut controller) =
        (Channel::device(identity.clone(), 9), Channel::controller(identity.clone(), 4, RUN));
    for Example { run, message, frame } in examples {
        device.enter_run(*run);
        controller.enter_run(*run);
        let (sender, receiver) =
            if frame[1] < 0x80 { (&mut device, &mut controller) } else { (&mut controller, &mut device) };
        assert_eq!(&encode(sender, message), frame, "{message:?}");
        let mut received = frame.clone();
        let decoded = receiver.decode(&mut received).unwrap();
        assert_eq!(values(&decoded), values(message));
        if values(message).is_empty() {
            assert_eq!(decoded, *message);
        }
        assert_eq!(std::mem::discriminant(&decoded), std::mem::discriminant(message));
        assert_eq!((unverified_address(frame), unverified_run(frame)), (Some((FLEET, AGENT)), Some(*run)));
        assert_eq!(is_model(frame), matches!(message, Message::Model(_)));
        let (mut other, _) = ends(identity, frame);
        for room in 0..frame.len() {
            assert_eq!(other.encode(message, &mut vec![0; room]), Err(EncodeError::BufferTooShort));
        }
    }
}

#[test]
fn messages_encode_to_and_decode_from_golden_frames() {
    let (blob, _, examples) = examples(false);
    assert_golden(&identity(), &examples);
    assert_eq!(identity().to_blob().as_slice(), blob);
    let lengths: Vec<usize> = examples.iter().map(|example| example.frame.len()).collect();
    assert_eq!(plain_frame_len(2), 64);
    assert_eq!(lengths, [44, 44, 44, 36, 64, 64, 44, 44, 44, 44]);
}

#[test]
fn summary_and_model_of_dimension_8_fit_a_lorawan_frame() {
    let mut channel = Channel::device(Identity::new(1, 1, 8, KEY), 1);
    let (vector, triangle) = ([0.5; 8], [0.5; 36]);
    let model = Message::Model(Model::new(1, 64, 1.0, Rewards::Unbounded, &vector, &triangle));
    let (gram, feature_sum) = (Values::Native(&triangle), Values::Native(&vector));
    let summary = Message::Summary(SummaryMessage { gram, feature_sum, ..SUMMARY });
    for message in [model, summary] {
        assert_eq!(channel.encode(&message, &mut [0; 222]), Ok(220), "{message:?}");
    }
}

#[test]
fn agent_summary_encodes_like_a_summary_message() {
    let mut agent = Agent::<2>::new(&Prior::new(1.0, 1.0, 4, Rewards::Unbounded)).unwrap();
    agent.record(&[0.5, -0.5], 3.0).unwrap();
    agent.record(&[0.5, 0.25], -1.0).unwrap();
    let (mut frame, mut channel) = ([0; max_frame_len(2)], Channel::device(identity(), 9));
    let length = channel.encode_summary(&agent.finish(), &mut frame).unwrap();
    let expected = SummaryMessage {
        episode: 1,
        steps: 2,
        reward_sum: 2.0,
        gram: Values::Native(&[0.5, -0.125, 0.3125]),
        feature_sum: Values::Native(&[1.0, -1.75]),
    };
    assert_eq!(frame[..length], encode(&mut channel, &Message::Summary(expected)));
}

/// Every code of a fate survives; only code 0 counts.
#[test]
fn fates_keep_their_codes() {
    let (mut controller, mut device) = (Channel::controller(identity(), 1, RUN), Channel::device(identity(), 1));
    device.enter_run(RUN);
    let (_, _, examples) = examples(false);
    let ack = encode(&mut controller, &examples[6].message);
    let mut fates = std::collections::BTreeSet::new();
    for code in 0..=255 {
        let mut other = ack.clone();
        other[20] = code;
        assert_eq!(device.decode(&mut other).is_ok(), code == 0, "the fate is authenticated");
        // The code is found by encoding each fate that decoding can give.
        let fate = if code < 9 { NAMED[usize::from(code)] } else { Fate::Other(code) };
        let mut frame = encode(&mut controller, &Message::Ack { episode: 1, fate, wait: 3 });
        assert_eq!(frame[20..24], [code, 0, 0, 0]);
        assert_eq!(device.decode(&mut frame), Ok(Message::Ack { episode: 1, fate, wait: 3 }));
        assert_eq!(fate.counts(), code == 0);
        assert!(fates.insert(fate.to_string()), "{fate} names two fates");
    }
}

const NAMED: [Fate; 9] = [
    Fate::Counts,
    Fate::WrongEpisode,
    Fate::WrongDimension,
    Fate::WrongRun,
    Fate::NotFinite,
    Fate::Norm,
    Fate::NotPositiveSemidefinite,
    Fate::Inconsistent,
    Fate::Excluded,
];

/// A flipped bit, a missing or additional byte, another device, run or key, or reflection to the sender. The rejected frame
/// stays unchanged.
fn assert_altered_frames_are_rejected(identity: &Identity, other_key: &Identity, other_agent: &Identity) {
    let sealed = identity.is_sealed();
    let (version, shortest) = if sealed { (VERSION | 0x80, 48) } else { (VERSION, 36) };
    for example in examples(sealed).2 {
        let frame = &example.frame;
        let (mut sender, _) = ends(identity, frame);
        sender.enter_run(example.run);
        let receiver = receiver(identity, &example);
        let assert_rejected = |end: &Channel, frame: &[u8], expected| {
            let mut received = frame.to_vec();
            assert_eq!(end.decode(&mut received), Err(expected), "{frame:x?}");
            assert_eq!(received, frame, "a rejected frame was decrypted");
        };
        for bit in 0..frame.len() * 8 {
            let mut corrupt = frame.clone();
            corrupt[bit / 8] ^= 1 << (bit % 8);
            let expected = match bit / 8 {
                0 => DecodeError::Version(version ^ 1 << (bit % 8)),
                4..12 => DecodeError::Address,
                12..16 => DecodeError::Run(example.run ^ 1 << (bit - 96)),
                _ => DecodeError::Tag,
            };
            assert_rejected(&receiver, &corrupt, expected);
        }
        for length in 0..frame.len() {
            let expected = if length < shortest { DecodeError::Length } else { DecodeError::Tag };
            assert_rejected(&receiver, &frame[..length], expected);
        }
        assert_rejected(&receiver, &[frame.as_slice(), &[0]].concat(), DecodeError::Tag);
        assert_rejected(&sender, frame, DecodeError::Tag);
        assert_rejected(&self::receiver(other_key, &example), frame, DecodeError::Tag);
        assert_rejected(&self::receiver(other_agent, &example), frame, DecodeError::Address);
        // The keys depend on the run: a frame moved to another run fails even for the same device.
        let (mut moved, mut elsewhere) = (frame.clone(), self::receiver(identity, &example));
        moved[12] ^= 1;
        elsewhere.enter_run(example.run ^ 1);
        assert_rejected(&elsewhere, &moved, DecodeError::Tag);
    }
}

#[test]
fn altered_frame_is_rejected() {
    let other_key = Identity::new(FLEET, AGENT, 2, [1; 32]);
    assert_altered_frames_are_rejected(&identity(), &other_key, &Identity::new(FLEET, 1, 2, KEY));
}

/// A correctly tagged frame whose content does not match its dimension.
#[test]
fn authentic_frame_with_wrong_length_is_rejected() {
    let wide = Identity::new(FLEET, AGENT, 3, KEY);
    let (mut device, mut controller) = (Channel::device(wide.clone(), 1), Channel::controller(wide, 1, RUN));
    device.enter_run(RUN);
    let mut frame = [0; max_frame_len(3)];
    let length = device.encode(&Message::Summary(SUMMARY), &mut frame).unwrap();
    assert_eq!(controller.decode(&mut frame[..length]), Err(DecodeError::Length));
    let length = controller.encode(&Message::Model(MODEL), &mut frame).unwrap();
    assert_eq!(device.decode(&mut frame[..length]), Err(DecodeError::Length));
    assert_eq!((unverified_address(&[1; 19]), unverified_run(&[1; 19])), (None, None));
}

/// CRC-32 as defined for zlib, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 })
    })
}

#[test]
fn invalid_blob_is_rejected() {
    let blob = identity().to_blob();
    let read = Identity::from_blob(&blob).unwrap();
    assert_eq!((read.fleet(), read.agent(), read.dimension(), read.is_sealed()), (FLEET, AGENT, 2, false));
    assert_eq!((read.noise(), read.theta_norm(), read.to_blob()), (0.5, 1.25, blob));
    assert!(read.allows_guard());
    assert!(!Identity::from_blob(&unguarded().to_blob()).unwrap().allows_guard());
    assert_eq!(format!("{read:?}"), "agent 168496141 of fleet 16909060", "the key is not shown");
    for bit in 0..blob.len() * 8 {
        let mut corrupt = blob;
        corrupt[bit / 8] ^= 1 << (bit % 8);
        let expected = match bit / 8 {
            0..4 => IdentityError::NotAnIdentity,
            4 => IdentityError::Version(2 ^ 1 << (bit % 8)),
            _ => IdentityError::Corrupt,
        };
        assert_eq!(Identity::from_blob(&corrupt).err(), Some(expected), "bit {bit}");
    }
    assert_eq!(
        Identity::from_blob(&[0xff; Identity::BLOB_LEN]).err(),
        Some(IdentityError::NotAnIdentity),
        "erased flash"
    );
    // With a valid checksum.
    let with = |offset: usize, bytes: &[u8]| {
        let mut changed = blob;
        changed[offset..offset + bytes.len()].copy_from_slice(bytes);
        let checksum = crc32(&changed[..56]);
        changed[56..].copy_from_slice(&checksum.to_le_bytes());
        Identity::from_blob(&changed).err()
    };
    assert_eq!(with(4, &[2]), None);
    assert_eq!(with(5, &[0]), Some(IdentityError::Dimension(0)));
    assert_eq!(with(6, &[2]), Some(IdentityError::Mode(2)));
    assert_eq!(with(7, &[0]), None);
    assert_eq!(with(7, &[3]), Some(IdentityError::Flags(3)));
    for constant in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        for offset in [16, 20] {
            assert_eq!(with(offset, &constant.to_le_bytes()), Some(IdentityError::Constants), "{constant}");
        }
    }
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(3), failure_persistence: None, ..ProptestConfig::default() }
}

#[test]
fn arbitrary_bytes_are_rejected() {
    proptest!(cases(2_000), |(bytes in proptest::collection::vec(any::<u8>(), 0..200))| {
        let mut bytes = bytes;
        prop_assert!(Channel::device(identity(), 1).decode(&mut bytes).is_err());
    });
}

/// Frames of up to 600 bytes, with many zeros or long runs without any.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![3 => 1..=255_u8, 1 => Just(0)];
    prop_oneof![
        proptest::collection::vec(byte, 0..600),
        (250..260_usize, 0..3_usize).prop_map(|(run, zeros)| [vec![7; run], vec![0; zeros], vec![7; run]].concat()),
        (500..520_usize).prop_map(|run| vec![1; run]),
    ]
}

#[test]
fn cobs_matches_the_cobs_crate() {
    proptest!(cases(3_000), |(frame in frames())| {
        let encoded: Vec<u8> = cobs::encode(&frame).collect();
        let mut peer = vec![0; ::cobs::max_encoding_length(frame.len()) + 1];
        let length = ::cobs::encode(&frame, &mut peer);
        prop_assert_eq!(&encoded[..encoded.len() - 1], &peer[..length]);
        prop_assert!(encoded.len() <= cobs::max_encoded_len(frame.len()));
        let mut buffer = vec![0xaa; encoded.len()];
        prop_assert_eq!(cobs::encode_into(&frame, &mut buffer), Ok(encoded.len()));
        prop_assert_eq!(&buffer, &encoded);
        prop_assert_eq!(cobs::encode_into(&frame, &mut buffer[1..]), Err(EncodeError::BufferTooShort));
        prop_assert_eq!(encoded.iter().position(|byte| *byte == 0), Some(encoded.len() - 1));

        let mut decoder = cobs::Decoder::<600>::new();
        for byte in &encoded[..encoded.len() - 1] {
            prop_assert!(decoder.push(*byte).is_none());
        }
        prop_assert_eq!(decoder.push(0).map(|frame| &*frame), Some(frame.as_slice()));
        prop_assert_eq!(decoder.dropped(), 0);
    });
}

/// A frame after a zero byte arrives whatever preceded it; frames that are too long or truncated are dropped.
#[test]
fn decoder_recovers_after_arbitrary_bytes() {
    let noise = proptest::collection::vec(any::<u8>(), 0..300);
    proptest!(cases(3_000), |(noise in noise, frame in proptest::collection::vec(any::<u8>(), 1..100))| {
        let mut decoder = cobs::Decoder::<100>::new();
        for byte in noise.into_iter().chain([0]) {
            prop_assert!(decoder.push(byte).is_none_or(|frame| frame.len() <= 100));
        }
        let mut arrived = None;
        for byte in cobs::encode(&frame) {
            arrived = decoder.push(byte).map(|frame| frame.to_vec());
        }
        prop_assert_eq!(arrived, Some(frame));
    });
    let mut decoder = cobs::Decoder::<4>::new();
    for frame in [&[1, 2, 3, 4, 5][..], &[0; 5]] {
        assert!(cobs::encode(frame).all(|byte| decoder.push(byte).is_none()));
    }
    assert!([5, 1, 2, 0].iter().all(|byte| decoder.push(*byte).is_none()), "truncated");
    assert_eq!(decoder.dropped(), 3);
    assert!([0, 0, 0].iter().all(|byte| decoder.push(*byte).is_none()), "zeros between frames are ignored");
    assert_eq!(decoder.dropped(), 3);
}

/// Neither part of a split frame passes, and the complete frame after it does.
#[test]
fn truncated_frame_is_rejected() {
    for example in examples(false).2 {
        let (frame, receiver) = (&example.frame, receiver(&identity(), &example));
        let encoded: Vec<u8> = cobs::encode(frame).collect();
        for cut in 1..encoded.len() - 1 {
            for part in [&encoded[..cut], &encoded[cut..encoded.len() - 1]] {
                let mut decoder = cobs::Decoder::<{ max_frame_len(2) }>::new();
                let mut passed = Vec::new();
                for byte in part.iter().chain(&[0]).chain(&encoded) {
                    let arrived = decoder.push(*byte).map(|arrived| arrived.to_vec());
                    passed.extend(arrived.filter(|arrived| receiver.decode(&mut arrived.clone()).is_ok()));
                }
                assert_eq!(passed, [frame.as_slice()], "{:?}, cut at {cut}", example.message);
            }
        }
    }
}

#[cfg(feature = "sealed")]
mod sealed {
    use chacha20poly1305::{AeadInOut, ChaCha20Poly1305, KeyInit};

    use super::*;

    const VERSION: u8 = 0x82;

    fn sealed_identity() -> Identity {
        unguarded().with_sealed_frames()
    }

    #[test]
    fn messages_encode_to_and_decode_from_golden_frames() {
        let (blob, _, examples) = examples(true);
        assert_golden(&sealed_identity(), &examples);
        assert_eq!(sealed_identity().to_blob().as_slice(), blob);
        let read = Identity::from_blob(blob.as_slice().try_into().unwrap()).unwrap();
        assert!(read.is_sealed());
        assert_eq!(read.to_blob().as_slice(), blob);
        for (sealed, plain) in examples.iter().zip(super::examples(false).2) {
            assert_eq!(sealed.frame.len(), plain.frame.len() + 12);
        }
        let shown = format!("{:?}", Channel::device(sealed_identity(), 1));
        assert_eq!(shown, "agent 168496141 of fleet 16909060, run 0", "no key is shown");
    }

    #[test]
    fn altered_frame_is_rejected_unchanged() {
        let other_key = Identity::new(FLEET, AGENT, 2, [1; 32]).with_sealed_frames();
        let other_agent = Identity::new(FLEET, 1, 2, KEY).with_sealed_frames();
        assert_altered_frames_are_rejected(&sealed_identity(), &other_key, &other_agent);
    }

    #[test]
    fn frame_of_the_other_mode_is_rejected() {
        for (mode, other) in [(identity(), true), (sealed_identity(), false)] {
            for example in examples(other).2 {
                let expected = DecodeError::Version(if other { VERSION } else { 2 });
                assert_eq!(receiver(&mode, &example).decode(&mut example.frame.clone()), Err(expected));
            }
        }
    }

    /// With and without a valid header.
    #[test]
    fn arbitrary_bytes_are_rejected() {
        let bytes = proptest::collection::vec(any::<u8>(), 0..200);
        proptest!(cases(2_000), |(bytes in bytes, kind in any::<u8>())| {
            let header = [VERSION, kind, 0, 2, 4, 3, 2, 1, 0xd, 0xc, 0xb, 0xa, 0, 0, 0, 0, 5, 0, 0, 0];
            for end in [Channel::device(sealed_identity(), 9), Channel::controller(sealed_identity(), 4, RUN)] {
                prop_assert!(end.decode(&mut bytes.clone()).is_err());
                prop_assert!(end.decode(&mut [header.as_slice(), &bytes].concat()).is_err());
            }
        });
    }

    /// A sealed frame equals the plain frame's parts encrypted with the `chacha20poly1305` crate, and opens bit for bit.
    #[test]
    fn sealed_frame_matches_the_chacha20poly1305_crate() {
        // The device's key in the run, computed by the device in Python.
        let cipher = ChaCha20Poly1305::new_from_slice(&examples(true).1).unwrap();
        let values = (1..=40_usize).prop_flat_map(|d| {
            let values = |n| proptest::collection::vec(any::<u32>().prop_map(f32::from_bits), n);
            (Just(d), values(d * (d + 1) / 2), values(d))
        });
        proptest!(cases(500), |((d, gram, feature_sum) in values, episode in any::<u32>(), boot in any::<u32>(), skip in 0..5_u32)| {
            let identity = Identity::new(FLEET, AGENT, d as u8, KEY);
            let (gram, feature_sum) = (Values::Native(&gram), Values::Native(&feature_sum));
            let message = Message::Summary(SummaryMessage { episode, steps: 7, reward_sum: 0.5, gram, feature_sum });
            let mut plain = vec![0; max_frame_len(d)];
            let mut device = Channel::device(identity.clone(), boot);
            device.enter_run(RUN);
            let length = device.encode(&message, &mut plain).unwrap();
            plain.truncate(length - 16);
            let nonce = [boot, 0, skip].map(u32::to_le_bytes).concat();
            plain[0] = VERSION;
            let (header, payload) = plain.split_at_mut(20);
            let tag = cipher.encrypt_inout_detached(nonce.as_slice().try_into().unwrap(), header, (&mut *payload).into()).unwrap();
            let expected = [&*header, &nonce, payload, &tag].concat();

            let mut frame = vec![0; max_frame_len(d)];
            let mut device = Channel::device(identity.clone().with_sealed_frames(), boot);
            (0..skip).for_each(|_| _ = device.encode(&message, &mut frame));
            device.enter_run(RUN);
            let sealed = device.encode(&message, &mut frame).unwrap();
            frame.truncate(sealed);
            prop_assert_eq!(&frame, &expected);
            let mut controller = Channel::controller(identity.with_sealed_frames(), 1, RUN);
            controller.enter_run(RUN);
            let decoded = controller.decode(&mut frame).unwrap();
            prop_assert_eq!(super::values(&decoded), super::values(&message));
            let same = matches!(decoded, Message::Summary(SummaryMessage { episode: found, steps: 7, reward_sum: 0.5, .. }) if found == episode);
            prop_assert!(same);
        });
    }
}
