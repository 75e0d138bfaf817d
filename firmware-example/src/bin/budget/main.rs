//! Measures instructions and stack bytes per call of the agent and per frame.
//!
//! Runs under QEMU with `-icount shift=0`, where one instruction takes one nanosecond. Prints `dimension quantity value` lines,
//! then `done`.
#![no_std]
#![no_main]

#[path = "../common/semihosting.rs"]
mod semihosting;
mod stack;

use core::hint::black_box;
use core::num::NonZeroU32;

use cortex_m::peripheral::SYST;
use cortex_m::peripheral::syst::SystClkSource;
use cortex_m_rt::entry;
use cortex_m_semihosting::hprintln;
use fedbandit_core::wire::{Channel, Identity, Message, max_frame_len};
use fedbandit_core::{Action, Agent, Guard, GuardedAgent, Model, Prior, Rewards, packed_len, project};
use rand_pcg::Pcg32;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// Number of calls per measurement. A clock tick, at most 63 instructions, is then less than one instruction per call, and
/// the counter's 24 bits do not overflow.
const CALLS: u32 = 200;
const ARMS: u32 = 10;

/// Number of instructions to calibrate the clock with; large against its tick.
const CALIBRATION: u32 = 100_000_000;

#[entry]
fn main() -> ! {
    let mut systick = cortex_m::Peripherals::take().unwrap().SYST;
    systick.set_clock_source(SystClkSource::Core);
    systick.set_reload(0x00ff_ffff);
    systick.clear_current();
    systick.enable_counter();
    // `delay(n)` executes n + 1 iterations of two instructions.
    let calibration = ticks(&mut || cortex_m::asm::delay(CALIBRATION / 2 - 1));
    measure::<8, { packed_len(8) }, { max_frame_len(8) }>(calibration);
    measure::<16, { packed_len(16) }, { max_frame_len(16) }>(calibration);
    measure_guard::<8, { packed_len(8) }>(calibration);
    measure_guard::<16, { packed_len(16) }>(calibration);
    // Decided at run time, so that boards with too little RAM run the same code.
    if stack::free() > 32 * 1024 {
        measure::<32, { packed_len(32) }, { max_frame_len(32) }>(calibration);
        measure_guard::<32, { packed_len(32) }>(calibration);
    }
    hprintln!("done");
    semihosting::succeed()
}

#[inline(never)]
fn measure<const D: usize, const PACKED: usize, const FRAME: usize>(calibration: u32) {
    let mut rng = Pcg32::seed_from_u64(7);
    let mut uniform = || (rng.next_u32() >> 8) as f32 / 8_388_608.0 - 1.0;
    let theta: [f32; D] = core::array::from_fn(|_| uniform());
    let mut on_diagonal = (0..D).flat_map(|i| (i..D).map(move |j| i == j));
    let design: [f32; PACKED] =
        core::array::from_fn(|_| if on_diagonal.next() == Some(true) { 2.0 * D as f32 } else { uniform() });
    let decision_set: [Action<D>; ARMS as usize] =
        core::array::from_fn(|_| project(&Action::from_fn(|_, _| uniform())));
    let prior = Prior::new(1.0, 1.0, 65_536, Rewards::Unbounded);
    let mut agent = Agent::<D>::new(&prior).unwrap();
    let identity = Identity::new(7, 1, D as u8, [0x5a; 32]);
    let (mut device, mut controller) = (Channel::device(identity.clone(), 1), Channel::controller(identity, 1, 0));
    let mut frame = [0; FRAME];
    hprintln!("{} state_bytes {}", D, size_of::<Agent<D>>());

    let instructions = |[quantity, _]: [&str; 2], calls: u32, work: &mut dyn FnMut()| {
        let ticks = ticks(&mut || (0..CALLS).for_each(|_| work()));
        let instructions =
            u64::from(ticks) * u64::from(CALIBRATION) / u64::from(calibration) / u64::from(CALLS * calls);
        hprintln!("{} {} {}", D, quantity, instructions);
    };
    let stack = |[_, quantity]: [&str; 2], _: u32, work: &mut dyn FnMut()| {
        hprintln!("{} {} {}", D, quantity, stack::depth(work).unwrap());
    };
    // The same calls for both reports: a second call site could change what the compiler inlines. Each report runs its own
    // episode, so that the stack includes the first record, which clears the sums.
    for report in [&instructions as &dyn Fn([&str; 2], u32, &mut dyn FnMut()), &stack] {
        let model = Model::new(agent.episode(), prior.episode_len, 1.5, prior.rewards, &theta, &design);
        let length = controller.encode(&Message::Model(model), &mut frame).unwrap();
        report(["decode", "stack_decode"], 1, &mut || {
            black_box(black_box(&device).decode(black_box(&mut frame[..length])).unwrap());
        });
        report(["begin", "stack_begin"], 1, &mut || black_box(&mut agent).begin(black_box(&model)).unwrap());
        report(["select_per_arm", "stack_select"], ARMS, &mut || {
            black_box(black_box(&agent).select(black_box(&decision_set)).unwrap());
        });
        report(["record", "stack_record"], 1, &mut || {
            black_box(&mut agent).record(black_box(&decision_set[3]), black_box(0.5)).unwrap();
        });
        let summary = agent.finish();
        report(["encode", "stack_encode"], 1, &mut || {
            black_box(black_box(&mut device).encode_summary(black_box(&summary), black_box(&mut frame)).unwrap());
        });
    }
}

