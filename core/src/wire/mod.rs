//! Frames exchanged by devices and controllers: fixed little-endian layouts, each with an authentication tag at the end.
//!
//! The feature `sealed` adds encryption. `docs/wire.md` specifies every byte. Decoding checks length, version, address, run and
//! tag, in this order, before it reads the content. It borrows from the frame and allocates nothing.

mod channel;
#[cfg(feature = "sealed")]
mod cipher;
pub mod cobs;
mod fate;
mod identity;
#[cfg(feature = "sealed")]
mod nonce;

use core::fmt;

use crate::model::{Model, Rewards, Values, packed_len};

pub use channel::Channel;
pub use fate::Fate;
pub use identity::{Identity, IdentityError};

/// Version of the frame layouts.
pub const VERSION: u8 = 2;

/// Length of the header, in bytes.
pub const HEADER_LEN: usize = 20;

/// Length of the authentication tag, in bytes.
pub const TAG_LEN: usize = 16;

/// Length of the nonce of a sealed frame; zero if this build has no sealed frames.
#[cfg(feature = "sealed")]
const NONCE_LEN: usize = cipher::NONCE_LEN;
#[cfg(not(feature = "sealed"))]
const NONCE_LEN: usize = 0;

/// Returns the length of the longest frames, model and summary, that this build can send: with the feature `sealed`, 12 bytes more
/// than [`plain_frame_len`].
pub const fn max_frame_len(dimension: usize) -> usize {
    plain_frame_len(dimension) + NONCE_LEN
}

/// Returns the length of the longest plain frames, model and summary: 44 + 4·(D + D(D+1)/2).
pub const fn plain_frame_len(dimension: usize) -> usize {
    HEADER_LEN + 8 + 4 * (dimension + packed_len(dimension)) + TAG_LEN
}

/// Length of the longest frames without values: hello, ack, wait and next run.
pub(crate) const CONTROL_LEN: usize = HEADER_LEN + NONCE_LEN + 8 + TAG_LEN;

/// Content of a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Message<'a> {
    /// Device: requests the model of the running episode.
    Hello {
        /// Episode of the device's last model in this run; 0 if it has none.
        model: u32,
        /// The device's boot counter.
        boot: u32,
        /// Random number that the answer repeats, so that a recorded answer has no effect.
        challenge: u32,
    },
    /// Device: is alive.
    Heartbeat {
        /// As in a hello.
        model: u32,
    },
    /// Device: summary of an episode.
    Summary(SummaryMessage<'a>),
    /// Controller: model of an episode.
    Model(Model<'a>),
    /// Controller: the summary is settled; do not repeat it.
    Ack {
        /// The summary's episode.
        episode: u32,
        /// Whether the summary counts. One that does is stored durably.
        fate: Fate,
        /// Milliseconds until the running episode's deadline.
        wait: u32,
    },
    /// Controller: answers a hello while there is no newer model.
    Wait {
        /// The hello's challenge.
        challenge: u32,
        /// Milliseconds until the running episode's deadline.
        wait: u32,
    },
    /// Controller: answers a hello of another run, or of a device whose model is newer than the controller's.
    NextRun {
        /// The hello's challenge.
        challenge: u32,
        /// The run to continue in, from its first model on.
        run: u32,
    },
}

/// An [`EpisodeSummary`](crate::EpisodeSummary) as transmitted.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SummaryMessage<'a> {
    /// k
    pub episode: u32,
    /// Number of recorded steps.
    pub steps: u32,
    /// Σr, as reported by the device.
    pub reward_sum: f32,
    /// Upper triangle of U, row by row.
    pub gram: Values<'a>,
    /// u
    pub feature_sum: Values<'a>,
}

/// Reason why a frame was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum DecodeError {
    /// The frame is too short, or its length does not match its type and dimension.
    Length,
    /// The version is not supported, or the frame is of the other mode (plain or sealed).
    Version(u8),
    /// The frame belongs to another fleet or agent.
    Address,
    /// The frame belongs to this run, not to the channel's.
    Run(u32),
    /// The authentication tag is wrong: the frame is corrupt or forged.
    Tag,
    /// The message type is unknown or unexpected.
    Type(u8),
}

/// Reason why a message was not encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum EncodeError {
    /// The buffer is shorter than the frame.
    BufferTooShort,
    /// All 2³² nonces of this start are used.
    NoncesUsedUp,
}

const HELLO: u8 = 0x01;
const HEARTBEAT: u8 = 0x02;
const SUMMARY: u8 = 0x03;
const MODEL: u8 = 0x81;
const ACK: u8 = 0x82;
const WAIT: u8 = 0x83;
const NEXT_RUN: u8 = 0x84;

/// Model flag: rewards are clipped to [−1, 1].
const CLIPPED: u8 = 0x01;

/// Returns the fleet and the agent in a frame's header, unauthenticated: a controller looks up the key with them.
pub fn unverified_address(frame: &[u8]) -> Option<(u32, u32)> {
    let (header, _) = frame.split_first_chunk()?;
    let header = Header::read(header);
    Some((header.fleet, header.agent))
}

/// Returns the run in a frame's header, unauthenticated.
pub fn unverified_run(frame: &[u8]) -> Option<u32> {
    let (header, _) = frame.split_first_chunk()?;
    Some(Header::read(header).run)
}

