//! Empirical privacy audit: lower bounds on the privacy loss from many runs.
//!
//! *Setup.* Two runs differ in one message, at the extreme pair that reaches Δ. An observer of all releases guesses
//! which run it was, by a statistic and a threshold that was chosen on separate runs.
//!
//! *Bound.* If the releases are as private as one Gaussian with Δ/σ = g, then for *every* guess
//!
//! Φ⁻¹(1 − FPR) − Φ⁻¹(FNR) ≤ g
//!
//! (Dong, Roth and Su, *Gaussian Differential Privacy*). The guarantee is g = √(2ρ). Clopper–Pearson bounds on both
//! rates give a lower bound on the left-hand side. If that exceeds g, the guarantee is violated. Comparing μ instead
//! would be less sharp: the conversion from ρ to (μ, ν) has slack that can hide an error of a few percent.
//!
//! *False alarms.* Each bound on a rate fails with probability 5·10⁻⁹, and fewer than a hundred pairs are checked. A
//! correct mechanism therefore fails with probability below 10⁻⁶. Seeds are fixed as well.

use std::f64::consts::{FRAC_1_SQRT_2, PI, SQRT_2};

use crate::normal;
use crate::random::Random;
use fedbandit::aggregate::{Aggregator, GeometricMedian, Groups, Mean, Tolerance};
use fedbandit::algorithm::{AgentId, Controller, ControllerConfig, Episodes, Level, PaperRule};
use fedbandit::math::symmetric;
use fedbandit::privacy::calibration::{Blt, Budget, Mechanism, Noise, sensitivity};
use fedbandit::privacy::{Plan, Private, Seed};
use fedbandit_core::Model;
use nalgebra::{DMatrix, DVector};
use rayon::prelude::*;

const EPISODES: u32 = 8;
const RELEASES: usize = EPISODES as usize - 1;
const EPISODE_LEN: u32 = 64;
const DIMENSION: usize = 2;
/// D(D + 1)/2 + D.
const COORDINATES: usize = 5;
/// μ = 8 makes g large and its relative error small.
const MU: f64 = 8.0;
const NU: f64 = 1e-6;
const MECHANISMS: [Mechanism; 3] = [Mechanism::Tree, Mechanism::Honaker, Mechanism::Blt];

/// Failure probability of one bound on one rate.
const ALPHA: f64 = 5e-9;

/// The guaranteed g = √(2ρ).
fn guaranteed() -> f64 {
    (2.0 * Budget::new(MU, NU).unwrap().rho()).sqrt()
}

// --- audit target ----------------------------------------------------------------------------------------------------

/// Mechanism that takes messages and releases sums.
trait AuditTarget: Sync {
    /// Returns all releases an observer sees, each with the number k of episodes it covers.
    ///
    /// A restart may show some of them twice.
    fn observe(&self, stream: &Stream, run: u64) -> Vec<(usize, [f64; COORDINATES])>;

    fn agents(&self) -> usize {
        1
    }

    fn level(&self) -> Level {
        Level::Strict
    }
}

/// Packed triangle of U, and u.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Message([f64; 3], [f64; 2]);

impl Message {
    const MISSING: Self = Self([0.0; 3], [0.0; 2]);

    /// Message of L steps with the same action, given by its angle, and the same reward.
    fn constant(angle: f64, reward: f64) -> Self {
        let (length, (y, x)) = (f64::from(EPISODE_LEN), angle.sin_cos());
        Self([x * x, x * y, y * y].map(|value| length * value), [x, y].map(|value| length * reward * value))
    }

    fn vector(&self) -> [f64; COORDINATES] {
        let Self([a, b, c], [x, y]) = *self;
        [a, SQRT_2 * b, c, x, y]
    }
}

/// Messages by episode, then by agent.
type Stream = Vec<Vec<Message>>;