/// Number of calls per measurement of the guard, whose calls take up to 40 million instructions.
const GUARD_CALLS: u32 = 20;

/// Measures the guard: the fusion at the start of an episode, and the test at its end, here with one recorded step.
#[inline(never)]
fn measure_guard<const D: usize, const PACKED: usize>(calibration: u32) {
    let mut rng = Pcg32::seed_from_u64(8);
    let mut uniform = || (rng.next_u32() >> 8) as f32 / 8_388_608.0 - 1.0;
    let prior = Prior::new(1.0, 1.0, 65_536, Rewards::Unbounded);
    // A half-life adds to the cost of `finish`.
    let guard = Guard { noise: 0.5, theta_norm: 1.0, max_episode_len: 65_536, half_life: NonZeroU32::new(4096) };
    let mut agent = GuardedAgent::<D, PACKED>::new(&prior, guard).unwrap();
    hprintln!("{} guard_bytes {}", D, size_of::<GuardedAgent<D, PACKED>>() - size_of::<Agent<D>>());
    let mut action = Action::<D>::zeros();
    for _ in 0..4 * D {
        action = project(&Action::<D>::from_fn(|_, _| uniform()));
        agent.record(&action, 0.5 * action[0]).unwrap();
    }
    agent.finish();
    let mut theta = [0.0; D];
    theta[0] = 0.5;
    let mut on_diagonal = (0..D).flat_map(|i| (i..D).map(move |j| i == j));
    let design: [f32; PACKED] = core::array::from_fn(|_| if on_diagonal.next() == Some(true) { 8.0 } else { 0.0 });
    let model = Model::new(agent.episode(), prior.episode_len, 1.0, prior.rewards, &theta, &design);
    agent.begin(&model).unwrap();
    assert!(agent.follows_controller());
    let instructions = |quantity: &str, work: &mut dyn FnMut()| {
        let ticks = ticks(&mut || (0..GUARD_CALLS).for_each(|_| work()));
        let instructions = u64::from(ticks) * u64::from(CALIBRATION) / u64::from(calibration) / u64::from(GUARD_CALLS);
        hprintln!("{} {} {}", D, quantity, instructions);
    };
    instructions("guarded_begin", &mut || black_box(&mut agent).begin(black_box(&model)).unwrap());
    hprintln!("{} stack_guarded_begin {}", D, stack::depth(&mut || agent.begin(black_box(&model)).unwrap()).unwrap());
    instructions("guarded_finish", &mut || {
        black_box(&mut agent).record(black_box(&action), black_box(0.1)).unwrap();
        black_box(black_box(&mut agent).finish());
    });
}

fn ticks(work: &mut dyn FnMut()) -> u32 {
    let start = SYST::get_current();
    work();
    start.wrapping_sub(SYST::get_current()) & 0x00ff_ffff
}
