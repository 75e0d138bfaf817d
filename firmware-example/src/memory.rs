//! What the device keeps over a reset, laid out in the retained RAM.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | how often the device has started, and its complement |
//! | 8 | 2 × `Agent::SAVED_LEN` | the agent, written to the two places in turn: a reset tears one of them at the most |
//! | after | W × (2 + F) | unacknowledged summaries: length, frame with its own tag |

use fedbandit_core::Agent;

use crate::environment::D;
use crate::{FRAME, Link, WINDOW, retained};

const AGENTS: usize = 8;
const SAVED: usize = Agent::<D>::SAVED_LEN;
const OUTBOX: usize = AGENTS + 2 * SAVED;
const SLOT: usize = 2 + FRAME;

const _: () = assert!(OUTBOX + WINDOW * SLOT <= retained::LEN);

/// What was kept: how often the device has started, this start included, and the rest as bytes.
pub struct Memory {
    /// The number of starts.
    pub boot: u32,
    bytes: [u8; retained::LEN],
}

impl Memory {
    /// Looks at what the last life left, and counts this one.
    pub fn load() -> Self {
        let bytes = retained::load();
        let [b0, b1, b2, b3, c0, c1, c2, c3, ..] = bytes;
        let (before, complement) = (u32::from_le_bytes([b0, b1, b2, b3]), u32::from_le_bytes([c0, c1, c2, c3]));
        let boot = if before == !complement { before.wrapping_add(1) } else { 1 };
        retained::store(0, &boot.to_le_bytes());
        retained::store(4, &(!boot).to_le_bytes());
        Self { boot, bytes }
    }

    /// The agent as it was: the later of the two copies, if one is whole.
    pub fn agent(&self) -> Option<Agent<D>> {
        let copies = self.bytes.get(AGENTS..OUTBOX)?.chunks_exact(SAVED);
        copies.filter_map(|copy| Agent::restore(copy).ok()).max_by_key(age)
    }

    /// Hands the link the summaries that were not acknowledged. A torn one fails its tag and is left out.
    pub fn resume(&self, link: &mut Link) {
        for slot in self.bytes.get(OUTBOX..).unwrap_or_default().chunks_exact(SLOT).take(WINDOW) {
            let Some((length, frame)) = slot.split_first_chunk() else { continue };
            if let Some(frame) = frame.get(..u16::from_le_bytes(*length).into()) {
                _ = link.resume(frame);
            }
        }
    }
}

/// Keeps the agent. Copies alternate with the steps, so that the one before stays whole while this one is written.
pub fn keep_agent(agent: &Agent<D>) {
    let mut bytes = [0; SAVED];
    if agent.save(&mut bytes).is_ok() {
        let (episode, steps) = age(agent);
        retained::store(AGENTS + (episode ^ steps) as usize % 2 * SAVED, &bytes);
    }
}

fn age(agent: &Agent<D>) -> (u32, u32) {
    (agent.episode(), agent.steps())
}

/// Keeps the unacknowledged summaries; the places of others are marked empty.
pub fn keep_outbox(link: &Link) {
    let frames = link.unacknowledged().chain(core::iter::repeat(&[][..]));
    for (slot, frame) in frames.take(WINDOW).enumerate() {
        let at = OUTBOX + slot * SLOT;
        retained::store(at, &(frame.len() as u16).to_le_bytes());
        retained::store(at + 2, frame);
    }
}