/// Pair of streams that differ in one message.
struct Neighbours {
    streams: [Stream; 2],
    /// Unit vector from one message to the other.
    direction: [f64; COORDINATES],
}

impl Neighbours {
    /// Streams that differ in agent 0's message of an episode, counted from 1. All other messages are `others`.
    fn new(agents: usize, episode: usize, pair: [Message; 2], others: Message) -> Self {
        let streams = pair.map(|message| {
            let mut stream = vec![vec![others; agents]; RELEASES];
            stream[episode - 1][0] = message;
            stream
        });
        let [a, b] = pair.map(|message| DVector::from_row_slice(&message.vector()));
        Self { streams, direction: (b - a).normalize().as_slice().try_into().unwrap() }
    }

    /// Pair at distance Δ: constant actions at 120° to each other, or a message and its negative where admitted.
    fn extreme(level: Level, agents: usize, episode: usize) -> Self {
        let message = Message::constant(0.0, 1.0);
        let other = match level {
            Level::Strict | Level::Drop => Message::constant(2.0 * PI / 3.0, 1.0),
            Level::Paper => Message(message.0.map(|value| -value), message.1.map(|value| -value)),
        };
        Self::new(agents, episode, [message, other], Message::constant(1.0, 0.5))
    }

    /// Pair of which one message equals all others.
    fn repeated(agents: usize, episode: usize) -> Self {
        let others = Message::constant(1.0, 0.5);
        Self::new(agents, episode, [others, Message::constant(1.0 + PI, 1.0)], others)
    }

    /// Pair of a message and a missing one; the first equals all others.
    fn missing(agents: usize, episode: usize) -> Self {
        let message = Message::constant(0.0, 1.0);
        Self::new(agents, episode, [message, Message::MISSING], message)
    }
}

// --- audit -----------------------------------------------------------------------------------------------------------

/// Weighted sum of the releases, projected on the direction between the two messages.
struct Statistic {
    name: &'static str,
    weights: DVector<f64>,
}

impl Statistic {
    /// Likelihood ratio of releases with noise Bz, for a shift of all releases that contain the message.
    fn likelihood_ratio(mechanism: Mechanism, episode: usize) -> Self {
        Self { name: "likelihood ratio", weights: inverse_covariance(mechanism) * shift(episode) }
    }

    /// Averages over all releases, to expose noise that is drawn anew for each.
    fn sum() -> Self {
        Self { name: "sum", weights: DVector::repeat(RELEASES, 1.0) }
    }

    /// Subtracts consecutive releases, to expose noise that both share.
    fn difference(episode: usize) -> Self {
        Self { name: "difference", weights: shift_from(episode, episode) - shift_from(episode - 1, episode - 1) }
    }

    /// Subtracts the first leaf from the third, to expose noise shared by equal leaves.
    fn repetition() -> Self {
        Self { name: "repetition", weights: shift_from(3, 3) - shift_from(1, 2) }
    }

    fn value(&self, seen: &[(usize, [f64; COORDINATES])], direction: &[f64; COORDINATES]) -> f64 {
        (1..=RELEASES)
            .map(|k| {
                let projections: Vec<f64> = seen
                    .iter()
                    .filter(|(of, _)| *of == k)
                    .map(|(_, values)| values.iter().zip(direction).map(|(value, e)| value * e).sum())
                    .collect();
                self.weights[k - 1] * projections.iter().sum::<f64>() / projections.len() as f64
            })
            .sum()
    }
}

/// Indicator of the releases that contain a message.
fn shift(episode: usize) -> DVector<f64> {
    shift_from(episode, RELEASES)
}

/// Indicator of releases `first` to `last`.
fn shift_from(first: usize, last: usize) -> DVector<f64> {
    DVector::from_fn(RELEASES, |i, _| f64::from((first..=last).contains(&(i + 1))))
}

/// Bounds on the g of one statistic.
#[derive(Clone, Copy, Debug)]
struct Interval {
    low: f64,
    high: f64,
}

