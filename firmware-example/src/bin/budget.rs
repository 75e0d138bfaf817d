//! Instructions per call, counted by SysTick under QEMU's `-icount shift=0`.
#![no_std]
#![no_main]

use core::hint::black_box;
use core::panic::PanicInfo;

use cortex_m::peripheral::{SYST, syst::SystClkSource};
use cortex_m_rt::entry;
use cortex_m_semihosting::{debug, hprintln};
use fedbandit_core::{Action, Agent, Model, Prior, Rewards};
use rand_pcg::{Pcg32, rand_core::{Rng, SeedableRng}};

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    hprintln!("panic");
    debug::exit(debug::EXIT_FAILURE);
    loop {}
}

fn ticks(f: &mut dyn FnMut()) -> u32 {
    let start = SYST::get_current();
    f();
    start.wrapping_sub(SYST::get_current()) & 0x00ff_ffff
}

fn uniform(rng: &mut Pcg32) -> f32 {
    (rng.next_u32() >> 8) as f32 / 16_777_216.0 - 0.5
}

fn measure<const D: usize, const P: usize>(per_million: u32) {
    let mut rng = Pcg32::seed_from_u64(7);
    let arms: [Action<D>; 10] = core::array::from_fn(|_| fedbandit_core::project(&Action::from_fn(|_, _| 2.0 * uniform(&mut rng) )));
    let mut agent = Agent::<D>::new(&Prior { lambda: 1.0, beta: 1.0, episode_len: 65536, rewards: Rewards::Unbounded }).unwrap();
    let theta: [f32; D] = core::array::from_fn(|_| uniform(&mut rng));
    let mut design = [0.0; P];
    let mut at = 0;
    for i in 0..D { for j in i..D { design[at] = if i == j { D as f32 } else { uniform(&mut rng) }; at += 1; } }
    let n = 100;
    let model = Model { episode: 1, episode_len: 65536, beta: 1.5, rewards: Rewards::Unbounded, theta: (&theta).into(), design: (&design).into() };
    let begin = ticks(&mut || for _ in 0..n { black_box(&mut agent).begin(black_box(&model)).unwrap() });
    let select10 = ticks(&mut || for _ in 0..n { black_box(black_box(&agent).select(black_box(&arms)).unwrap()); });
    let select5 = ticks(&mut || for _ in 0..n { black_box(black_box(&agent).select(black_box(&arms[..5])).unwrap()); });
    let record = ticks(&mut || for _ in 0..n { black_box(&mut agent).record(black_box(&arms[3]), black_box(0.5)).unwrap() });
    let per = |ticks: u32, calls: u32| (u64::from(ticks) * 1_000_000 / u64::from(per_million) / u64::from(calls)) as u32;
    hprintln!("D={} begin {} select/10 {} marginal {} record {}", D, per(begin, n), per(select10, n * 10), per(select10 - select5, n * 5), per(record, n));
}

#[entry]
fn main() -> ! {
    let mut p = cortex_m::Peripherals::take().unwrap();
    p.SYST.set_clock_source(SystClkSource::Core);
    p.SYST.set_reload(0x00ff_ffff);
    p.SYST.clear_current();
    p.SYST.enable_counter();
    let per_million = ticks(&mut || cortex_m::asm::delay(1_000_000)) / 2;
    hprintln!("ticks per million instructions {}", per_million);
    measure::<8, 36>(per_million);
    measure::<16, 136>(per_million);
    measure::<32, 528>(per_million);
    debug::exit(debug::EXIT_SUCCESS);
    loop {}
}
