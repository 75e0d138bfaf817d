//! Serialized state of an agent, to survive sleep and reset.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | `FBAG` |
//! | 4 | 1 | layout version, 2 |
//! | 5 | 1 | rewards: 0 unbounded, 1 clipped |
//! | 6 | 2 | D |
//! | 8 | 4 | episode |
//! | 12 | 4 | episode length L |
//! | 16 | 4 | steps recorded |
//! | 20 | 4 | β |
//! | 24 | 4 | Σr |
//! | 28 | 4D | θ |
//! | | 4D | diagonal of the inverse factor |
//! | | 4D² | row by row: the inverse factor left of the diagonal, U from the diagonal on |
//! | | 4D | u |
//! | | 4 | CRC-32 (IEEE 802.3) of all preceding bytes |
//!
//! All numbers are little-endian. Saving the factor instead of Λ makes a restored agent continue bit for bit.
//!
//! A guarded agent is saved as its agent, followed by
//!
//! | bytes | field |
//! |---|---|
//! | 4 | ℓ |
//! | 4 | number of steps for which models are ignored |
//! | 1 | alarms |
//! | 1 | 1 if the running episode uses a fused model, else 0 |
//! | 2 | 0 |
//! | 4D(D+1)/2 | V packed |
//! | 4D | v |
//! | 4 | CRC-32 of these bytes |

use crate::agent::Agent;
use crate::error::StateError;
use crate::guard::{Guard, GuardedAgent};
use crate::model::Rewards;

const MAGIC: [u8; 4] = *b"FBAG";
const VERSION: u8 = 2;
const HEADER_LEN: usize = 28;
const CHECKSUM_LEN: usize = 4;

impl<const D: usize> Agent<D> {
    /// Number of bytes that [`save`](Self::save) writes: 4·(D² + 3D) + 32.
    pub const SAVED_LEN: usize = HEADER_LEN + 4 * (D * D + 3 * D) + CHECKSUM_LEN;

    /// Writes the complete state to a buffer.
    ///
    /// ```
    /// # use fedbandit_core::{Agent, Prior, Rewards};
    /// # let agent = Agent::<2>::new(&Prior::new(1.0, 1.0, 8, Rewards::Unbounded)).unwrap();
    /// let mut flash = [0; Agent::<2>::SAVED_LEN];
    /// agent.save(&mut flash)?;
    /// assert_eq!(Agent::restore(&flash)?, agent);
    /// # Ok::<(), fedbandit_core::StateError>(())
    /// ```
    ///
    /// # Errors
    /// The buffer's length is not [`SAVED_LEN`](Self::SAVED_LEN).
    pub fn save(&self, bytes: &mut [u8]) -> Result<(), StateError> {
        let length = StateError::Length { expected: Self::SAVED_LEN, found: bytes.len() };
        if bytes.len() != Self::SAVED_LEN {
            return Err(length);
        }
        let Some((body, checksum)) = bytes.split_last_chunk_mut::<CHECKSUM_LEN>() else { return Err(length) };
        let Some((header, words)) = body.split_first_chunk_mut::<HEADER_LEN>() else { return Err(length) };
        let [d0, d1, ..] = (D as u32).to_le_bytes();
        let [m0, m1, m2, m3] = MAGIC;
        let start = [m0, m1, m2, m3, VERSION, u8::from(self.rewards == Rewards::Clipped), d0, d1];
        let numbers = [self.episode, self.episode_len, self.steps, self.beta.to_bits(), self.reward_sum.to_bits()];
        for (byte, value) in
            header.iter_mut().zip(start.into_iter().chain(numbers.into_iter().flat_map(u32::to_le_bytes)))
        {
            *byte = value;
        }
        for (word, value) in words.as_chunks_mut().0.iter_mut().zip(self.values()) {
            *word = value.to_le_bytes();
        }
        *checksum = crc32(body).to_le_bytes();
        Ok(())
    }

    /// Restores an agent from the bytes written by [`save`](Self::save).
    ///
    /// # Errors
    /// The bytes are not a saved agent of this dimension and layout version, or they are corrupt.
    pub fn restore(bytes: &[u8]) -> Result<Self, StateError> {
        let length = StateError::Length { expected: Self::SAVED_LEN, found: bytes.len() };
        let Some((body, checksum)) = bytes.split_last_chunk::<CHECKSUM_LEN>() else { return Err(length) };
        let Some((header, words)) = body.split_first_chunk::<HEADER_LEN>() else { return Err(length) };
        let [m0, m1, m2, m3, version, rewards, d0, d1, numbers @ ..] = header;
        if [*m0, *m1, *m2, *m3] != MAGIC {
            return Err(StateError::NotASavedAgent);
        }
        if *version != VERSION {
            return Err(StateError::Version(*version));
        }
        let dimension = u16::from_le_bytes([*d0, *d1]);
        if usize::from(dimension) != D {
            return Err(StateError::Dimension(dimension));
        }
        if bytes.len() != Self::SAVED_LEN {
            return Err(length);
        }
        if u32::from_le_bytes(*checksum) != crc32(body) {
            return Err(StateError::Corrupt);
        }
        let &[episode, episode_len, steps, beta, reward_sum] = numbers.as_chunks::<4>().0 else {
            return Err(length);
        };
        let mut agent = Self {
            theta: [0.0; D],
            square: [[0.0; D]; D],
            diagonal: [0.0; D],
            feature_sum: [0.0; D],
            beta: f32::from_le_bytes(beta),
            episode: u32::from_le_bytes(episode),
            episode_len: u32::from_le_bytes(episode_len),
            steps: u32::from_le_bytes(steps),
            reward_sum: f32::from_le_bytes(reward_sum),
            rewards: if *rewards == 0 { Rewards::Unbounded } else { Rewards::Clipped },
        };
        for (value, word) in agent.values_mut().zip(words.as_chunks().0) {
            *value = f32::from_le_bytes(*word);
        }
        Ok(agent)
    }