/// Estimates g from `runs` runs per side, plus a quarter as many to choose the threshold.
fn audit(target: &dyn AuditTarget, neighbours: &Neighbours, statistic: &Statistic, runs: u64) -> Interval {
    let values = |side: usize, from: u64, to: u64| -> Vec<f64> {
        let run = |i| target.observe(&neighbours.streams[side], 2 * i + side as u64);
        (from..to).into_par_iter().map(|i| statistic.value(&run(i), &neighbours.direction)).collect()
    };
    let training = [0, 1].map(|side| values(side, runs, runs + runs / 4).iter().sum::<f64>() / (runs / 4) as f64);
    let threshold = f64::midpoint(training[0], training[1]);
    let rises = training[1] > training[0];
    let wrong = [0, 1].map(|side| {
        let guesses_one = |value: &&f64| (**value > threshold) == rises;
        let ones = values(side, 0, runs).iter().filter(guesses_one).count() as u64;
        if side == 0 { ones } else { runs - ones }
    });
    let g = |bound: fn(u64, u64) -> f64| -wrong.iter().map(|k| normal::quantile(bound(*k, runs))).sum::<f64>();
    Interval { low: g(upper), high: g(lower) }
}

/// Clopper–Pearson upper bound on a probability after k of n: the p with P(Bin(n, p) ≤ k) = α.
fn upper(k: u64, n: u64) -> f64 {
    let choose: f64 = (0..k).map(|i| (((n - i) as f64) / (i + 1) as f64).ln()).sum();
    let at_most_k = |p: f64| {
        let first = (choose + k as f64 * p.ln() + (n - k) as f64 * (-p).ln_1p()).exp();
        let ratio = |i: u64| i as f64 / (n - i + 1) as f64 * (1.0 - p) / p;
        let terms = (1..=k).rev().scan(first, |term, i| {
            *term *= ratio(i);
            Some(*term)
        });
        first + terms.sum::<f64>()
    };
    let (mut low, mut high) = (k as f64 / n as f64, 1.0);
    for _ in 0..50 {
        let middle = f64::midpoint(low, high);
        *if at_most_k(middle) > ALPHA { &mut low } else { &mut high } = middle;
    }
    high
}

/// Clopper–Pearson lower bound on a probability after k of n.
fn lower(k: u64, n: u64) -> f64 {
    1.0 - upper(n - k, n)
}

/// Audits a target of a mechanism with each statistic, at the message it is most sensitive to.
fn examine(name: &str, target: &dyn AuditTarget, mechanism: Mechanism, runs: u64) -> Vec<Interval> {
    let revealed = most_revealed(mechanism);
    let extreme = |episode| Neighbours::extreme(target.level(), target.agents(), episode);
    let audits = [
        (extreme(revealed), Statistic::likelihood_ratio(mechanism, revealed)),
        (extreme(1), Statistic::sum()),
        (extreme(6), Statistic::difference(6)),
        (Neighbours::repeated(target.agents(), 3), Statistic::repetition()),
        (Neighbours::missing(target.agents(), 6), Statistic::difference(6)),
    ];
    // A group's size can reveal whether a message arrived.
    let audits = audits.iter().take(if target.agents() > 1 { 5 } else { 4 });
    audits
        .map(|(neighbours, statistic)| {
            let interval = audit(target, neighbours, statistic, runs);
            let Interval { low, high } = interval;
            println!("{name:<34} {:<16} {low:6.3} ..{high:6.3}  of {:.3}", statistic.name, guaranteed());
            interval
        })
        .collect()
}

/// Asserts that the guarantee holds and that the noise is not excessive.
fn assert_passes(name: &str, target: &dyn AuditTarget, mechanism: Mechanism, runs: u64) {
    let intervals = examine(name, target, mechanism, runs);
    assert!(intervals.iter().all(|interval| interval.low <= guaranteed()), "{name} violates its guarantee");
    let expected = guaranteed() * revealed(mechanism, most_revealed(mechanism));
    assert!(intervals[0].high > 0.95 * expected, "{name} has more noise than necessary");
}

