//! Identity of a device: its provisioning blob, and the authentication tags made with its key.

use core::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::{BufferTooShort, DecodeError, HEADER_LEN, Header, Message, Protection, TAG_LEN, VERSION, Writer};
use crate::state::crc32;
use crate::summary::EpisodeSummary;

/// Identity of a device, stored in its provisioning blob. The controller holds a copy for each enrolled device.
///
/// `Debug` does not show the key.
#[derive(Clone)]
pub struct Identity {
    /// Number of the run (the learning task) that the device takes part in.
    pub run: u32,
    /// Number of the device within the run.
    pub agent: u32,
    /// Dimension of the run's actions.
    pub dimension: u8,
    /// Secret key of the device.
    pub key: [u8; 32],
}

impl Identity {
    /// Length of a provisioning blob, in bytes.
    pub const BLOB_LEN: usize = 52;

    /// Reads the provisioning blob flashed beside the firmware. Returns `None` if it is invalid.
    ///
    /// A blob that requires sealed frames is invalid here; use `from_sealed_blob`.
    pub fn from_blob(blob: &[u8; Self::BLOB_LEN]) -> Option<Self> {
        Self::read_blob(blob, 0)
    }

    pub(super) fn read_blob(blob: &[u8; Self::BLOB_LEN], mode: u8) -> Option<Self> {
        let (content, checksum) = blob.split_last_chunk::<4>()?;
        let (start, content) = content.split_first_chunk::<8>()?;
        let &[b'F', b'B', b'I', b'D', 1, dimension, found, 0] = start else { return None };
        if found != mode {
            return None;
        }
        let (run, content) = content.split_first_chunk::<4>()?;
        let (agent, key) = content.split_first_chunk::<4>()?;
        let (key, _) = key.split_first_chunk::<32>()?;
        if u32::from_le_bytes(*checksum) != crc32(blob.get(..Self::BLOB_LEN - 4)?) {
            return None;
        }
        Some(Self { run: u32::from_le_bytes(*run), agent: u32::from_le_bytes(*agent), dimension, key: *key })
    }

    /// Writes the provisioning blob: `FBID`, version 1, dimension, two zeros, run, agent, key, CRC-32.
    pub fn to_blob(&self) -> [u8; Self::BLOB_LEN] {
        self.write_blob(0)
    }

    pub(super) fn write_blob(&self, mode: u8) -> [u8; Self::BLOB_LEN] {
        let mut blob = [0; Self::BLOB_LEN];
        let mut writer = Writer { bytes: &mut blob, at: 0 };
        let parts: [&[u8]; 4] = [
            &[b'F', b'B', b'I', b'D', 1, self.dimension, mode, 0],
            &self.run.to_le_bytes(),
            &self.agent.to_le_bytes(),
            &self.key,
        ];
        let written = parts.into_iter().try_for_each(|part| writer.put(part));
        let checksum = crc32(writer.written());
        // Cannot fail: 8 + 4 + 4 + 32 + 4 bytes are the array's length.
        _ = written.and_then(|()| writer.put(&checksum.to_le_bytes()));
        blob
    }

    /// Writes a message's plain frame and returns its length.
    ///
    /// # Errors
    /// The buffer is shorter than the frame; [`max_frame_len`](super::max_frame_len) bytes suffice.
    pub fn encode(&self, message: &Message<'_>, frame: &mut [u8]) -> Result<usize, BufferTooShort> {
        super::encode(self, message, frame)
    }

    /// [`encode`](Self::encode) for an agent's own summary.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_summary<const D: usize>(
        &self,
        summary: &EpisodeSummary<'_, D>,
        frame: &mut [u8],
    ) -> Result<usize, BufferTooShort> {
        super::encode_summary(self, summary, frame)
    }

    pub(super) fn header(&self, kind: u8, flags: u8, episode: u32) -> Header {
        Header { kind, flags, dimension: self.dimension, run: self.run, agent: self.agent, episode }
    }

    /// Reads a plain frame of this device, from either end.
    ///
    /// # Errors
    /// The bytes are not a plain frame, the frame is not for this identity, or its tag is wrong; see [`DecodeError`].
    pub fn decode<'a>(&self, frame: &'a [u8]) -> Result<Message<'a>, DecodeError> {
        let (signed, tag) = frame.split_last_chunk::<TAG_LEN>().ok_or(DecodeError::Length)?;
        let (header, payload) = signed.split_first_chunk::<HEADER_LEN>().ok_or(DecodeError::Length)?;
        let header = self.check(header, VERSION)?;
        self.verify(signed, tag)?;
        header.message(payload)
    }

    /// Parses the header and checks its version and address.
    pub(super) fn check(&self, header: &[u8; HEADER_LEN], expected: u8) -> Result<Header, DecodeError> {
        let [version, ..] = *header;
        if version != expected {
            return Err(DecodeError::Version(version));
        }
        let header = Header::read(header);
        if (header.run, header.agent) != (self.run, self.agent) {
            return Err(DecodeError::Address);
        }
        Ok(header)
    }

    fn tag(&self, signed: &[u8]) -> Option<[u8; 32]> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).ok()?;
        mac.update(signed);
        Some(mac.finalize().into_bytes().into())
    }

    fn verify(&self, signed: &[u8], tag: &[u8; TAG_LEN]) -> Result<(), DecodeError> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).map_err(|_| DecodeError::Tag)?;
        mac.update(signed);
        mac.verify_truncated_left(tag).map_err(|_| DecodeError::Tag)
    }
}

impl Protection for Identity {
    const VERSION: u8 = VERSION;

    fn identity(&self) -> &Identity {
        self
    }

    fn nonce(&self) -> &[u8] {
        &[]
    }

    fn finish(&self, writer: &mut Writer<'_>) -> Result<(), BufferTooShort> {
        let tag = self.tag(writer.written()).ok_or(BufferTooShort)?;
        writer.put(tag.get(..TAG_LEN).unwrap_or_default())
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "agent {} of run {}", self.agent, self.run)
    }
}
