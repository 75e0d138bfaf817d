//! Frames, plain and sealed, against bytes made elsewhere, COBS against the `cobs` crate, and hostile bytes of every kind.
#![cfg(feature = "wire")]

use fedbandit_core::wire::{
    BufferTooShort, DecodeError, Identity, Message, NackReason, SummaryMessage, VERSION, claimed_address, cobs,
    is_model, max_frame_len,
};
use fedbandit_core::{Action, Agent, Model, Prior, Rewards, Values};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn identity() -> Identity {
    Identity { run: 0x0102_0304, agent: 0x0a0b_0c0d, dimension: 2, key: std::array::from_fn(|i| i as u8) }
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

/// Every message with its frame, plain and sealed, as `tests/wire_examples.py` makes them from the layout in `docs/wire.md`.
const GOLDEN: [(Message<'static>, &str, &str); 6] = [
    (
        Message::Hello { episode: 5, boot: 9 },
        "01010002040302010d0c0b0a0500000009000000a9ad9fd33b799092549c84ec2a0cd494",
        "81010002040302010d0c0b0a05000000090000000000000000000000345951f5afdd95476999c4c067b6d9615b7b759f",
    ),
    (
        Message::Heartbeat { episode: 5 },
        "01020002040302010d0c0b0a050000009c048b26a7176d9df9f67871bd44092c",
        "81020002040302010d0c0b0a05000000090000000100000000000000fddb6b9354560fbe440748802c9ba3c9",
    ),
    (
        Message::Summary(SUMMARY),
        "01030002040302010d0c0b0a05000000030000000000c0bf0000c03f000080be0000403f0000003f000000c0832a949ea84444c6560edfb5ddc7dd7f",
        "81030002040302010d0c0b0a05000000090000000200000000000000a1af7e1b233dc2de523f3e97a8048510d687ff886118d0f287ee5f318019e418400b5f616f78e7410e5fb3c0",
    ),
    (
        Message::Model(MODEL),
        "01810102040302010d0c0b0a06000000400000000000a03f0000003f000000be000080400000003f00000040549d8aa1eaea0e8e0942ad0cc30c48d8",
        "81810102040302010d0c0b0a060000000400000000000000000000003fb810bdccf2932ed8aa85f12d8345354100ec775209cbd5e926e9cb4f7ddda206b36b11bae8126a656b9cda",
    ),
    (
        Message::Ack { episode: 5 },
        "01820002040302010d0c0b0a05000000e6ad294d82057e2be4be42d50db6fada",
        "81820002040302010d0c0b0a05000000040000000100000000000000ec11e511013d98ac749d33fed0cc80f4",
    ),
    (
        Message::Nack { episode: 4, reason: NackReason::WrongEpisode },
        "01830102040302010d0c0b0a0400000039f22e185b595bfb0ec4c02eb09551f7",
        "81830102040302010d0c0b0a040000000400000002000000000000002bf65eaa9d209d9b7fc0d2bcfebc7c8d",
    ),
];

/// The same values, in a frame or in memory.
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

fn encode(message: &Message<'_>) -> Vec<u8> {
    let mut frame = [0; max_frame_len(2)];
    let length = identity().encode(message, &mut frame).unwrap();
    frame[..length].to_vec()
}

#[test]
fn golden_bytes_both_ways() {
    for (message, text, _) in GOLDEN {
        let frame = hex(text);
        assert_eq!(encode(&message), frame, "{message:?}");
        let decoded = identity().decode(&frame).unwrap();
        assert_eq!(values(&decoded), values(&message));
        assert_eq!(encode(&decoded), frame, "{message:?}");
        assert_eq!(std::mem::discriminant(&decoded), std::mem::discriminant(&message));
        assert_eq!(claimed_address(&frame), Some((0x0102_0304, 0x0a0b_0c0d)));
        assert_eq!(is_model(&frame), matches!(message, Message::Model(_)));
        for room in 0..frame.len() {
            assert_eq!(identity().encode(&message, &mut vec![0; room]), Err(BufferTooShort));
        }
    }
    assert_eq!(encode(&Message::Model(MODEL)).len(), max_frame_len(2));
    assert_eq!(max_frame_len(8), 216, "a model of dimension 8 fits a LoRaWAN frame of 222 bytes");
    let blob =
        hex("4642494401020000040302010d0c0b0a000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fc9d7a23d");
    assert_eq!(identity().to_blob().as_slice(), blob);
}

#[test]
fn an_agents_summary_is_a_summary_message() {
    let mut agent =
        Agent::<2>::new(&Prior { lambda: 1.0, beta: 1.0, episode_len: 4, rewards: Rewards::Unbounded }).unwrap();
    agent.record(&Action::from([0.5, -0.5]), 3.0).unwrap();
    agent.record(&Action::from([0.5, 0.25]), -1.0).unwrap();
    let mut frame = [0; max_frame_len(2)];
    let length = identity().encode_summary(&agent.finish(), &mut frame).unwrap();
    let expected = SummaryMessage {
        episode: 1,
        steps: 2,
        reward_sum: 2.0,
        gram: Values::Native(&[0.5, -0.125, 0.3125]),
        feature_sum: Values::Native(&[1.0, -1.75]),
    };
    assert_eq!(frame[..length], encode(&Message::Summary(expected)));
}

/// A frame with one bit changed, cut short or made longer is refused, and so is one for another device or with another key.
#[test]
fn nothing_but_the_frame_passes() {
    for (message, ..) in GOLDEN {
        let frame = encode(&message);
        for bit in 0..frame.len() * 8 {
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let expected = match bit / 8 {
                0 => DecodeError::Version(VERSION ^ 1 << (bit % 8)),
                4..12 => DecodeError::Address,
                _ => DecodeError::Tag,
            };
            assert_eq!(identity().decode(&damaged), Err(expected), "bit {bit}");
        }
        for length in 0..frame.len() {
            assert!(matches!(identity().decode(&frame[..length]), Err(DecodeError::Length | DecodeError::Tag)));
        }
        let longer = [frame.as_slice(), &[0]].concat();
        assert_eq!(identity().decode(&longer), Err(DecodeError::Tag));
        let stranger = Identity { key: [1; 32], ..identity() };
        assert_eq!(stranger.decode(&frame), Err(DecodeError::Tag));
        let other = Identity { agent: 1, ..identity() };
        assert_eq!(other.decode(&frame), Err(DecodeError::Address));
    }
}

/// With the key, a sender can still say nonsense: content of another dimension, and types that are none.
#[test]
fn authentic_nonsense_is_refused() {
    let wide = Identity { dimension: 3, ..identity() };
    let mut frame = [0; max_frame_len(3)];
    for message in [Message::Model(MODEL), Message::Summary(SUMMARY)] {
        let length = wide.encode(&message, &mut frame).unwrap();
        assert_eq!(wide.decode(&frame[..length]), Err(DecodeError::Length));
    }
    assert_eq!(claimed_address(&[1; 15]), None);
}

#[test]
fn a_damaged_blob_is_no_identity() {
    let blob = identity().to_blob();
    let read = Identity::from_blob(&blob).unwrap();
    assert_eq!((read.run, read.agent, read.dimension, read.key), (0x0102_0304, 0x0a0b_0c0d, 2, identity().key));
    assert_eq!(format!("{read:?}"), "agent 168496141 of run 16909060", "the key is not shown");
    for bit in 0..blob.len() * 8 {
        let mut damaged = blob;
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(Identity::from_blob(&damaged).is_none(), "bit {bit}");
    }
    assert!(Identity::from_blob(&[0xff; 52]).is_none());
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(3), failure_persistence: None, ..ProptestConfig::default() }
}

#[test]
fn any_bytes_are_no_frame() {
    proptest!(cases(2_000), |(bytes in proptest::collection::vec(any::<u8>(), 0..200))| {
        prop_assert!(identity().decode(&bytes).is_err());
    });
}

/// Frames of up to 600 bytes with many zeros and long runs without.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![3 => 1..=255_u8, 1 => Just(0)];
    prop_oneof![
        proptest::collection::vec(byte, 0..600),
        (250..260_usize, 0..3_usize).prop_map(|(run, zeros)| [vec![7; run], vec![0; zeros], vec![7; run]].concat()),
        (500..520_usize).prop_map(|run| vec![1; run]),
    ]
}

