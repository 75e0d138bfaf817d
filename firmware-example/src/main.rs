//! A complete edge device: joins a controller over its serial line, learns with the fleet, survives resets and a lost link.
//!
//! The loop: take in what arrived, send what is due, live one step of the episode. Whatever must outlive a reset is kept as it
//! changes.
#![no_std]
#![no_main]

mod board;
mod clock;
mod environment;
mod memory;
mod mmio;
mod retained;
mod serial;

use core::panic::PanicInfo;

use cortex_m::asm::wfi;
use cortex_m_rt::entry;
use cortex_m_semihosting::debug;
use defmt::{error, info, warn};
#[cfg(feature = "rtt")]
use defmt_rtt as _;
#[cfg(feature = "semihosting")]
use defmt_semihosting as _;
use fedbandit_core::session::{Event, Session};
use fedbandit_core::wire::{Identity, cobs, max_frame_len};
use fedbandit_core::{Agent, Prior, Rewards};
use rand_pcg::Pcg32;

use crate::environment::{D, Environment};

/// The longest frame.
const FRAME: usize = max_frame_len(D);

/// Summaries that wait for an acknowledgement at the most.
const WINDOW: usize = 4;

/// How long to wait for a new model before the next episode starts with the last good one, in milliseconds: longer than a
/// controller's deadline, which is 60 s by default. For tests it is built with the variable `PATIENCE`.
const PATIENCE: u64 = match option_env!("PATIENCE") {
    None => 90_000,
    Some(text) => match u64::from_str_radix(text, 10) {
        Ok(patience) => patience,
        Err(_) => panic!("PATIENCE is a number of milliseconds"),
    },
};

/// Used until the first model, which a device waits for.
const PRIOR: Prior = Prior { lambda: 1.0, beta: 1.0, episode_len: 64, rewards: Rewards::Clipped };

type Link = Session<FRAME, WINDOW>;

struct Device {
    agent: Agent<D>,
    link: Link,
    environment: Environment,
    decoder: cobs::Decoder<FRAME>,
    /// For the jitter of repeated frames.
    rng: Pcg32,
    /// Whether the agent ever had a model.
    joined: bool,
    /// When the running episode starts with the last good model, if no new one comes.
    deadline: u64,
}

#[entry]
fn main() -> ! {
    let mut device = start();
    loop {
        device.take_in();
        device.send_what_is_due();
        device.live();
    }
}

/// Sets up the board and picks up what the last life left.
// Apart from `main`, so that what only the start needs leaves the stack.
#[inline(never)]
fn start() -> Device {
    board::init();
    if let Some(peripherals) = cortex_m::Peripherals::take() {
        board::start_timer(peripherals.SYST);
    }
    let identity = Identity::from_blob(&mmio::flash(board::IDENTITY));
    let Some(identity) = identity.filter(|identity| usize::from(identity.dimension) == D) else {
        error!("no identity for dimension {=usize} is flashed at {=usize:#x}", D, board::IDENTITY);
        stop()
    };
    let memory = memory::Memory::load();
    info!("agent {=u32} of run {=u32}, start {=u32}", identity.agent, identity.run, memory.boot);
    // What the line carried while the board was starting ends here.
    serial::send([0].into_iter());
    Device::new(identity, &memory)
}

impl Device {
    fn new(identity: Identity, memory: &memory::Memory) -> Self {
        let environment = Environment::new(identity.agent, memory.boot);
        let rng = Pcg32::new(identity.agent.into(), !u64::from(memory.boot));
        let mut link = Link::new(identity, memory.boot);
        memory.resume(&mut link);
        let before = memory.agent();
        let joined = before.is_some();
        if let Some(agent) = &before {
            info!("back in episode {=u32} with {=u32} steps", agent.episode(), agent.steps());
        }
        let Some(mut agent) = before.or_else(|| Agent::new(&PRIOR).ok()) else { stop() };
        // The summary was kept, but the reset came before the agent was: its episode is over all the same.
        while link.newest().is_some_and(|newest| newest >= agent.episode()) {
            agent.finish();
        }
        Self { agent, link, environment, decoder: cobs::Decoder::new(), rng, joined, deadline: clock::now() + PATIENCE }
    }

    fn take_in(&mut self) {
        while let Some(byte) = serial::receive() {
            let Some(frame) = self.decoder.push(byte) else { continue };
            match self.link.handle(frame, &mut self.agent, clock::now()) {
                Ok(Event::Model { episode }) => {
                    self.joined = true;
                    memory::keep_agent(&self.agent);
                    info!("model of episode {=u32}", episode);
                }
                Ok(Event::ModelRefused(reason)) => warn!("model refused: {}", reason),
                Ok(Event::Ignored) => {}
                Ok(event) => {
                    info!("{}", event);
                    memory::keep_outbox(&self.link);
                }
                Err(reason) => warn!("frame dropped: {}", reason),
            }
        }
    }

    fn send_what_is_due(&mut self) {
        let mut frame = [0; FRAME];
        let length = self.link.poll(self.agent.episode(), clock::now(), &mut self.rng, &mut frame);
        if let Some(frame) = length.and_then(|length| frame.get(..length)) {
            serial::send(cobs::encode(frame));
        }
    }

    /// One step of the episode, or a rest if there is no model to go by.
    fn live(&mut self) {
        if self.link.wants_model() && !(self.joined && clock::now() >= self.deadline) {
            wfi();
            return;
        }
        let decision_set = self.environment.decision_set();
        let action = self.agent.select(&decision_set).ok().and_then(|choice| decision_set.get(choice.index));
        if let Some(action) = action {
            let reward = self.environment.reward(action);
            if self.agent.record(action, reward).is_err() {
                warn!("a step was not recorded");
            }
        }
        if self.agent.steps() >= self.agent.episode_len() {
            let summary = self.agent.finish();
            info!("episode {=u32} is over", summary.episode());
            self.link.submit(&summary, clock::now());
            memory::keep_outbox(&self.link);
            self.deadline = clock::now() + PATIENCE;
        }
        memory::keep_agent(&self.agent);
        if self.agent.steps() == self.agent.episode_len() / 2 {
            info!("half of episode {=u32} is recorded", self.agent.episode());
        }
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    error!("{}", defmt::Display2Format(info));
    stop()
}

/// Ends the program under QEMU; on hardware, where nobody listens, waits for the watchdog or the reset button.
fn stop() -> ! {
    if cfg!(feature = "semihosting") {
        debug::exit(debug::EXIT_FAILURE);
    }
    loop {
        wfi();
    }
}
