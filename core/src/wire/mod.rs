//! Frames exchanged by devices and controllers: fixed little-endian layouts, each with an authentication tag at the end.
//!
//! The feature `sealed` adds encryption. `docs/wire.md` specifies every byte. Decoding checks length, version, address and
//! tag, in this order, before it reads the content. It borrows from the frame and allocates nothing.

mod channel;
#[cfg(feature = "sealed")]
mod cipher;
pub mod cobs;
mod identity;
#[cfg(feature = "sealed")]
mod sealed;

use core::fmt;

use crate::model::{Model, Rewards, Values, packed_len};
use crate::summary::EpisodeSummary;

pub use channel::Channel;
pub(crate) use channel::Sender;
pub use identity::Identity;
#[cfg(feature = "sealed")]
pub use sealed::max_sealed_frame_len;

/// Version of the frame layouts.
pub const VERSION: u8 = 1;

/// Length of the header, in bytes.
pub const HEADER_LEN: usize = 16;

/// Length of the authentication tag, in bytes.
pub const TAG_LEN: usize = 16;

/// Returns the length of the longest frames, model and summary: 16 + 8 + 4·(D + D(D+1)/2) + 16.
pub const fn max_frame_len(dimension: usize) -> usize {
    HEADER_LEN + 8 + 4 * (dimension + packed_len(dimension)) + TAG_LEN
}

/// Content of a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Message<'a> {
    /// Device: joins the run or reconnects, and requests the model of the running episode.
    Hello {
        /// The device's episode.
        episode: u32,
        /// The device's boot counter.
        boot: u32,
    },
    /// Device: is alive.
    Heartbeat {
        /// The device's episode.
        episode: u32,
    },
    /// Device: summary of an episode.
    Summary(SummaryMessage<'a>),
    /// Controller: model of an episode.
    Model(Model<'a>),
    /// Controller: the summary is stored durably.
    Ack {
        /// The summary's episode.
        episode: u32,
    },
    /// Controller: the summary is rejected; do not repeat it.
    Nack {
        /// The summary's episode.
        episode: u32,
        /// Reason for the rejection.
        reason: NackReason,
    },
}

/// An [`EpisodeSummary`] as transmitted.
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

/// Reason why a controller rejects a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum NackReason {
    /// The episode ended too long ago or has not begun.
    WrongEpisode,
    /// The summary's dimension differs from the run's.
    WrongDimension,
    /// Unknown reason code.
    Other(u8),
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
    /// The frame belongs to another run or agent.
    Address,
    /// The authentication tag is wrong: the frame is corrupt or forged.
    Tag,
    /// The message type is unknown or unexpected.
    Type(u8),
}

/// Error: the buffer is shorter than the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BufferTooShort;

const HELLO: u8 = 0x01;
const HEARTBEAT: u8 = 0x02;
const SUMMARY: u8 = 0x03;
const MODEL: u8 = 0x81;
const ACK: u8 = 0x82;
const NACK: u8 = 0x83;

/// Model flag: rewards are clipped to [−1, 1].
const CLIPPED: u8 = 0x01;

/// Returns the run and agent in a frame's header, unauthenticated: a controller looks up the key with them.
pub fn claimed_address(frame: &[u8]) -> Option<(u32, u32)> {
    let (header, _) = frame.split_first_chunk::<HEADER_LEN>()?;
    let header = Header::read(header);
    Some((header.run, header.agent))
}

/// Returns the message type in a frame's header, unauthenticated; 0, an unused type, if the frame is too short.
pub(crate) fn claimed_type(frame: &[u8]) -> u8 {
    if let [_, kind, ..] = frame { *kind } else { 0 }
}

/// Returns true if a frame's header, unauthenticated, has the type of a model.
///
/// For transports that retain the last model of each device.
pub fn is_model(frame: &[u8]) -> bool {
    claimed_type(frame) == MODEL
}

/// Protection of a frame: authentication only, or encryption as well.
trait Protection {
    /// Version byte.
    const VERSION: u8;

    fn identity(&self) -> &Identity;

    /// Bytes between header and payload.
    fn nonce(&self) -> &[u8];