#[test]
fn cobs_is_that_of_the_cobs_crate() {
    proptest!(cases(3_000), |(frame in frames())| {
        let stuffed: Vec<u8> = cobs::encode(&frame).collect();
        let mut peer = vec![0; ::cobs::max_encoding_length(frame.len()) + 1];
        let length = ::cobs::encode(&frame, &mut peer);
        prop_assert_eq!(&stuffed[..stuffed.len() - 1], &peer[..length]);
        prop_assert!(stuffed.len() <= frame.len() + frame.len() / 254 + 2);
        prop_assert_eq!(stuffed.iter().position(|byte| *byte == 0), Some(stuffed.len() - 1));

        let mut decoder = cobs::Decoder::<600>::new();
        for byte in &stuffed[..stuffed.len() - 1] {
            prop_assert_eq!(decoder.push(*byte), None);
        }
        prop_assert_eq!(decoder.push(0), Some(frame.as_slice()));
        prop_assert_eq!(decoder.dropped(), 0);
    });
}

/// Whatever came before, the frame after a zero byte arrives; and what is too long or cut off does not.
#[test]
fn the_decoder_recovers_from_any_bytes() {
    let noise = proptest::collection::vec(any::<u8>(), 0..300);
    proptest!(cases(3_000), |(noise in noise, frame in proptest::collection::vec(any::<u8>(), 1..100))| {
        let mut decoder = cobs::Decoder::<100>::new();
        for byte in noise.into_iter().chain([0]) {
            prop_assert!(decoder.push(byte).is_none_or(|frame| frame.len() <= 100));
        }
        let mut arrived = None;
        for byte in cobs::encode(&frame) {
            arrived = decoder.push(byte).map(<[u8]>::to_vec);
        }
        prop_assert_eq!(arrived, Some(frame));
    });
    let mut decoder = cobs::Decoder::<4>::new();
    for frame in [&[1, 2, 3, 4, 5][..], &[0; 5]] {
        assert!(cobs::encode(frame).all(|byte| decoder.push(byte).is_none()));
    }
    assert!([5, 1, 2, 0].iter().all(|byte| decoder.push(*byte).is_none()), "cut off");
    assert_eq!(decoder.dropped(), 3);
    assert!([0, 0, 0].iter().all(|byte| decoder.push(*byte).is_none()), "zeros between frames are no frames");
    assert_eq!(decoder.dropped(), 3);
}

