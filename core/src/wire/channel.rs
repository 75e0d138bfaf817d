//! One end of a link, over plain or sealed frames.

use core::fmt;

use hmac::Mac;

#[cfg(feature = "sealed")]
use super::cipher::{Cipher, NONCE_LEN};
use super::identity::{End, hmac};
#[cfg(feature = "sealed")]
use super::nonce::{Nonce, Nonces};
use super::{
    ACK, CLIPPED, DecodeError, EncodeError, HEADER_LEN, HEARTBEAT, HELLO, Header, Identity, MODEL, Message, NEXT_RUN,
    SUMMARY, SummaryMessage, TAG_LEN, VERSION, WAIT, Writer,
};
use crate::model::{Model, Rewards};
use crate::summary::EpisodeSummary;

/// Version byte of a sealed frame.
const SEALED: u8 = VERSION | 0x80;

/// One end of the link between a device and its controller, in one run.
///
/// A plain channel authenticates frames; a sealed one also encrypts them. Either accepts frames of its own mode only, so
/// nobody on the path can switch sealing off. `Debug` does not show the keys.
///
/// ```
/// # use fedbandit_core::wire::{Channel, Identity, Message, max_frame_len};
/// let identity = Identity::new(1, 2, 8, [7; 32]);
/// let (mut device, controller) = (Channel::device(identity.clone(), 1), Channel::controller(identity, 1, 1));
/// device.enter_run(1);
/// let hello = Message::Hello { model: 0, boot: 1, challenge: 5 };
/// let mut frame = [0; max_frame_len(8)];
/// let length = device.encode(&hello, &mut frame)?;
/// assert_eq!(controller.decode(&mut frame[..length]), Ok(hello));
/// # Ok::<(), fedbandit_core::wire::EncodeError>(())
/// ```
pub struct Channel {
    identity: Identity,
    end: End,
    run: u32,
    /// Key of the frames this end sends.
    own_key: [u8; 32],
    /// Key of the frames the other end sends.
    peer_key: [u8; 32],
    #[cfg(feature = "sealed")]
    nonces: Nonces,
}

impl Channel {
    /// Creates the device's end, in run 0: the device does not know its run yet.
    ///
    /// A nonce of sealed frames must never repeat under one key. The channel counts its frames from zero, so create only one
    /// per start of the device. The boot counter must grow with each start and be stored durably before this call. Plain
    /// frames have no nonces and no such rules.
    pub fn device(identity: Identity, boot: u32) -> Self {
        Self::new(identity, End::Device, boot, 0)
    }

    /// Creates the controller's end, in the controller's run; `boot` is the controller's own boot counter in that run.
    ///
    /// The rules of [`device`](Self::device) apply to each device's channel. Services of different runs may share a device's
    /// key: their nonces differ by the run.
    pub fn controller(identity: Identity, boot: u32, run: u32) -> Self {
        Self::new(identity, End::Controller, boot, run)
    }

    #[cfg_attr(not(feature = "sealed"), expect(unused_variables, reason = "plain frames have no nonces"))]
    fn new(identity: Identity, end: End, boot: u32, run: u32) -> Self {
        let mut channel = Self {
            identity,
            end,
            run,
            own_key: [0; 32],
            peer_key: [0; 32],
            #[cfg(feature = "sealed")]
            nonces: Nonces::new(boot, run),
        };
        channel.enter_run(run);
        channel
    }

    /// Replaces the identity after the device's key was issued again. The nonces run on.
    pub fn set_identity(&mut self, identity: Identity) {
        self.identity = identity;
        self.enter_run(self.run);
    }

    /// Continues in another run, with the keys of that run.
    pub fn enter_run(&mut self, run: u32) {
        let peer = if self.end == End::Device { End::Controller } else { End::Device };
        self.run = run;
        self.own_key = self.identity.run_key(self.end, run);
        self.peer_key = self.identity.run_key(peer, run);
    }

    /// Returns the run; 0 before the first.
    pub fn run(&self) -> u32 {
        self.run
    }

    /// Writes a message's frame and returns its length. [`max_frame_len`](super::max_frame_len) bytes suffice.
    ///
    /// # Errors
    /// The buffer is shorter than the frame, or 2³² frames were sealed before.
    pub fn encode(&mut self, message: &Message<'_>, frame: &mut [u8]) -> Result<usize, EncodeError> {
        match *message {
            Message::Hello { model, boot, challenge } => self.write([HELLO, 0], model, [boot, challenge], [], frame),
            Message::Heartbeat { model } => self.write([HEARTBEAT, 0], model, [], [], frame),
            Message::Summary(SummaryMessage { episode, steps, reward_sum, gram, feature_sum }) => {
                let values = gram.iter().chain(feature_sum.iter());
                self.write([SUMMARY, 0], episode, [steps, reward_sum.to_bits()], values, frame)
            }
            Message::Model(Model { episode, episode_len, beta, rewards, theta, design }) => {
                let flags = if rewards == Rewards::Clipped { CLIPPED } else { 0 };
                let values = theta.iter().chain(design.iter());
                self.write([MODEL, flags], episode, [episode_len, beta.to_bits()], values, frame)
            }
            Message::Ack { episode, fate, wait } => {
                self.write([ACK, 0], episode, [fate.code().into(), wait], [], frame)
            }
            Message::Wait { challenge, wait } => self.write([WAIT, 0], 0, [challenge, wait], [], frame),
            Message::NextRun { challenge, run } => self.write([NEXT_RUN, 0], 0, [challenge, run], [], frame),
        }
    }

