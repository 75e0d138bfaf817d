//! All calls of an agent of dimension `$D`. The difference in size to `agent_size_baseline` is the agent's flash usage.
#![no_std]
#![no_main]

use core::hint::black_box;
use core::panic::PanicInfo;

use cortex_m_rt::entry;
use fedbandit_core::{Action, Agent, Model, Prior, Rewards, Values};

const D: usize = match usize::from_str_radix(env!("D"), 10) {
    Ok(dimension) => dimension,
    Err(_) => panic!("environment variable D must be the dimension"),
};

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {}
}

#[entry]
fn main() -> ! {
    let prior = black_box(Prior::new(1.0, 1.0, 8, Rewards::Unbounded));
    let mut flash = [0_u8; Agent::<D>::SAVED_LEN];
    let Ok(mut agent) = Agent::<D>::new(&prior) else { loop {} };
    let empty = Values::Wire(&[]);
    loop {
        let model = black_box(Model::new(1, 8, 1.0, Rewards::Clipped, empty, empty));
        _ = black_box(agent.begin(&model));
        let decision_set: &[Action<D>] = black_box(&[]);
        if let Some(action) = agent.select(decision_set).ok().and_then(|choice| decision_set.get(choice.index)) {
            _ = black_box(agent.record(action, black_box(0.5)));
        }
        _ = black_box(agent.save(black_box(&mut flash)));
        if let Ok(restored) = Agent::restore(black_box(&flash)) {
            agent = restored;
        }
        _ = black_box(agent.finish());
    }
}