/// Returns true if a frame's header, unauthenticated, has the type of a model.
///
/// For transports that retain the last model of each device.
pub fn is_model(frame: &[u8]) -> bool {
    matches!(frame, [_, MODEL, ..])
}

struct Header {
    kind: u8,
    flags: u8,
    dimension: u8,
    fleet: u32,
    agent: u32,
    run: u32,
    episode: u32,
}

impl Header {
    fn to_bytes(&self, version: u8) -> [u8; HEADER_LEN] {
        let [f0, f1, f2, f3] = self.fleet.to_le_bytes();
        let [a0, a1, a2, a3] = self.agent.to_le_bytes();
        let [r0, r1, r2, r3] = self.run.to_le_bytes();
        let [e0, e1, e2, e3] = self.episode.to_le_bytes();
        let Self { kind, flags, dimension, .. } = *self;
        [version, kind, flags, dimension, f0, f1, f2, f3, a0, a1, a2, a3, r0, r1, r2, r3, e0, e1, e2, e3]
    }

    fn read(bytes: &[u8; HEADER_LEN]) -> Self {
        let [_, kind, flags, dimension, f0, f1, f2, f3, a0, a1, a2, a3, r0, r1, r2, r3, e0, e1, e2, e3] = *bytes;
        Self {
            kind,
            flags,
            dimension,
            fleet: u32::from_le_bytes([f0, f1, f2, f3]),
            agent: u32::from_le_bytes([a0, a1, a2, a3]),
            run: u32::from_le_bytes([r0, r1, r2, r3]),
            episode: u32::from_le_bytes([e0, e1, e2, e3]),
        }
    }

    fn message<'a>(&self, payload: &'a [u8]) -> Result<Message<'a>, DecodeError> {
        let (words, []) = payload.as_chunks::<4>() else { return Err(DecodeError::Length) };
        let episode = self.episode;
        let whole = |word: &[u8; 4]| u32::from_le_bytes(*word);
        let (vector, triangle) = (usize::from(self.dimension), packed_len(self.dimension.into()));
        match (self.kind, words) {
            (HELLO, [boot, challenge]) => {
                Ok(Message::Hello { model: episode, boot: whole(boot), challenge: whole(challenge) })
            }
            (HEARTBEAT, []) => Ok(Message::Heartbeat { model: episode }),
            (SUMMARY, [steps, reward_sum, values @ ..]) => {
                let (gram, feature_sum) = split(values, triangle, vector)?;
                let (steps, reward_sum) = (whole(steps), f32::from_le_bytes(*reward_sum));
                Ok(Message::Summary(SummaryMessage { episode, steps, reward_sum, gram, feature_sum }))
            }
            (MODEL, [episode_len, beta, values @ ..]) => {
                let (theta, design) = split(values, vector, triangle)?;
                let rewards = if self.flags & CLIPPED == 0 { Rewards::Unbounded } else { Rewards::Clipped };
                let (episode_len, beta) = (whole(episode_len), f32::from_le_bytes(*beta));
                Ok(Message::Model(Model { episode, episode_len, beta, rewards, theta, design }))
            }
            (ACK, [[fate, ..], wait]) => Ok(Message::Ack { episode, fate: Fate::from_code(*fate), wait: whole(wait) }),
            (WAIT, [challenge, wait]) => Ok(Message::Wait { challenge: whole(challenge), wait: whole(wait) }),
            (NEXT_RUN, [challenge, run]) => Ok(Message::NextRun { challenge: whole(challenge), run: whole(run) }),
            (HELLO | HEARTBEAT | SUMMARY | MODEL | ACK | WAIT | NEXT_RUN, _) => Err(DecodeError::Length),
            (kind, _) => Err(DecodeError::Type(kind)),
        }
    }
}

/// Splits values into `a` and `b`; their number must match exactly.
fn split(values: &[[u8; 4]], a: usize, b: usize) -> Result<(Values<'_>, Values<'_>), DecodeError> {
    match values.split_at_checked(a) {
        Some((first, rest)) if rest.len() == b => Ok((first.into(), rest.into())),
        _ => Err(DecodeError::Length),
    }
}

struct Writer<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, part: &[u8]) -> Result<(), EncodeError> {
        let end = self.at + part.len();
        let place = self.bytes.get_mut(self.at..end).ok_or(EncodeError::BufferTooShort)?;
        for (to, from) in place.iter_mut().zip(part) {
            *to = *from;
        }
        self.at = end;
        Ok(())
    }

    fn written(&self) -> &[u8] {
        self.bytes.get(..self.at).unwrap_or_default()
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length => f.write_str("invalid frame length"),
            Self::Version(version) => write!(f, "unsupported frame version {version:#04x}"),
            Self::Address => f.write_str("frame belongs to another fleet or agent"),
            Self::Run(run) => write!(f, "frame belongs to run {run}"),
            Self::Tag => f.write_str("invalid authentication tag"),
            Self::Type(kind) => write!(f, "unexpected message type {kind:#04x}"),
        }
    }
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BufferTooShort => "buffer is shorter than the frame",
            Self::NoncesUsedUp => "all nonces of this start are used",
        })
    }
}

impl core::error::Error for DecodeError {}
impl core::error::Error for EncodeError {}
