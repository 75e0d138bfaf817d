//! Sealed frames: plain frames plus a nonce after the header, with ChaCha20-Poly1305 encrypting and authenticating them.
//!
//! A nonce must never repeat under one key; `docs/wire.md` proves that it does not. The proof relies on the caller for two
//! things: a boot counter that grows with each start, and a single [`Seal`] per key and start.

use super::cipher::{Cipher, NONCE_LEN};
use super::{
    BufferTooShort, DecodeError, HEADER_LEN, Identity, Message, Protection, Sender, TAG_LEN, VERSION, Writer,
    max_frame_len,
};
use crate::summary::EpisodeSummary;

/// Version byte of a sealed frame.
const SEALED: u8 = VERSION | 0x80;

/// Mode byte of a blob that requires sealed frames.
const SEALED_BLOB: u8 = 1;

/// Returns the length of the longest sealed frames: 12 bytes more than [`max_frame_len`].
pub const fn max_sealed_frame_len(dimension: usize) -> usize {
    max_frame_len(dimension) + NONCE_LEN
}

/// A nonce for one frame: sealing a frame consumes it.
struct Nonce([u8; NONCE_LEN]);

/// All nonces of one start: the boot counter, then a frame counter.
struct Nonces {
    boot: u32,
    /// The next frame's counter; `None` once all are used.
    counter: Option<u64>,
}

impl Nonces {
    fn next(&mut self) -> Option<Nonce> {
        let counter = self.counter?;
        self.counter = counter.checked_add(1);
        let [b0, b1, b2, b3] = self.boot.to_le_bytes();
        let [c0, c1, c2, c3, c4, c5, c6, c7] = counter.to_le_bytes();
        Some(Nonce([b0, b1, b2, b3, c0, c1, c2, c3, c4, c5, c6, c7]))
    }
}

/// One end of a sealed link, for one start of its owner.
pub(super) struct Seal {
    pub(super) identity: Identity,
    /// Key of the frames this end sends.
    own_key: [u8; 32],
    /// Key of the frames the other end sends.
    peer_key: [u8; 32],
    nonces: Nonces,
}

impl Seal {
    pub(super) fn device(identity: Identity, boot: u32) -> Self {
        let [own_key, peer_key] = identity.direction_keys();
        Self { identity, own_key, peer_key, nonces: Nonces { boot, counter: Some(0) } }
    }

    pub(super) fn controller(identity: Identity, boot: u32) -> Self {
        let [peer_key, own_key] = identity.direction_keys();
        Self { identity, own_key, peer_key, nonces: Nonces { boot, counter: Some(0) } }
    }

    pub(super) fn encode(&mut self, message: &Message<'_>, frame: &mut [u8]) -> Option<usize> {
        let nonce = self.nonces.next()?;
        super::encode(&Sealing { seal: self, nonce }, message, frame).ok()
    }

    pub(super) fn encode_summary<const D: usize>(
        &mut self,
        summary: &EpisodeSummary<'_, D>,
        frame: &mut [u8],
    ) -> Option<usize> {
        let nonce = self.nonces.next()?;
        super::encode_summary(&Sealing { seal: self, nonce }, summary, frame).ok()
    }

    /// Decrypts the payload in place. A frame with a wrong tag stays as it is.
    pub(super) fn decode<'a>(&self, sender: Sender, frame: &'a mut [u8]) -> Result<Message<'a>, DecodeError> {
        let (signed, tag) = frame.split_last_chunk_mut::<TAG_LEN>().ok_or(DecodeError::Length)?;
        let (header, sealed) = signed.split_first_chunk_mut::<HEADER_LEN>().ok_or(DecodeError::Length)?;
        let (nonce, payload) = sealed.split_first_chunk_mut::<NONCE_LEN>().ok_or(DecodeError::Length)?;
        let checked = self.identity.check(header, SEALED)?;
        let key = if sender == Sender::Own { &self.own_key } else { &self.peer_key };
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

    /// Encrypts the payload and appends the tag.
    fn finish(&self, writer: &mut Writer<'_>) -> Result<(), BufferTooShort> {
        let written = writer.bytes.get_mut(..writer.at).ok_or(BufferTooShort)?;
        let (header, sealed) = written.split_first_chunk_mut::<HEADER_LEN>().ok_or(BufferTooShort)?;
        let (_, payload) = sealed.split_first_chunk_mut::<NONCE_LEN>().ok_or(BufferTooShort)?;
        let cipher = Cipher::new(&self.seal.own_key, &self.nonce.0);
        cipher.apply(payload);
        let tag = cipher.tag(header, payload);
        writer.put(&tag)
    }
}

impl Identity {
    /// Reads a provisioning blob that requires sealed frames, for [`Session::sealed`](crate::session::Session::sealed) or
    /// [`Channel::sealed_device`](super::Channel::sealed_device). Returns `None` as [`from_blob`](Self::from_blob) does.
    pub fn from_sealed_blob(blob: &[u8; Self::BLOB_LEN]) -> Option<Self> {
        Self::read_blob(blob, SEALED_BLOB)
    }

    /// Writes the provisioning blob of a device that uses sealed frames.
    pub fn to_sealed_blob(&self) -> [u8; Self::BLOB_LEN] {
        self.write_blob(SEALED_BLOB)
    }

    /// Derives the keys of the device's and of the controller's frames: the halves of block 0 of the key stream under the
    /// device's key with the nonce run ‖ agent ‖ `keys`. The device's key itself seals no frame.
    fn direction_keys(&self) -> [[u8; 32]; 2] {
        let ([r0, r1, r2, r3], [a0, a1, a2, a3]) = (self.run.to_le_bytes(), self.agent.to_le_bytes());
        Cipher::new(&self.key, &[r0, r1, r2, r3, a0, a1, a2, a3, b'k', b'e', b'y', b's']).keys()
    }
}

#[cfg(test)]
mod tests {
    use super::Nonces;

    #[test]
    fn nonces_run_out_before_they_repeat() {
        let mut nonces = Nonces { boot: 1, counter: Some(u64::MAX - 1) };
        let last = [nonces.next(), nonces.next()].map(|nonce| nonce.map(|nonce| nonce.0));
        assert_eq!(last, [254, 255].map(|low| Some([1, 0, 0, 0, low, 255, 255, 255, 255, 255, 255, 255])));
        assert!(nonces.next().is_none() && nonces.next().is_none());
    }
}