/// On a line that is joined or cut off in the middle of a frame, neither part passes, and the whole frame after it does.
#[test]
fn a_part_of_a_frame_is_none() {
    for (message, ..) in GOLDEN {
        let frame = encode(&message);
        let stuffed: Vec<u8> = cobs::encode(&frame).collect();
        for cut in 1..stuffed.len() - 1 {
            for part in [&stuffed[..cut], &stuffed[cut..stuffed.len() - 1]] {
                let mut decoder = cobs::Decoder::<{ max_frame_len(2) }>::new();
                let mut passed = Vec::new();
                for byte in part.iter().chain(&[0]).chain(&stuffed) {
                    let arrived = decoder.push(*byte).filter(|arrived| identity().decode(arrived).is_ok());
                    passed.extend(arrived.map(<[u8]>::to_vec));
                }
                assert_eq!(passed, [frame.as_slice()], "{message:?}, cut at {cut}");
            }
        }
    }
}

#[cfg(feature = "sealed")]
mod sealed {
    use chacha20poly1305::{AeadInOut, ChaCha20Poly1305, KeyInit};
    use fedbandit_core::wire::{Channel, max_sealed_frame_len};

    use super::*;

    const VERSION: u8 = 0x81;

    fn device() -> Channel {
        Channel::sealed_device(identity(), 9)
    }