/// Asserts that some statistic detects a violated guarantee.
fn assert_detected(name: &str, target: &dyn AuditTarget, mechanism: Mechanism, runs: u64) {
    let intervals = examine(name, target, mechanism, runs);
    assert!(intervals.iter().any(|interval| interval.low > guaranteed()), "{name} is not detected");
}

// --- dense matrices --------------------------------------------------------------------------------------------------

/// Level and end of each node of the tree.
fn nodes() -> Vec<(usize, usize)> {
    (0..3).flat_map(|level| (1..=RELEASES >> level).map(move |index| (level, index << level))).collect()
}

/// B of the tree, with or without Honaker's estimates from below.
fn tree_rows(estimate: bool) -> DMatrix<f64> {
    let nodes = nodes();
    let place = |node| nodes.iter().position(|other| *other == node).unwrap();
    // Children precede their parents.
    let mut estimates = DMatrix::identity(nodes.len(), nodes.len());
    for (i, &(level, end)) in nodes.iter().enumerate().filter(|(_, (level, _))| estimate && *level > 0) {
        let children = [end - (1 << (level - 1)), end].map(|end| place((level - 1, end)));
        let weight = 1.0 / (2.0 - 0.5_f64.powi(level as i32));
        let below = (estimates.row(children[0]) + estimates.row(children[1])) * (1.0 - weight);
        estimates.set_row(i, &below);
        estimates[(i, i)] = weight;
    }
    let used = DMatrix::from_fn(RELEASES, nodes.len(), |i, node| {
        let (level, end) = nodes[node];
        f64::from((i + 1) >> level & 1 == 1 && end == (i + 1) >> level << level)
    });
    used * estimates
}

fn blt_rows() -> DMatrix<f64> {
    let blt = Blt::for_episodes(EPISODES);
    let coefficient = |i: i32| blt.omega().iter().zip(blt.theta).map(|(w, t)| w * t.powi(i - 1)).sum::<f64>();
    let c = DMatrix::from_fn(RELEASES, RELEASES, |i, j| match i.checked_sub(j) {
        None => 0.0,
        Some(0) => 1.0,
        Some(difference) => coefficient(difference as i32),
    });
    DMatrix::from_fn(RELEASES, RELEASES, |i, j| f64::from(j <= i)) * c.try_inverse().unwrap()
}

/// B.
fn rows(mechanism: Mechanism) -> DMatrix<f64> {
    match mechanism {
        Mechanism::Tree => tree_rows(false),
        Mechanism::Honaker => tree_rows(true),
        Mechanism::Blt => blt_rows(),
    }
}

/// (BBᵀ)⁻¹.
fn inverse_covariance(mechanism: Mechanism) -> DMatrix<f64> {
    let rows = rows(mechanism);
    (&rows * rows.transpose()).try_inverse().unwrap()
}

/// Share of g that the releases reveal about a message; below 1 if not all noisy values are released.
fn revealed(mechanism: Mechanism, episode: usize) -> f64 {
    let norm = (shift(episode).transpose() * inverse_covariance(mechanism) * shift(episode))[0].sqrt();
    norm * Noise::new(Budget::new(MU, NU).unwrap(), mechanism, 1.0, EPISODES).node_sigma().recip() / guaranteed()
}

/// Episode whose message is revealed most.
fn most_revealed(mechanism: Mechanism) -> usize {
    (1..=RELEASES).max_by(|a, b| revealed(mechanism, *a).total_cmp(&revealed(mechanism, *b))).unwrap()
}

// --- test doubles: correct and flawed mechanisms ---------------------------------------------------------------------