    /// [`encode`](Self::encode) for an agent's own summary.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_summary<const D: usize>(
        &mut self,
        summary: &EpisodeSummary<'_, D>,
        frame: &mut [u8],
    ) -> Result<usize, EncodeError> {
        let numbers = [summary.steps(), summary.reward_sum().to_bits()];
        let values = summary.gram().chain(*summary.feature_sum());
        self.write([SUMMARY, 0], summary.episode(), numbers, values, frame)
    }

    fn write<const N: usize>(
        &mut self,
        [kind, flags]: [u8; 2],
        episode: u32,
        numbers: [u32; N],
        values: impl IntoIterator<Item = f32>,
        frame: &mut [u8],
    ) -> Result<usize, EncodeError> {
        let (fleet, agent, dimension) = (self.identity.fleet(), self.identity.agent(), self.identity.dimension());
        let header = Header { kind, flags, dimension, fleet, agent, run: self.run, episode };
        let mut writer = Writer { bytes: frame, at: 0 };
        writer.put(&header.to_bytes(self.version()))?;
        #[cfg(feature = "sealed")]
        let nonce = match self.identity.is_sealed() {
            true => Some(self.nonces.next().ok_or(EncodeError::NoncesUsedUp)?),
            false => None,
        };
        #[cfg(feature = "sealed")]
        if let Some(Nonce(nonce)) = &nonce {
            writer.put(nonce)?;
        }
        for word in numbers.into_iter().chain(values.into_iter().map(f32::to_bits)) {
            writer.put(&word.to_le_bytes())?;
        }
        #[cfg(feature = "sealed")]
        if let Some(nonce) = nonce {
            return self.seal(&nonce, writer);
        }
        let mut mac = hmac(&self.own_key);
        mac.update(writer.written());
        let tag: [u8; 32] = mac.finalize().into_bytes().into();
        writer.put(tag.first_chunk::<TAG_LEN>().map_or(&[], |tag| tag.as_slice()))?;
        Ok(writer.at)
    }

    /// Encrypts the payload and appends the tag.
    #[cfg(feature = "sealed")]
    fn seal(&self, Nonce(nonce): &Nonce, mut writer: Writer<'_>) -> Result<usize, EncodeError> {
        let written = writer.bytes.get_mut(..writer.at).ok_or(EncodeError::BufferTooShort)?;
        let (header, sealed) = written.split_first_chunk_mut().ok_or(EncodeError::BufferTooShort)?;
        let (_, payload) = sealed.split_first_chunk_mut::<NONCE_LEN>().ok_or(EncodeError::BufferTooShort)?;
        let cipher = Cipher::new(&self.own_key, nonce);
        cipher.apply(payload);
        let tag = cipher.tag(header, payload);
        writer.put(&tag)?;
        Ok(writer.at)
    }

    /// Reads a frame from the other end. A sealed payload is decrypted in place; a rejected frame stays unchanged.
    ///
    /// # Errors
    /// The bytes are not a frame of this mode and run for this identity, or the tag is wrong; see [`DecodeError`].
    pub fn decode<'a>(&self, frame: &'a mut [u8]) -> Result<Message<'a>, DecodeError> {
        let header = self.verify(&self.peer_key, frame)?;
        let (signed, _) = frame.split_last_chunk_mut::<TAG_LEN>().ok_or(DecodeError::Length)?;
        let (_, payload) = signed.split_first_chunk_mut::<HEADER_LEN>().ok_or(DecodeError::Length)?;
        #[cfg(feature = "sealed")]
        if self.identity.is_sealed() {
            let (nonce, payload) = payload.split_first_chunk_mut().ok_or(DecodeError::Length)?;
            Cipher::new(&self.peer_key, nonce).apply(payload);
            return header.message(payload);
        }
        header.message(payload)
    }

    /// Returns the episode of a summary frame that this end made in this run, once its tag is verified.
    pub(crate) fn own_summary(&self, frame: &[u8]) -> Result<u32, DecodeError> {
        match self.verify(&self.own_key, frame)? {
            Header { kind: SUMMARY, episode, .. } => Ok(episode),
            Header { kind, .. } => Err(DecodeError::Type(kind)),
        }
    }

    /// Checks length, version, address, run and tag, in this order, and returns the header.
    fn verify(&self, key: &[u8; 32], frame: &[u8]) -> Result<Header, DecodeError> {
        let (signed, tag) = frame.split_last_chunk::<TAG_LEN>().ok_or(DecodeError::Length)?;
        let (start, rest) = signed.split_first_chunk::<HEADER_LEN>().ok_or(DecodeError::Length)?;
        let [version, ..] = *start;
        if version != self.version() {
            return Err(DecodeError::Version(version));
        }
        let header = Header::read(start);
        if (header.fleet, header.agent) != (self.identity.fleet(), self.identity.agent()) {
            return Err(DecodeError::Address);
        }
        if header.run != self.run {
            return Err(DecodeError::Run(header.run));
        }
        #[cfg(feature = "sealed")]
        if self.identity.is_sealed() {
            let (nonce, payload) = rest.split_first_chunk::<NONCE_LEN>().ok_or(DecodeError::Length)?;
            let valid = Cipher::new(key, nonce).verify(start, payload, tag);
            return if valid { Ok(header) } else { Err(DecodeError::Tag) };
        }
        _ = rest;
        let mut mac = hmac(key);
        mac.update(signed);
        mac.verify_truncated_left(tag).map_err(|_| DecodeError::Tag)?;
        Ok(header)
    }

    fn version(&self) -> u8 {
        if self.identity.is_sealed() { SEALED } else { VERSION }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, run {}", self.identity, self.run)
    }
}