    fn controller() -> Channel {
        Channel::sealed_controller(identity(), 4)
    }

    /// Sender and receiver of the golden frames: the first three are the device's, the others the controller's.
    const ENDS: [[fn() -> Channel; 2]; 2] = [[device, controller], [controller, device]];

    /// Every message with its golden frame, its sender and its receiver.
    fn golden() -> impl Iterator<Item = (Message<'static>, Vec<u8>, Channel, Channel)> {
        ENDS.into_iter().zip(GOLDEN.chunks(3)).flat_map(|([sender, receiver], golden)| {
            golden.iter().map(move |(message, _, text)| (*message, hex(text), sender(), receiver()))
        })
    }

    #[test]
    fn golden_bytes_both_ways() {
        for ([sender, receiver], golden) in ENDS.into_iter().zip(GOLDEN.chunks(3)) {
            let (mut sender, receiver, mut other) = (sender(), receiver(), sender());
            for (message, plain, text) in golden {
                let (mut frame, expected) = ([0; max_sealed_frame_len(2)], hex(text));
                let length = sender.encode(message, &mut frame).unwrap();
                assert_eq!(frame[..length], expected, "{message:?}");
                assert_eq!(length, hex(plain).len() + 12);
                assert_eq!(claimed_address(&frame), Some((0x0102_0304, 0x0a0b_0c0d)));
                assert_eq!(is_model(&frame), matches!(message, Message::Model(_)));
                let decoded = receiver.decode(&mut frame[..length]).unwrap();
                assert_eq!(encode(&decoded), hex(plain), "what was sealed is what a plain frame says");
                for room in 0..length {
                    assert_eq!(other.encode(message, &mut vec![0; room]), None);
                }
            }
        }
        assert_eq!(format!("{:?}", device()), format!("{:?}", identity()), "no key is shown");
    }

    /// One bit changed, cut short, made longer, for another device, with another key, sent back to its sender: refused, and left as it came.
    #[test]
    fn nothing_but_the_frame_passes() {
        for (_, frame, sender, receiver) in golden() {
            let refuse = |end: &Channel, frame: &[u8], expected| {
                let mut received = frame.to_vec();
                assert_eq!(end.decode(&mut received), Err(expected), "{frame:x?}");
                assert_eq!(received, frame, "what is refused is not decrypted");
            };
            for bit in 0..frame.len() * 8 {
                let mut damaged = frame.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                let expected = match bit / 8 {
                    0 => DecodeError::Version(VERSION ^ 1 << (bit % 8)),
                    4..12 => DecodeError::Address,
                    _ => DecodeError::Tag,
                };
                refuse(&receiver, &damaged, expected);
            }
            for length in 0..frame.len() {
                let expected = if length < 16 + 12 + 16 { DecodeError::Length } else { DecodeError::Tag };
                refuse(&receiver, &frame[..length], expected);
            }
            refuse(&receiver, &[frame.as_slice(), &[0]].concat(), DecodeError::Tag);
            refuse(&sender, &frame, DecodeError::Tag);
            for end in [Channel::sealed_device, Channel::sealed_controller] {
                refuse(&end(Identity { key: [1; 32], ..identity() }, 9), &frame, DecodeError::Tag);
                refuse(&end(Identity { agent: 1, ..identity() }, 9), &frame, DecodeError::Address);
            }
        }
    }

    /// The same key in another run or for another agent gives other keys: a frame with another address in its header does not pass there.
    #[test]
    fn keys_are_of_an_address_and_a_direction() {
        for (_, frame, ..) in golden() {
            for (offset, other) in
                [(4, Identity { run: 0x0102_0305, ..identity() }), (8, Identity { agent: 0x0a0b_0c0c, ..identity() })]
            {
                let mut readdressed = frame.clone();
                readdressed[offset] ^= 1;
                for end in [Channel::sealed_device, Channel::sealed_controller] {
                    assert_eq!(end(other.clone(), 9).decode(&mut readdressed), Err(DecodeError::Tag));
                }
            }
        }
    }