#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    /// σ is multiplied by this factor.
    Noise(f64),
    /// Each release draws new noise.
    Redrawn,
    /// New noise is drawn only when the number of levels grows, as in a published implementation.
    Reused,
    /// Nodes with equal sums have equal noise.
    Shared,
    /// After a crash, everything is released again with new noise.
    NewKey,
    /// A group's sum is divided by the number of members that sent a message.
    CountedGroup,
}

/// Prefix sums with noise B·z from a non-cryptographic generator.
struct TestMechanism {
    rows: DMatrix<f64>,
    sigma: f64,
    flaw: Flaw,
    agents: usize,
}

impl TestMechanism {
    fn new(mechanism: Mechanism, flaw: Flaw, agents: usize) -> Self {
        let delta = sensitivity(Level::Strict, EPISODE_LEN, DIMENSION);
        let sigma = Noise::new(Budget::new(MU, NU).unwrap(), mechanism, delta, EPISODES).node_sigma();
        let factor = if let Flaw::Noise(factor) = flaw { factor } else { 1.0 };
        Self { rows: rows(mechanism), sigma: sigma * factor, flaw, agents }
    }

    fn noise(&self, stream: &Stream, random: &mut Random) -> DMatrix<f64> {
        let mut draw = |rows| DMatrix::from_fn(rows, COORDINATES, |_, _| self.sigma * random.gaussian());
        match self.flaw {
            Flaw::Redrawn => {
                let redrawn = self.rows.row_iter().map(|row| row * draw(row.len()));
                DMatrix::from_rows(&redrawn.collect::<Vec<_>>())
            }
            Flaw::Reused => {
                let drawn =
                    DMatrix::from_fn(RELEASES, 4, |i, j| f64::from(j <= (i + 1).next_power_of_two().ilog2() as usize));
                drawn * draw(4)
            }
            Flaw::Shared if stream[0] == stream[2] => {
                let mut nodes = draw(self.rows.ncols());
                nodes.set_row(2, &nodes.row(0).into_owned());
                &self.rows * nodes
            }
            _ => &self.rows * draw(self.rows.ncols()),
        }
    }

    /// Sums of all messages so far, divided by the group size.
    fn means(&self, stream: &Stream, noise: &DMatrix<f64>) -> Vec<(usize, [f64; COORDINATES])> {
        let mut sum = [0.0; COORDINATES];
        let mean = |(i, messages): (usize, &Vec<Message>)| {
            for value in messages.iter().map(Message::vector) {
                sum.iter_mut().zip(value).for_each(|(sum, value)| *sum += value);
            }
            let present = messages.iter().filter(|message| **message != Message::MISSING).count();
            let size = if self.flaw == Flaw::CountedGroup { present } else { self.agents } as f64;
            (i + 1, std::array::from_fn(|j| (sum[j] + noise[(i, j)]) / size))
        };
        stream.iter().enumerate().map(mean).collect()
    }
}

impl AuditTarget for TestMechanism {
    fn observe(&self, stream: &Stream, run: u64) -> Vec<(usize, [f64; COORDINATES])> {
        let mut random = Random::new(run);
        let mut seen = self.means(stream, &self.noise(stream, &mut random));
        if self.flaw == Flaw::NewKey {
            seen.extend(self.means(stream, &self.noise(stream, &mut random)));
        }
        seen
    }

    fn agents(&self) -> usize {
        self.agents
    }
}

#[test]
fn clopper_pearson_matches_closed_form_and_normal_approximation() {
    // P(Bin(n, p) = 0) = (1 − p)ⁿ.
    assert!((upper(0, 1000) - (1.0 - ALPHA.powf(1e-3))).abs() < 1e-12);
    assert!((lower(1000, 1000) - ALPHA.powf(1e-3)).abs() < 1e-12);
    // 5.731 deviations by the normal approximation.
    let deviation = (0.25_f64 / 20_000.0).sqrt();
    assert!(((upper(10_000, 20_000) - 0.5) / deviation - 5.731).abs() < 0.02);
    assert!(((0.5 - lower(10_000, 20_000)) / deviation - 5.731).abs() < 0.02);
}

