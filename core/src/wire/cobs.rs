//! Consistent overhead byte stuffing (COBS): frames on a byte stream, delimited by zero bytes that occur nowhere inside.
//!
//! An encoded frame is a sequence of groups: a length byte n, then n − 1 non-zero bytes, then an implied zero unless n is 255
//! or the frame ends. Encoding needs no buffer; decoding needs one of bounded length.

use heapless::Vec;

use super::EncodeError;

/// Largest number of data bytes in a group.
const GROUP: usize = 254;

/// Returns the largest number of bytes, including the zero delimiter, that a frame of `frame` bytes is encoded in.
pub const fn max_encoded_len(frame: usize) -> usize {
    frame + frame / GROUP + 2
}

/// Encodes a frame into a buffer, including the zero delimiter, and returns the length.
///
/// A buffer of [`max_encoded_len`] bytes always suffices.
///
/// # Errors
/// The buffer is shorter than the encoded frame.
pub fn encode_into(frame: &[u8], encoded: &mut [u8]) -> Result<usize, EncodeError> {
    let mut length = 0;
    for byte in encode(frame) {
        *encoded.get_mut(length).ok_or(EncodeError::BufferTooShort)? = byte;
        length += 1;
    }
    Ok(length)
}

/// Encodes a frame byte by byte, including the zero delimiter: at most [`max_encoded_len`] bytes.
pub fn encode(frame: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = Some(frame);
    let groups = core::iter::from_fn(move || {
        let data = rest?;
        let run = data.iter().take(GROUP).take_while(|byte| **byte != 0).count();
        let (group, after) = data.split_at_checked(run)?;
        rest = match after.split_first() {
            None => None,
            // A full group has no implied zero.
            Some(_) if run == GROUP => Some(after),
            Some((_, after)) => Some(after),
        };
        Some(group)
    });
    groups.flat_map(|group| core::iter::once(group.len() as u8 + 1).chain(group.iter().copied())).chain([0])
}

/// Decodes a byte stream into frames of at most N bytes.
///
/// A frame that is too long or malformed is dropped and counted; decoding resumes after the next zero byte.
#[derive(Clone, Debug, Default)]
pub struct Decoder<const N: usize> {
    frame: Vec<u8, N>,
    /// Number of data bytes left in the group.
    left: u8,
    /// True if a zero is implied after the group.
    zero_implied: bool,
    invalid: bool,
    complete: bool,
    dropped: u32,
}

impl<const N: usize> Decoder<N> {
    /// Creates a decoder at the start of a frame.
    pub const fn new() -> Self {
        Self { frame: Vec::new(), left: 0, zero_implied: false, invalid: false, complete: false, dropped: 0 }
    }

    /// Decodes the next byte of the stream. Returns a frame if the byte completes one.
    pub fn push(&mut self, byte: u8) -> Option<&mut [u8]> {
        if self.complete {
            self.reset();
        }
        if byte == 0 {
            return self.finish();
        }
        if self.left > 0 {
            self.left -= 1;
            self.append(byte);
        } else {
            if self.zero_implied {
                self.append(0);
            }
            self.left = byte - 1;
            self.zero_implied = byte != 255;
        }
        None
    }

    /// Returns the number of frames dropped as too long or malformed.
    pub fn dropped(&self) -> u32 {
        self.dropped
    }

    fn finish(&mut self) -> Option<&mut [u8]> {
        let empty = self.frame.is_empty() && !self.zero_implied && self.left == 0 && !self.invalid;
        if self.invalid || self.left > 0 {
            self.dropped = self.dropped.saturating_add(1);
            self.reset();
            return None;
        }
        self.complete = true;
        if empty { None } else { Some(&mut self.frame) }
    }

    fn append(&mut self, byte: u8) {
        self.invalid |= self.frame.push(byte).is_err();
    }

    fn reset(&mut self) {
        *self = Self { dropped: self.dropped, ..Self::new() };
    }
}
