//! State that survives a reset, and its layout in retained RAM.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | boot counter and its complement |
//! | 8 | 2 × `Agent::SAVED_LEN` | agent, in two slots written alternately: a reset corrupts at most one |
//! | then | W × (2 + F) | unacknowledged summaries: length, frame with its own tag |

use fedbandit_core::Agent;
use fedbandit_core::session::Session;

use crate::environment::D;
use crate::{FRAME, WINDOW, retained_ram};

const AGENTS: usize = 8;
const AGENT_LEN: usize = Agent::<D>::SAVED_LEN;
const OUTBOX: usize = AGENTS + 2 * AGENT_LEN;
const SLOT_LEN: usize = 2 + FRAME;

const _: () = assert!(OUTBOX + WINDOW * SLOT_LEN <= retained_ram::LEN);

/// Copy of the retained RAM at start.
pub struct SavedState {
    /// Boot counter, including this start.
    pub boot: u32,
    bytes: [u8; retained_ram::LEN],
}

impl SavedState {
    /// Loads the state saved before the reset and increments the boot counter.
    pub fn load() -> Self {
        let bytes = retained_ram::load();
        let [b0, b1, b2, b3, c0, c1, c2, c3, ..] = bytes;
        let (last, complement) = (u32::from_le_bytes([b0, b1, b2, b3]), u32::from_le_bytes([c0, c1, c2, c3]));
        let boot = if last == !complement { last.wrapping_add(1) } else { 1 };
        retained_ram::store(0, &boot.to_le_bytes());
        retained_ram::store(4, &(!boot).to_le_bytes());
        Self { boot, bytes }
    }

    /// Returns the saved agent: the newer of the valid copies.
    pub fn agent(&self) -> Option<Agent<D>> {
        let copies = self.bytes.get(AGENTS..OUTBOX)?.chunks_exact(AGENT_LEN);
        copies.filter_map(|copy| Agent::restore(copy).ok()).max_by_key(age)
    }

    /// Queues the unacknowledged summaries. A corrupt one fails its tag check and is skipped.
    pub fn resume(&self, session: &mut Session<FRAME, WINDOW>) {
        for slot in self.bytes.get(OUTBOX..).unwrap_or_default().chunks_exact(SLOT_LEN).take(WINDOW) {
            let Some((length, frame)) = slot.split_first_chunk() else { continue };
            if let Some(frame) = frame.get(..u16::from_le_bytes(*length).into()) {
                _ = session.resume(frame);
            }
        }
    }
}

/// Saves the agent. The slots alternate with the steps, so the previous copy stays valid during the write.
pub fn save_agent(agent: &Agent<D>) {
    let mut bytes = [0; AGENT_LEN];
    if agent.save(&mut bytes).is_ok() {
        let (episode, steps) = age(agent);
        retained_ram::store(AGENTS + (episode ^ steps) as usize % 2 * AGENT_LEN, &bytes);
    }
}

fn age(agent: &Agent<D>) -> (u32, u32) {
    (agent.episode(), agent.steps())
}

/// Saves the unacknowledged summaries and marks the remaining slots as empty.
pub fn save_outbox(session: &Session<FRAME, WINDOW>) {
    let frames = session.unacknowledged().chain(core::iter::repeat(&[][..]));
    for (slot, frame) in frames.take(WINDOW).enumerate() {
        let at = OUTBOX + slot * SLOT_LEN;
        retained_ram::store(at, &(frame.len() as u16).to_le_bytes());
        retained_ram::store(at + 2, frame);
    }
}