const RUNS: u64 = 16_000;

#[test]
fn correct_mechanisms_pass() {
    for mechanism in MECHANISMS {
        assert_passes(&mechanism.to_string(), &TestMechanism::new(mechanism, Flaw::None, 1), mechanism, RUNS);
    }
    assert_passes("tree, group of 4", &TestMechanism::new(Mechanism::Tree, Flaw::None, 4), Mechanism::Tree, RUNS);
}

#[test]
fn flawed_mechanisms_are_detected() {
    let norm =
        |mechanism| guaranteed() * Noise::new(Budget::new(MU, NU).unwrap(), mechanism, 1.0, EPISODES).node_sigma();
    for mechanism in MECHANISMS {
        let mut flaws = vec![
            ("Δ too small by √2", Flaw::Noise(FRAC_1_SQRT_2), 1),
            ("√m or ‖c‖ missing", Flaw::Noise(1.0 / norm(mechanism)), 1),
            ("noise redrawn", Flaw::Redrawn, 1),
            ("noise reused", Flaw::Reused, 1),
            ("restart with a new key", Flaw::NewKey, 1),
            ("group size revealed", Flaw::CountedGroup, 4),
        ];
        if mechanism != Mechanism::Blt {
            flaws.push(("one level missing", Flaw::Noise((2.0_f64 / 3.0).sqrt()), 1));
            flaws.push(("noise shared by equal sums", Flaw::Shared, 1));
        }
        for (name, flaw, agents) in flaws {
            assert_detected(
                &format!("{mechanism}: {name}"),
                &TestMechanism::new(mechanism, flaw, agents),
                mechanism,
                RUNS,
            );
        }
    }
}

// --- real pipeline ---------------------------------------------------------------------------------------------------

/// λ: large enough that Λ needs no repair, small enough for f32.
const LAMBDA: f64 = 65_536.0;

#[derive(Clone, Copy, PartialEq)]
enum Restart {
    Never,
    SameKey,
    NewKey,
}

/// Complete path from messages to models: admission, noise, aggregation, broadcast.
struct Pipeline<A> {
    config: ControllerConfig,
    plan: Plan,
    aggregator: A,
    agents: usize,
    /// True if all agents form one group.
    grouped: bool,
    restart: Restart,
}

impl<A: Aggregator + Clone + Sync> Pipeline<A> {
    fn new(mechanism: Mechanism, aggregator: A) -> Self {
        Self::at(Level::Strict, mechanism, aggregator)
    }

    fn at(level: Level, mechanism: Mechanism, aggregator: A) -> Self {
        let episodes = Episodes::new(EPISODES * EPISODE_LEN, EPISODE_LEN, EPISODE_LEN).unwrap();
        let config = ControllerConfig {
            dimension: DIMENSION as u8,
            episodes,
            level,
            reward_bound: Some(1.0),
            window: 0,
            half_life: None,
        };
        let plan = Plan::new(&config, Budget::new(MU, NU).unwrap(), mechanism, 1).unwrap();
        Self { config, plan, aggregator, agents: 1, grouped: false, restart: Restart::Never }
    }