    fn values(&self) -> impl Iterator<Item = f32> {
        let rows = self.square.iter().flatten();
        self.theta.iter().chain(&self.diagonal).chain(rows).chain(&self.feature_sum).copied()
    }

    fn values_mut(&mut self) -> impl Iterator<Item = &mut f32> {
        let rows = self.square.iter_mut().flatten();
        self.theta.iter_mut().chain(&mut self.diagonal).chain(rows).chain(&mut self.feature_sum)
    }
}

impl<const D: usize, const T: usize> GuardedAgent<D, T> {
    /// Number of bytes that [`save`](Self::save) writes: those of the agent and 4·(T + D) + 16.
    pub const SAVED_LEN: usize = Agent::<D>::SAVED_LEN + 12 + 4 * (T + D) + CHECKSUM_LEN;

    /// Writes the complete state to a buffer, except the constants of the guard.
    ///
    /// # Errors
    /// The buffer's length is not [`SAVED_LEN`](Self::SAVED_LEN).
    pub fn save(&self, bytes: &mut [u8]) -> Result<(), StateError> {
        let length = StateError::Length { expected: Self::SAVED_LEN, found: bytes.len() };
        let (agent, own) = bytes.split_at_mut_checked(Agent::<D>::SAVED_LEN).ok_or(length)?;
        let (body, checksum) = own.split_last_chunk_mut::<CHECKSUM_LEN>().ok_or(length)?;
        let (header, words) = body.split_first_chunk_mut::<12>().ok_or(length)?;
        if words.len() != 4 * (T + D) {
            return Err(length);
        }
        self.agent.save(agent)?;
        let ([e0, e1, e2, e3], [f0, f1, f2, f3]) = (self.excess.to_le_bytes(), self.fallback.to_le_bytes());
        *header = [e0, e1, e2, e3, f0, f1, f2, f3, self.alarms, self.follows.into(), 0, 0];
        for (word, value) in words.as_chunks_mut().0.iter_mut().zip(self.gram.iter().chain(&self.feature_sum)) {
            *word = value.to_le_bytes();
        }
        *checksum = crc32(body).to_le_bytes();
        Ok(())
    }

    /// Restores an agent from the bytes written by [`save`](Self::save), with the constants of its guard.
    ///
    /// # Errors
    /// The bytes are not a saved agent of this dimension and layout version, they are corrupt, or a constant is not positive.
    pub fn restore(bytes: &[u8], guard: Guard) -> Result<Self, StateError> {
        let length = StateError::Length { expected: Self::SAVED_LEN, found: bytes.len() };
        let (agent, own) = bytes.split_at_checked(Agent::<D>::SAVED_LEN).ok_or(length)?;
        let (body, checksum) = own.split_last_chunk::<CHECKSUM_LEN>().ok_or(length)?;
        let (header, words) = body.split_first_chunk::<12>().ok_or(length)?;
        if words.len() != 4 * (T + D) {
            return Err(length);
        }
        if u32::from_le_bytes(*checksum) != crc32(body) || !guard.is_valid() {
            return Err(StateError::Corrupt);
        }
        let [e0, e1, e2, e3, f0, f1, f2, f3, alarms, follows, ..] = *header;
        let mut restored = Self::with(Agent::restore(agent)?, guard);
        restored.excess = f32::from_le_bytes([e0, e1, e2, e3]);
        restored.fallback = u32::from_le_bytes([f0, f1, f2, f3]);
        (restored.alarms, restored.follows) = (alarms, follows != 0);
        let values = restored.gram.iter_mut().chain(&mut restored.feature_sum);
        for (value, word) in values.zip(words.as_chunks().0) {
            *value = f32::from_le_bytes(*word);
        }
        Ok(restored)
    }
}

/// CRC-32 of IEEE 802.3. Bit by bit for small code; saving is rare.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests {
    /// Check value of CRC-32/ISO-HDLC from the catalogue of parametrised CRC algorithms.
    #[test]
    fn crc32_matches_published_check_value() {
        assert_eq!(super::crc32(b"123456789"), 0xcbf4_3926);
    }
}
