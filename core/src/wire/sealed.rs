//! Sealed frames: as the others, but with a nonce after the header, the payload encrypted, and the tag that of ChaCha20-Poly1305.
//!
//! A nonce must never come twice under one key, whatever it seals. That it cannot is argued in `docs/wire.md`; here it takes two things of the
//! caller: a boot number that is larger at each start, and one [`Nonces`] per start.

use super::cipher::{Cipher, NONCE_LEN};
use super::{
    BufferTooShort, DecodeError, HEADER_LEN, Identity, Message, Protection, TAG_LEN, VERSION, Writer, max_frame_len,
};
use crate::summary::EpisodeSummary;

/// The version byte of a sealed frame.
const SEALED: u8 = VERSION | 0x80;

/// The mode byte of a blob that asks for sealed frames.
const SEALED_BLOB: u8 = 1;

/// The length of the longest sealed frames for a dimension: 12 bytes more than [`max_frame_len`].
pub const fn max_sealed_frame_len(dimension: usize) -> usize {
    max_frame_len(dimension) + NONCE_LEN
}

/// What seals one frame, and no other: it is used up by [`Seal::encode`].
#[derive(Debug)]
pub struct Nonce([u8; NONCE_LEN]);

/// All nonces of one start of a device or a controller: its boot number, then a counter.
///
/// Make one `Nonces` per start, for all frames that are sent until the next start: a second one with the same boot number repeats the nonces of the first.
/// A controller may take one for all its devices.
#[derive(Debug)]
pub struct Nonces {
    boot: u32,
    /// The next counter; none when all are used up.
    counter: Option<u64>,
}

impl Nonces {
    /// The nonces of a start, from its boot number.
    ///
    /// The number must be larger at each start, and be stored durably before it is used here.
    pub const fn new(boot: u32) -> Self {
        Self { boot, counter: Some(0) }
    }
}

impl Iterator for Nonces {
    type Item = Nonce;

    /// A nonce that was not there before; none after 2⁶⁴.
    fn next(&mut self) -> Option<Nonce> {
        let counter = self.counter?;
        self.counter = counter.checked_add(1);
        let [b0, b1, b2, b3] = self.boot.to_le_bytes();
        let [c0, c1, c2, c3, c4, c5, c6, c7] = counter.to_le_bytes();
        Some(Nonce([b0, b1, b2, b3, c0, c1, c2, c3, c4, c5, c6, c7]))
    }
}

/// One end of a sealed link, a device's or its controller's. It takes sealed frames only.
#[derive(Clone)]
pub struct Seal {
    identity: Identity,
    /// The key of what this end sends.
    own: [u8; 32],
    /// The key of what the other end sends.
    other: [u8; 32],
}

impl Seal {
    /// The device's end.
    pub fn device(identity: Identity) -> Self {
        let [own, other] = identity.direction_keys();
        Self { identity, own, other }
    }

    /// The controller's end of the link to the device of this identity.
    pub fn controller(identity: Identity) -> Self {
        let [other, own] = identity.direction_keys();
        Self { identity, own, other }
    }

    /// Writes a message's sealed frame and returns its length.
    ///
    /// # Errors
    /// The buffer is shorter than the frame; [`max_sealed_frame_len`] bytes suffice.
    pub fn encode(&self, nonce: Nonce, message: &Message<'_>, frame: &mut [u8]) -> Result<usize, BufferTooShort> {
        super::encode(&Sealing { seal: self, nonce }, message, frame)
    }