    /// Returns the models of a controller that receives these episodes, from the second model on.
    fn models(&self, stream: &[Vec<Message>], seed: u64) -> Vec<(usize, [f64; COORDINATES])> {
        let rule = PaperRule::new(self.aggregator.clone(), self.aggregator.clone(), |_| (LAMBDA, 0.5));
        let enrolled = (0..self.agents as u32).map(AgentId);
        let groups = Groups::new(self.agents, 1, 0).unwrap();
        let mut controller = Controller::new(self.config, enrolled, rule, |agents, _| match self.grouped {
            true => Private::groups(self.plan.clone(), Seed(seed), agents, &groups),
            false => Private::agents(self.plan.clone(), Seed(seed), agents),
        })
        .unwrap();
        let models = (1..).zip(stream).map(|(episode, messages)| {
            let sent = (0..).zip(messages).filter(|(_, message)| **message != Message::MISSING);
            for (agent, Message(gram, feature_sum)) in sent {
                controller.receive(AgentId(agent), episode, *gram, *feature_sum).unwrap();
            }
            controller.close_episode().unwrap();
            (episode as usize, released(&controller.model().unwrap()))
        });
        models.collect()
    }
}

/// Recovers V̂ = Λ − λI and v̂ = Λθ from a model, as any device can.
fn released(model: &Model<'_>) -> [f64; COORDINATES] {
    let design: Vec<f64> = model.design.iter().map(f64::from).collect();
    let theta: Vec<f64> = model.theta.iter().map(f64::from).collect();
    let (a, b, c) = (design[0], design[1], design[2]);
    let (x, y) = (a * theta[0] + b * theta[1], b * theta[0] + c * theta[1]);
    let gram: Vec<_> = symmetric::scaled(&[a - LAMBDA, b, c - LAMBDA], DIMENSION).collect();
    [gram[0], gram[1], gram[2], x, y]
}

impl<A: Aggregator + Clone + Sync> AuditTarget for Pipeline<A> {
    /// With a restart, the first controller stops after five episodes and a second one replays all of them.
    fn observe(&self, stream: &Stream, run: u64) -> Vec<(usize, [f64; COORDINATES])> {
        let mut seen = Vec::new();
        if self.restart != Restart::Never {
            seen = self.models(&stream[..5], run);
        }
        seen.extend(self.models(stream, if self.restart == Restart::NewKey { !run } else { run }));
        seen
    }

    fn agents(&self) -> usize {
        self.agents
    }

    fn level(&self) -> Level {
        self.config.level
    }
}

const REAL_RUNS: u64 = 8_000;

#[test]
fn pipeline_passes() {
    for mechanism in MECHANISMS {
        assert_passes(&format!("real {mechanism}"), &Pipeline::new(mechanism, Mean), mechanism, REAL_RUNS);
    }
}

#[test]
fn pipeline_at_paper_level_passes() {
    let pipeline = Pipeline::at(Level::Paper, Mechanism::Tree, Mean);
    assert_passes("real tree, paper", &pipeline, Mechanism::Tree, REAL_RUNS);
}

#[test]
fn pipeline_with_groups_passes() {
    let grouped = Pipeline { agents: 4, grouped: true, ..Pipeline::new(Mechanism::Tree, Mean) };
    assert_passes("real tree, group of 4", &grouped, Mechanism::Tree, REAL_RUNS);
}

/// The noise of the other agents hides the difference, so there is no lower limit on the detected g.
#[test]
fn pipeline_with_geometric_median_keeps_guarantee() {
    let median = GeometricMedian::new(Tolerance::Relative(1e-6));
    let pipeline = Pipeline { agents: 3, ..Pipeline::new(Mechanism::Tree, median) };
    let intervals = examine("real tree, median of 3", &pipeline, Mechanism::Tree, REAL_RUNS / 4);
    assert!(intervals.iter().all(|interval| interval.low <= guaranteed()));
}

#[test]
fn restart_with_same_key_passes_and_with_new_key_is_detected() {
    for mechanism in [Mechanism::Tree, Mechanism::Blt] {
        let with = |restart| Pipeline { restart, ..Pipeline::new(mechanism, Mean) };
        assert_passes(&format!("real {mechanism}, restarted"), &with(Restart::SameKey), mechanism, REAL_RUNS / 2);
        assert_detected(&format!("real {mechanism}, new key"), &with(Restart::NewKey), mechanism, REAL_RUNS / 2);
    }
}