    #[test]
    fn no_downgrade() {
        for (message, sealed, _, receiver) in golden() {
            let mut plain = encode(&message);
            let expected = if plain.len() < 16 + 12 + 16 { DecodeError::Length } else { DecodeError::Version(1) };
            assert_eq!(receiver.decode(&mut plain), Err(expected));
            assert_eq!(identity().decode(&sealed), Err(DecodeError::Version(VERSION)));
        }
        let blob = identity().to_sealed_blob();
        assert_eq!(
            blob.as_slice(),
            hex(
                "4642494401020100040302010d0c0b0a000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f27539b9c"
            )
        );
        assert!(Identity::from_blob(&blob).is_none(), "an identity that asks for sealed frames is none without");
        assert!(Identity::from_sealed_blob(&identity().to_blob()).is_none());
        let read = Identity::from_sealed_blob(&blob).unwrap();
        assert_eq!((read.run, read.agent, read.dimension, read.key), (0x0102_0304, 0x0a0b_0c0d, 2, identity().key));
    }

    /// Any bytes, bare or behind a header that passes, are refused.
    #[test]
    fn any_bytes_are_no_frame() {
        let bytes = proptest::collection::vec(any::<u8>(), 0..200);
        proptest!(cases(2_000), |(bytes in bytes, kind in any::<u8>())| {
            let header = [VERSION, kind, 0, 2, 4, 3, 2, 1, 0xd, 0xc, 0xb, 0xa, 5, 0, 0, 0];
            for end in [device(), controller()] {
                prop_assert!(end.decode(&mut bytes.clone()).is_err());
                prop_assert!(end.decode(&mut [header.as_slice(), &bytes].concat()).is_err());
            }
        });
    }

    /// What is opened is what was sealed, bit for bit, and the frame is what the `chacha20poly1305` crate makes of the plain one's parts.
    #[test]
    fn sealed_by_the_definition() {
        // The device's direction key, by the device in Python.
        let key = hex("51cf94ccb4b81b0bcab753641ac328fc46c93d0faaeca9fb117a348a180450e5");
        let cipher = ChaCha20Poly1305::new_from_slice(&key).unwrap();
        let values = (1..=40_usize).prop_flat_map(|d| {
            let values = |n| proptest::collection::vec(any::<u32>().prop_map(f32::from_bits), n);
            (Just(d), values(d * (d + 1) / 2), values(d))
        });
        proptest!(cases(500), |((d, gram, feature_sum) in values, episode in any::<u32>(), boot in any::<u32>(), skip in 0..5_usize)| {
            let identity = Identity { dimension: d as u8, ..identity() };
            let (gram, feature_sum) = (Values::Native(&gram), Values::Native(&feature_sum));
            let message = Message::Summary(SummaryMessage { episode, steps: 7, reward_sum: 0.5, gram, feature_sum });
            let mut plain = vec![0; max_frame_len(d)];
            let length = identity.encode(&message, &mut plain).unwrap();
            plain.truncate(length - 16);
            let nonce = [boot.to_le_bytes().as_slice(), &skip.to_le_bytes()].concat();
            plain[0] = VERSION;
            let (header, payload) = plain.split_at_mut(16);
            let tag = cipher.encrypt_inout_detached(nonce.as_slice().try_into().unwrap(), header, (&mut *payload).into()).unwrap();
            let expected = [&*header, &nonce, payload, &tag].concat();

            let mut frame = vec![0; max_sealed_frame_len(d)];
            let mut device = Channel::sealed_device(identity.clone(), boot);
            (0..skip).for_each(|_| _ = device.encode(&message, &mut frame));
            let sealed = device.encode(&message, &mut frame).unwrap();
            frame.truncate(sealed);
            prop_assert_eq!(&frame, &expected);
            let decoded = Channel::sealed_controller(identity, 1).decode(&mut frame).unwrap();
            prop_assert_eq!(super::values(&decoded), super::values(&message));
            let same = matches!(decoded, Message::Summary(SummaryMessage { episode: found, steps: 7, reward_sum: 0.5, .. }) if found == episode);
            prop_assert!(same);
        });
    }
}