    /// [`encode`](Self::encode) for an agent's own summary.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_summary<const D: usize>(
        &self,
        nonce: Nonce,
        summary: &EpisodeSummary<'_, D>,
        frame: &mut [u8],
    ) -> Result<usize, BufferTooShort> {
        super::encode_summary(&Sealing { seal: self, nonce }, summary, frame)
    }

    /// Reads a frame from the other end; its payload is decrypted in place. A frame with a wrong tag stays as it is.
    ///
    /// # Errors
    /// The bytes are not a sealed frame, it is not for this identity, or its tag is wrong; see [`DecodeError`].
    pub fn decode<'a>(&self, frame: &'a mut [u8]) -> Result<Message<'a>, DecodeError> {
        self.open(&self.other, frame)
    }

    /// [`decode`](Self::decode) for a frame that this end made itself.
    pub(crate) fn decode_own<'a>(&self, frame: &'a mut [u8]) -> Result<Message<'a>, DecodeError> {
        self.open(&self.own, frame)
    }

    fn open<'a>(&self, key: &[u8; 32], frame: &'a mut [u8]) -> Result<Message<'a>, DecodeError> {
        let (signed, tag) = frame.split_last_chunk_mut::<TAG_LEN>().ok_or(DecodeError::Length)?;
        let (header, sealed) = signed.split_first_chunk_mut::<HEADER_LEN>().ok_or(DecodeError::Length)?;
        let (nonce, payload) = sealed.split_first_chunk_mut::<NONCE_LEN>().ok_or(DecodeError::Length)?;
        let checked = self.identity.check(header, SEALED)?;
        let cipher = Cipher::new(key, nonce);
        if !cipher.verify(header, payload, tag) {
            return Err(DecodeError::Tag);
        }
        cipher.apply(payload);
        checked.message(payload)
    }
}

/// A frame about to be sealed.
struct Sealing<'a> {
    seal: &'a Seal,
    nonce: Nonce,
}

impl Protection for Sealing<'_> {
    const VERSION: u8 = SEALED;

    fn identity(&self) -> &Identity {
        &self.seal.identity
    }

    fn nonce(&self) -> &[u8] {
        &self.nonce.0
    }

    /// Encrypts the payload, and puts the tag after it.
    fn finish(&self, writer: &mut Writer<'_>) -> Result<(), BufferTooShort> {
        let written = writer.bytes.get_mut(..writer.at).ok_or(BufferTooShort)?;
        let (header, sealed) = written.split_first_chunk_mut::<HEADER_LEN>().ok_or(BufferTooShort)?;
        let (_, payload) = sealed.split_first_chunk_mut::<NONCE_LEN>().ok_or(BufferTooShort)?;
        let cipher = Cipher::new(&self.seal.own, &self.nonce.0);
        cipher.apply(payload);
        let tag = cipher.tag(header, payload);
        writer.put(&tag)
    }
}

impl core::fmt::Debug for Seal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.identity.fmt(f)
    }
}

impl Identity {
    /// [`from_blob`](Self::from_blob) for a blob that asks for sealed frames: for [`Seal::device`] or
    /// [`Session::sealed`](crate::session::Session::sealed).
    pub fn from_sealed_blob(blob: &[u8; Self::BLOB_LEN]) -> Option<Self> {
        Self::read_blob(blob, SEALED_BLOB)
    }

    /// The provisioning blob of a device that is to use sealed frames.
    pub fn to_sealed_blob(&self) -> [u8; Self::BLOB_LEN] {
        self.write_blob(SEALED_BLOB)
    }

    /// The keys of what the device sends and of what the controller sends: block 0 of the key stream under the device's own key, which seals no
    /// frame itself, and the nonce run ‖ agent ‖ `keys`.
    fn direction_keys(&self) -> [[u8; 32]; 2] {
        let ([r0, r1, r2, r3], [a0, a1, a2, a3]) = (self.run.to_le_bytes(), self.agent.to_le_bytes());
        Cipher::new(&self.key, &[r0, r1, r2, r3, a0, a1, a2, a3, b'k', b'e', b'y', b's']).keys()
    }
}

#[cfg(test)]
mod tests {
    use super::Nonces;

    #[test]
    fn nonces_end_before_they_repeat() {
        let mut nonces = Nonces { boot: 1, counter: Some(u64::MAX - 1) };
        let last = [nonces.next(), nonces.next()].map(|nonce| nonce.map(|nonce| nonce.0));
        assert_eq!(last, [254, 255].map(|low| Some([1, 0, 0, 0, low, 255, 255, 255, 255, 255, 255, 255])));
        assert!(nonces.next().is_none() && nonces.next().is_none());
    }
}
