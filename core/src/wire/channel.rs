//! One end of a link, over plain or sealed frames.

use core::fmt;

use heapless::Vec;

#[cfg(feature = "sealed")]
use super::sealed::Seal;
use super::{DecodeError, Identity, Message};
use crate::summary::EpisodeSummary;

/// One end of the link between a device and its controller.
///
/// A plain channel authenticates frames; a sealed one also encrypts them. Either accepts frames of its own mode only, so
/// nobody on the path can switch sealing off. `Debug` does not show the key.
///
/// ```
/// # use fedbandit_core::wire::{Channel, Identity, Message, max_frame_len};
/// let identity = Identity { run: 1, agent: 2, dimension: 8, key: [7; 32] };
/// let (mut device, controller) = (Channel::plain(identity.clone()), Channel::plain(identity));
/// let mut frame = [0; max_frame_len(8)];
/// let length = device.encode(&Message::Hello { episode: 1, boot: 1 }, &mut frame).unwrap();
/// assert_eq!(controller.decode(&mut frame[..length]), Ok(Message::Hello { episode: 1, boot: 1 }));
/// ```
pub struct Channel(Mode);

enum Mode {
    Plain(Identity),
    #[cfg(feature = "sealed")]
    Sealed(Seal),
}

/// The end that made a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    /// The other end of the channel.
    Peer,
    /// This end.
    Own,
}

impl Channel {
    /// Creates either end of a plain channel.
    pub fn plain(identity: Identity) -> Self {
        Self(Mode::Plain(identity))
    }

    /// Creates the device's end of a sealed channel.
    ///
    /// A nonce must never repeat under one key. The channel counts its frames from zero, so create only one per start of the
    /// device. The boot counter must grow with each start and be stored durably before this call.
    #[cfg(feature = "sealed")]
    pub fn sealed_device(identity: Identity, boot: u32) -> Self {
        Self(Mode::Sealed(Seal::device(identity, boot)))
    }

    /// Creates the controller's end of a sealed channel; `boot` is the controller's own boot counter.
    ///
    /// The rules of [`sealed_device`](Self::sealed_device) apply to each device's channel.
    #[cfg(feature = "sealed")]
    pub fn sealed_controller(identity: Identity, boot: u32) -> Self {
        Self(Mode::Sealed(Seal::controller(identity, boot)))
    }

    /// Writes a message's frame and returns its length.
    ///
    /// Returns `None` if the buffer is shorter than the frame, or after 2⁶⁴ sealed frames.
    /// [`max_frame_len`](super::max_frame_len) bytes suffice, `max_sealed_frame_len` for a sealed frame.
    pub fn encode(&mut self, message: &Message<'_>, frame: &mut [u8]) -> Option<usize> {
        match &mut self.0 {
            Mode::Plain(identity) => identity.encode(message, frame).ok(),
            #[cfg(feature = "sealed")]
            Mode::Sealed(seal) => seal.encode(message, frame),
        }
    }

    /// [`encode`](Self::encode) for an agent's own summary.
    pub fn encode_summary<const D: usize>(
        &mut self,
        summary: &EpisodeSummary<'_, D>,
        frame: &mut [u8],
    ) -> Option<usize> {
        match &mut self.0 {
            Mode::Plain(identity) => identity.encode_summary(summary, frame).ok(),
            #[cfg(feature = "sealed")]
            Mode::Sealed(seal) => seal.encode_summary(summary, frame),
        }
    }

    /// Reads a frame from the other end. A sealed payload is decrypted in place; a rejected frame stays unchanged.
    ///
    /// # Errors
    /// The bytes are not a frame of this mode, the frame is not for this identity, or its tag is wrong; see [`DecodeError`].
    pub fn decode<'a>(&self, frame: &'a mut [u8]) -> Result<Message<'a>, DecodeError> {
        match &self.0 {
            Mode::Plain(identity) => identity.decode(frame),
            #[cfg(feature = "sealed")]
            Mode::Sealed(seal) => seal.decode(Sender::Peer, frame),
        }
    }

    /// [`decode`](Self::decode) of a frame that must stay as it is: a sealed one is decrypted in `buffer`.
    #[cfg_attr(not(feature = "sealed"), expect(unused_variables, reason = "plain frames are read in place"))]
    pub(crate) fn decode_copy<'a, const F: usize>(
        &self,
        sender: Sender,
        frame: &'a [u8],
        buffer: &'a mut Vec<u8, F>,
    ) -> Result<Message<'a>, DecodeError> {
        match &self.0 {
            Mode::Plain(identity) => identity.decode(frame),
            #[cfg(feature = "sealed")]
            Mode::Sealed(seal) => {
                buffer.extend_from_slice(frame).map_err(|_| DecodeError::Length)?;
                seal.decode(sender, buffer)
            }
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Mode::Plain(identity) => identity.fmt(f),
            #[cfg(feature = "sealed")]
            Mode::Sealed(seal) => seal.identity.fmt(f),
        }
    }
}
