//! Frames against bytes made elsewhere, COBS against the `cobs` crate, and hostile bytes of every kind.
#![cfg(feature = "wire")]

use fedbandit_core::wire::{
    BufferTooShort, DecodeError, Identity, Message, NackReason, Summary, VERSION, claimed_address, cobs, max_frame_len,
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

const SUMMARY: Summary<'static> = Summary {
    episode: 5,
    steps: 3,
    gram: Values::Native(&[1.5, -0.25, 0.75]),
    feature_sum: Values::Native(&[0.5, -2.0]),
};

/// Every message, and its frame as Python's `struct`, `hmac` and `hashlib` make it from the layout in `docs/wire.md`.
const GOLDEN: [(Message<'static>, &str); 6] = [
    (
        Message::Hello { episode: 5, boot: 9 },
        "01010002040302010d0c0b0a0500000009000000a9ad9fd33b799092549c84ec2a0cd494",
    ),
    (Message::Heartbeat { episode: 5 }, "01020002040302010d0c0b0a050000009c048b26a7176d9df9f67871bd44092c"),
    (
        Message::Summary(SUMMARY),
        "01030002040302010d0c0b0a05000000030000000000c03f000080be0000403f0000003f000000c0e4f06037bbbaead2969657b34d1a1ae8",
    ),
    (
        Message::Model(MODEL),
        "01810102040302010d0c0b0a06000000400000000000a03f0000003f000000be000080400000003f00000040549d8aa1eaea0e8e0942ad0cc30c48d8",
    ),
    (Message::Ack { episode: 5 }, "01820002040302010d0c0b0a05000000e6ad294d82057e2be4be42d50db6fada"),
    (
        Message::Nack { episode: 4, reason: NackReason::WrongEpisode },
        "01830102040302010d0c0b0a0400000039f22e185b595bfb0ec4c02eb09551f7",
    ),
];

/// The same values, in a frame or in memory.
fn values(message: &Message<'_>) -> Vec<u32> {
    let values: Vec<f32> = match message {
        Message::Summary(Summary { gram, feature_sum, .. }) => gram.iter().chain(feature_sum.iter()).collect(),
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
    for (message, text) in GOLDEN {
        let frame = hex(text);
        assert_eq!(encode(&message), frame, "{message:?}");
        let decoded = identity().decode(&frame).unwrap();
        assert_eq!(values(&decoded), values(&message));
        assert_eq!(encode(&decoded), frame, "{message:?}");
        assert_eq!(std::mem::discriminant(&decoded), std::mem::discriminant(&message));
        assert_eq!(claimed_address(&frame), Some((0x0102_0304, 0x0a0b_0c0d)));
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
    let expected = Summary {
        episode: 1,
        steps: 2,
        gram: Values::Native(&[0.5, -0.125, 0.3125]),
        feature_sum: Values::Native(&[1.0, -1.75]),
    };
    assert_eq!(frame[..length], encode(&Message::Summary(expected)));
}

/// A frame with one bit changed, cut short or made longer is refused, and so is one for another device or with another key.
#[test]
fn nothing_but_the_frame_passes() {
    for (message, _) in GOLDEN {
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