    /// Completes a frame once its payload is written.
    fn finish(&self, writer: &mut Writer<'_>) -> Result<(), BufferTooShort>;
}

fn encode<P: Protection>(protection: &P, message: &Message<'_>, frame: &mut [u8]) -> Result<usize, BufferTooShort> {
    let header = |kind, flags, episode| protection.identity().header(kind, flags, episode);
    match *message {
        Message::Hello { episode, boot } => write(protection, &header(HELLO, 0, episode), [boot], [], frame),
        Message::Heartbeat { episode } => write(protection, &header(HEARTBEAT, 0, episode), [], [], frame),
        Message::Summary(SummaryMessage { episode, steps, reward_sum, gram, feature_sum }) => {
            let numbers = [steps, reward_sum.to_bits()];
            write(protection, &header(SUMMARY, 0, episode), numbers, gram.iter().chain(feature_sum.iter()), frame)
        }
        Message::Model(Model { episode, episode_len, beta, rewards, theta, design }) => {
            let flags = if rewards == Rewards::Clipped { CLIPPED } else { 0 };
            let numbers = [episode_len, beta.to_bits()];
            write(protection, &header(MODEL, flags, episode), numbers, theta.iter().chain(design.iter()), frame)
        }
        Message::Ack { episode } => write(protection, &header(ACK, 0, episode), [], [], frame),
        Message::Nack { episode, reason } => write(protection, &header(NACK, reason.code(), episode), [], [], frame),
    }
}

fn encode_summary<P: Protection, const D: usize>(
    protection: &P,
    summary: &EpisodeSummary<'_, D>,
    frame: &mut [u8],
) -> Result<usize, BufferTooShort> {
    let header = protection.identity().header(SUMMARY, 0, summary.episode());
    let numbers = [summary.steps(), summary.reward_sum().to_bits()];
    write(protection, &header, numbers, summary.gram().chain(*summary.feature_sum()), frame)
}

fn write<P: Protection, const N: usize>(
    protection: &P,
    header: &Header,
    numbers: [u32; N],
    values: impl IntoIterator<Item = f32>,
    frame: &mut [u8],
) -> Result<usize, BufferTooShort> {
    let mut writer = Writer { bytes: frame, at: 0 };
    writer.put(&header.to_bytes(P::VERSION))?;
    writer.put(protection.nonce())?;
    for word in numbers.into_iter().chain(values.into_iter().map(f32::to_bits)) {
        writer.put(&word.to_le_bytes())?;
    }
    protection.finish(&mut writer)?;
    Ok(writer.at)
}

struct Header {
    kind: u8,
    flags: u8,
    dimension: u8,
    run: u32,
    agent: u32,
    episode: u32,
}

impl Header {
    fn to_bytes(&self, version: u8) -> [u8; HEADER_LEN] {
        let [r0, r1, r2, r3] = self.run.to_le_bytes();
        let [a0, a1, a2, a3] = self.agent.to_le_bytes();
        let [e0, e1, e2, e3] = self.episode.to_le_bytes();
        [version, self.kind, self.flags, self.dimension, r0, r1, r2, r3, a0, a1, a2, a3, e0, e1, e2, e3]
    }

    fn read(bytes: &[u8; HEADER_LEN]) -> Self {
        let [_, kind, flags, dimension, r0, r1, r2, r3, a0, a1, a2, a3, e0, e1, e2, e3] = *bytes;
        Self {
            kind,
            flags,
            dimension,
            run: u32::from_le_bytes([r0, r1, r2, r3]),
            agent: u32::from_le_bytes([a0, a1, a2, a3]),
            episode: u32::from_le_bytes([e0, e1, e2, e3]),
        }
    }

    fn message<'a>(&self, payload: &'a [u8]) -> Result<Message<'a>, DecodeError> {
        let (words, []) = payload.as_chunks::<4>() else { return Err(DecodeError::Length) };
        let episode = self.episode;
        let (vector, triangle) = (usize::from(self.dimension), packed_len(self.dimension.into()));
        match (self.kind, words) {
            (HELLO, [boot]) => Ok(Message::Hello { episode, boot: u32::from_le_bytes(*boot) }),
            (HEARTBEAT, []) => Ok(Message::Heartbeat { episode }),
            (SUMMARY, [steps, reward_sum, values @ ..]) => {
                let (gram, feature_sum) = split(values, triangle, vector)?;
                let (steps, reward_sum) = (u32::from_le_bytes(*steps), f32::from_le_bytes(*reward_sum));
                Ok(Message::Summary(SummaryMessage { episode, steps, reward_sum, gram, feature_sum }))
            }
            (MODEL, [episode_len, beta, values @ ..]) => {
                let (theta, design) = split(values, vector, triangle)?;
                let rewards = if self.flags & CLIPPED == 0 { Rewards::Unbounded } else { Rewards::Clipped };
                let (episode_len, beta) = (u32::from_le_bytes(*episode_len), f32::from_le_bytes(*beta));
                Ok(Message::Model(Model { episode, episode_len, beta, rewards, theta, design }))
            }
            (ACK, []) => Ok(Message::Ack { episode }),
            (NACK, []) => Ok(Message::Nack { episode, reason: NackReason::from_code(self.flags) }),
            (HELLO | HEARTBEAT | SUMMARY | MODEL | ACK | NACK, _) => Err(DecodeError::Length),
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

impl NackReason {
    fn code(self) -> u8 {
        match self {
            Self::WrongEpisode => 1,
            Self::WrongDimension => 2,
            Self::Other(code) => code,
        }
    }

    fn from_code(code: u8) -> Self {
        match code {
            1 => Self::WrongEpisode,
            2 => Self::WrongDimension,
            code => Self::Other(code),
        }
    }
}

struct Writer<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, part: &[u8]) -> Result<(), BufferTooShort> {
        let end = self.at + part.len();
        let place = self.bytes.get_mut(self.at..end).ok_or(BufferTooShort)?;
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
            Self::Address => f.write_str("frame belongs to another run or agent"),
            Self::Tag => f.write_str("invalid authentication tag"),
            Self::Type(kind) => write!(f, "unexpected message type {kind:#04x}"),
        }
    }
}

impl fmt::Display for BufferTooShort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("buffer is shorter than the frame")
    }
}

impl core::error::Error for DecodeError {}
impl core::error::Error for BufferTooShort {}
