//! State that survives a reset, and its layout in retained RAM.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | boot counter and its complement |
//! | 8 | 8 | run and its complement |
//! | 16 | 2 × `Agent::SAVED_LEN` | agent, in two slots written alternately: a reset corrupts at most one |
//! | then | W × (2 + F) | unacknowledged summaries: length, frame with its own tag |

use fedbandit_core::Agent;
use fedbandit_core::session::Session;

use crate::environment::D;
use crate::{FRAME, WINDOW, retained_ram};

const BOOT: usize = 0;
const RUN: usize = 8;
const AGENTS: usize = 16;
const AGENT_LEN: usize = Agent::<D>::SAVED_LEN;
const OUTBOX: usize = AGENTS + 2 * AGENT_LEN;
const SLOT_LEN: usize = 2 + FRAME;

const _: () = assert!(OUTBOX + WINDOW * SLOT_LEN <= retained_ram::LEN);

/// Copy of the retained RAM at start.
pub struct SavedState {
    /// Boot counter, including this start.
    pub boot: u32,
    /// The device's run; 0 if unknown.
    pub run: u32,
    bytes: [u8; retained_ram::LEN],
}

impl SavedState {
    /// Loads the state saved before the reset and increments the boot counter.
    pub fn load() -> Self {
        let bytes = retained_ram::load();
        let boot = number_at(&bytes, BOOT).map_or(1, |last| last.wrapping_add(1));
        save_number(BOOT, boot);
        Self { boot, run: number_at(&bytes, RUN).unwrap_or_default(), bytes }
    }

    /// Returns the saved agent: the newer of the valid copies.
    pub fn agent(&self) -> Option<Agent<D>> {
        let copies = self.bytes.get(AGENTS..OUTBOX)?.chunks_exact(AGENT_LEN);
        copies.filter_map(|copy| Agent::restore(copy).ok()).max_by_key(age)
    }

    /// Returns to the run and queues its unacknowledged summaries. A corrupt one fails its tag check and is skipped.
    pub fn resume(&self, session: &mut Session<D, FRAME, WINDOW>) {
        session.resume_run(self.run);
        for slot in self.bytes.get(OUTBOX..).unwrap_or_default().chunks_exact(SLOT_LEN).take(WINDOW) {
            let Some((length, frame)) = slot.split_first_chunk() else { continue };
            if let Some(frame) = frame.get(..u16::from_le_bytes(*length).into()) {
                _ = session.resume(frame);
            }
        }
    }
}

/// Reads a number saved with its complement; `None` if they do not match.
fn number_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let [number, complement, ..] = bytes.get(offset..)?.as_chunks().0 else { return None };
    let number = u32::from_le_bytes(*number);
    (number == !u32::from_le_bytes(*complement)).then_some(number)
}

fn save_number(offset: usize, number: u32) {
    retained_ram::store(offset, &number.to_le_bytes());
    retained_ram::store(offset + 4, &(!number).to_le_bytes());
}

/// Saves the run.
pub fn save_run(run: u32) {
    save_number(RUN, run);
}

/// Saves the agent after a step. The slots alternate with the steps, so the previous copy stays valid during the write.
pub fn save_agent(agent: &Agent<D>) {
    let (episode, steps) = age(agent);
    save_agent_to(&[(episode ^ steps) as usize % 2], agent);
}

/// Saves the agent to both slots, one after the other. For an agent that may have returned to an earlier episode: the outdated
/// copy would look newer.
pub fn replace_agent(agent: &Agent<D>) {
    save_agent_to(&[0, 1], agent);
}

fn save_agent_to(slots: &[usize], agent: &Agent<D>) {
    let mut bytes = [0; AGENT_LEN];
    if agent.save(&mut bytes).is_ok() {
        slots.iter().for_each(|slot| retained_ram::store(AGENTS + slot * AGENT_LEN, &bytes));
    }
}

fn age(agent: &Agent<D>) -> (u32, u32) {
    (agent.episode(), agent.steps())
}

/// Saves the unacknowledged summaries and marks the remaining slots as empty.
pub fn save_outbox(session: &Session<D, FRAME, WINDOW>) {
    let frames = session.unacknowledged().chain(core::iter::repeat(&[][..]));
    for (slot, frame) in frames.take(WINDOW).enumerate() {
        let at = OUTBOX + slot * SLOT_LEN;
        retained_ram::store(at, &(frame.len() as u16).to_le_bytes());
        retained_ram::store(at + 2, frame);
    }
}
