//! Claims: statement, grid of simulations, checks and table of each section.

use fedbandit::simulation::Environment;
use fedbandit::simulation::report::Record;

use super::checks::{
    AtLeast, AtMost, Check, ENVIRONMENTS, Unlimited, forget_checks, least, most, robust_checks, slope, start_checks,
    whitened_checks, widest, width_check, width_check_of_many,
};
use super::tables::{
    attack_table, forget_table, horizon_table, no_table, setting_table, solo_table, theorem_table, whitened_table,
};
use super::{fleets, guard, misspecified};

pub(super) struct Claim {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) statement: &'static str,
    pub(super) grid: &'static str,
    pub(super) checks: fn(&[Record]) -> Vec<Check>,
    pub(super) table: fn(&[Record]) -> String,
}

pub(super) const CLAIMS: [Claim; 24] = [
    Claim {
        name: "demonstration",
        title: "The demonstration",
        statement: "`fedbandit simulate` without options: 100 agents, 30 of which collude, five aggregators, three seeds.",
        grid: include_str!("../../../claims/demonstration.toml"),
        checks: |_| Vec::new(),
        table: setting_table,
    },
    Claim {
        name: "robust",
        title: "Byzantine-UCB learns under every attack",
        statement: "100 agents, d = 8, T = 4096, L = 64, Gaussian rewards with R = 0.5. Mean over five \
                    seeds [minimum, maximum]. On `skew` and `fixed-arms` some directions are rarely explored, and the paper's rule \
                    does worse. The last checks count the attacks under which it loses to `solo`, a device that learns alone.",
        grid: include_str!("../../../claims/robust.toml"),
        checks: robust_checks,
        table: attack_table,
    },
    Claim {
        name: "mean",
        title: "The mean fails",
        statement: "One corrupted agent in ten is enough. Always choosing against θ* would give a total of 2.",
        grid: include_str!("../../../claims/mean.toml"),
        checks: |records| {
            let worst = |attack| least(records, |r| r.outcome.aggregator == "mean" && r.outcome.attack == attack);
            vec![
                Check::new("mean, 10 % huge, total", worst("huge"), AtLeast(1.0)),
                Check::new("mean, 10 % collude, total", worst("collude"), AtLeast(1.0)),
            ]
        },
        table: setting_table,
    },
    Claim {
        name: "breakdown",
        title: "Breakdown at one half",
        statement: "The attack `adaptive` tests candidate messages against the running rule. All rules are designed for a corrupted \
                    share of 0.3.",
        grid: include_str!("../../../claims/breakdown.toml"),
        checks: |records| {
            let at = |share| most(records, |r| r.outcome.aggregator == "geometric-median" && r.config.corrupt == share);
            vec![
                Check::new("geometric median, 30 % adaptive, total", at(0.3), AtMost(0.05)),
                Check::new("geometric median, 45 % adaptive, total", at(0.45), AtMost(0.2)),
            ]
        },
        table: no_table,
    },
    Claim {
        name: "horizon",
        title: "Sublinear regret, O(√T) communication",
        statement: "20 agents, 6 of them `adaptive`, L = √T. Slopes are of log regret over log T, between the first and the last \
                    horizon, without the first episode.",
        grid: include_str!("../../../claims/horizon.toml"),
        checks: |records| {
            let slope = |aggregator: &str, value: fn(&Record) -> f64| slope(records, aggregator, value);
            vec![
                Check::new(
                    "geometric median, slope of regret",
                    slope("geometric-median", |r| r.outcome.after_first_episode),
                    AtMost(0.5),
                ),
                Check::new("mean, slope of regret", slope("mean", |r| r.outcome.after_first_episode), AtLeast(0.95)),
                Check::new(
                    "geometric median, slope of bytes sent",
                    slope("geometric-median", |r| r.outcome.bytes_up as f64),
                    AtMost(0.5),
                ),
            ]
        },
        table: horizon_table,
    },
    Claim {
        name: "solo",
        title: "Without communication, regret is linear (Proposition 1)",
        statement: "40 agents; 12 of them receive rewards of −θ* in half of their steps. \"Attacked agents\" is their regret over the \
                    other half of their steps, relative to random. A device that learns alone cannot tell which steps are attacked.",
        grid: include_str!("../../../claims/solo.toml"),
        checks: |records| {
            let attacked = |r: &Record| r.outcome.attacked_total.unwrap_or(f64::NAN);
            let of = |name| records.iter().filter(move |r| r.outcome.aggregator == name).map(attacked);
            vec![
                Check::new("solo, attacked agents against random", of("solo").fold(9.0, f64::min), AtLeast(0.7)),
                Check::new("geometric median, the same", of("geometric-median").fold(0.0, f64::max), AtMost(0.1)),
            ]
        },
        table: solo_table,
    },
    Claim {
        name: "communication",
        title: "Rare communication costs little",
        statement: "40 agents, 12 of them `adaptive`, 16,384 steps. The first episodes grow from 4 steps to L.",
        grid: include_str!("../../../claims/communication.toml"),
        checks: |_| Vec::new(),
        table: setting_table,
    },
    Claim {
        name: "privacy",
        title: "The price of privacy",
        statement: "100 agents, d = 4, 512 episodes of 8 steps, ±1 rewards, ν = 10⁻⁶. One message, 8 steps of one agent, is \
                    protected. The oracle has the noise of single agents as well.",
        grid: include_str!("../../../claims/privacy.toml"),
        checks: |records| {
            let at = |r: &Record| {
                let tree = r.config.run.mechanism.to_string() == "tree" && r.config.corrupt == 0.0;
                tree && r.outcome.aggregator == "geometric-median" && r.outcome.privacy.as_deref() == Some("4,0.000001")
            };
            let late = records.iter().filter(|r| at(r)).map(|r| r.outcome.late).fold(f64::NAN, f64::max);
            vec![Check::new("geometric median, tree, μ = 4, late", late, AtMost(0.05))]
        },
        table: setting_table,
    },
    Claim {
        name: "means",
        title: "The median of means against the median",
        statement: "The corrupted share is known. The paper's P = 3N₁ groups raise it to up to a third, which costs more than the means \
                    gain. With privacy a group needs noise only once, and groups win.",
        grid: include_str!("../../../claims/means.toml"),
        checks: |_| Vec::new(),
        table: setting_table,
    },
    Claim {
        name: "theorem",
        title: "The theorems' constants hardly learn",
        statement: "20 agents, no attack, σ = √2, δ = 0.1, L of Theorem 1. With the constants of Theorem 1 the widths are so large that \
                    choices are almost random within any reasonable time.",
        grid: include_str!("../../../claims/theorem.toml"),
        checks: |_| Vec::new(),
        table: theorem_table,
    },
    Claim {
        name: "whitened",
        title: "Beyond the paper: `whitened-filter` under every attack",
        statement: "The setting of the table of attacks with new seeds; the rule's constants were chosen on others. `optimal` searches \
                    against the running rule. \"× oracle\" is the regret relative to that of the same rule, with the same width, on the honest \
                    agents alone; for the paper's rules, relative to the mean of honest agents. A bold total is the smallest under the same \
                    attack. a is the corrupted share that the rule is designed for, 0.3 by default, which is too little at 45 %.",
        grid: include_str!("../../../claims/whitened.toml"),
        checks: whitened_checks,
        table: whitened_table,
    },
    Claim {
        name: "fleets",
        title: "The recommended rule in every kind of fleet",
        statement: "`capped-filter`, 100 agents, d = 8, T = 4096, 30 % corrupted. Means over ten seeds, and over five for guarded devices, \
                    for which fewer attacks were run. A column is an environment whose devices are always on, or a participation in \
                    `ball`.\n\n\
                    The limits were set before the attack `claim` existed, and it is the reason where they are missed by far. Colluders who \
                    claim one direction only hold up to 44 % of the capped information along it. In `unequal`, `mixture` and `late` few \
                    honest devices know a direction, close to the limit of every rule (docs/theory.md, section 9). The width then has to \
                    be so large that devices explore for long. Under all other attacks unguarded devices miss the limits of `mixture`, \
                    `late` and `stretches` only, worst under `gram-inflate`. Guarded ones miss those of `fixed-arms`, where `optimal` causes \
                    alarms, and of `stretches`.",
        grid: include_str!("../../../claims/fleets.toml"),
        checks: fleets::limit_checks,
        table: fleets::limit_table,
    },
    Claim {
        name: "suite",
        title: "The recommended rule against all others",
        statement: "Every environment with every participation; every attack; shares of corrupted agents from 0 to 0.45; 20, 100 and 1000 \
                    agents; d = 4, 8, 16, 32; Gaussian and ±1 rewards. T = 1024, unguarded, paired seeds. Rows are sorted by the regret of \
                    `capped-filter` relative to the best other rule. Left out: the full product of all factors, searching attacks with 1000 \
                    agents or d ≥ 16, and other horizons.\n\n\
                    Where devices explore alike, `whitened-filter` can assume so, and has a smaller width; that is the reason for the cells \
                    above 1.1. It has no such assumption to rely on elsewhere, where it loses several times as much. The width of \
                    `capped-filter` is too small in single runs under `claim` in `unequal`, where honest devices hardly overlap, and for \
                    45 % corrupted agents.",
        grid: include_str!("../../../claims/suite.toml"),
        checks: fleets::suite_checks,
        table: fleets::suite_table,
    },
    Claim {
        name: "searches",
        title: "The attacks that search, against every rule",
        statement: "40 agents, 30 % of them corrupted, d = 8, 1,024 steps, three seeds. `optimal` knows the rule and searches for the \
                    sums that raise regret most; `claim` also chooses the information that corrupted agents claim. \"Late\" is the regret \
                    of the second half relative to random choice, \"width\" the largest width ratio. On `ball`, where agents explore alike, \
                    `claim` costs `capped-filter` more than `whitened-filter`, which assumes that they do.",
        grid: include_str!("../../../claims/searches.toml"),
        checks: |records| {
            let widest = |r: &&Record| r.outcome.aggregator == "capped-filter";
            let ratios = records.iter().filter(widest).filter_map(|r| r.outcome.width_ratio_max);
            vec![Check::new("capped filter, largest width ratio", ratios.fold(f64::NAN, f64::max), AtMost(1.0))]
        },
        table: setting_table,
    },
    Claim {
        name: "start",
        title: "First episodes of `whitened-filter`",
        statement: "The default, 2d episodes of 4 steps before lengths grow, against lengths that grow at once and against equal episodes \
                    of 64 steps. The default should be no worse than the better of the others. With equal episodes the first 64 steps cost \
                    every rule the same, so the ratio to the oracle is close to 1.",
        grid: include_str!("../../../claims/start.toml"),
        checks: start_checks,
        table: whitened_table,
    },
    Claim {
        name: "sizes",
        title: "`whitened-filter` with other dimensions, fleets, parameters and rewards",
        statement: "30 % of the agents are `optimal`, or 45 % where a = 0.45. `unequal` agents explore different directions, which violates the \
                    paper's assumption of a small σ: a corrupted agent cannot be told from one that has seen something else, and \
                    every rule loses much.",
        grid: include_str!("../../../claims/sizes.toml"),
        checks: |records| {
            let unequal = widest(records, |config| config.environment == Environment::Unequal);
            let unequal = Check::new("whitened filter, unequal agents, largest width ratio", unequal, AtMost(1.0));
            vec![width_check(records), width_check_of_many(records), unequal]
        },
        table: whitened_table,
    },
    Claim {
        name: "slope",
        title: "The horizon under `optimal`",
        statement: "20 agents, 6 of them `optimal`, L = √T. Slopes are of log regret over log T, between the first and the last horizon.",
        grid: include_str!("../../../claims/slope.toml"),
        checks: |records| {
            let slope = |aggregator: &str, environment: &str| {
                let of: Vec<Record> =
                    records.iter().filter(|r| r.outcome.environment == environment).cloned().collect();
                slope(&of, aggregator, |r| r.outcome.regret)
            };
            let mut checks = Vec::new();
            for environment in ENVIRONMENTS {
                let what = format!("{environment}, whitened filter, slope of regret");
                checks.push(Check::new(what, slope("whitened-filter", environment), AtMost(0.5)));
                let what = format!("{environment}, geometric median, slope of regret");
                checks.push(Check::new(what, slope("geometric-median", environment), Unlimited));
            }
            checks
        },
        table: whitened_table,
    },
    Claim {
        name: "noised",
        title: "The recommended rule on noised releases",
        statement: "The setting of the price of privacy. Rules are post-processing of releases. Privacy noise is the same in all directions, so \
                    there is little to whiten or to cap: the paper's rules with the calibrated width do better, and the median of group means, \
                    which needs noise for each group only, does best.",
        grid: include_str!("../../../claims/noised.toml"),
        checks: |records| vec![width_check(records)],
        table: setting_table,
    },
    Claim {
        name: "guard",
        title: "Guarded devices under every attack",
        statement: "100 agents, 30 % of them corrupted, with `whitened-filter`; below, the paper's rule, for which the guard is off by \
                    default. Totals of devices that learn alone, of unguarded and of guarded ones. \"Ratio\" is the regret of guarded \
                    devices relative to the smaller of the other two, with a 95 % interval over paired seeds: five, and twenty where a cell \
                    is close to its limit.\n\n\
                    The limit of single cells is missed where `optimal`, which knows the guard, causes alarms. Its models stay within their \
                    width, but predict the rewards of the actions played worse than a device's own data do. The device then learns alone \
                    for some time, and still loses less than one that is always alone. A test that allowed for the declared width would \
                    raise no such alarm, but would leave more room to a majority and to a hostile controller. The limit of the width in use \
                    is missed since the own ellipsoid of each device is wrong with a probability of up to 0.1, and many devices are \
                    measured.",
        grid: include_str!("../../../claims/guard.toml"),
        checks: guard::checks,
        table: guard::table,
    },
    Claim {
        name: "majority",
        title: "Guarded devices among a majority of corrupted ones",
        statement: "50 agents. No rule has a guarantee here. The ratio is relative to devices that learn alone. On `skew`, attackers that \
                    know the guard slightly exceed the limit. The prediction test needs data to notice a lie, and `skew` has directions that \
                    are rarely explored.",
        grid: include_str!("../../../claims/majority.toml"),
        checks: guard::majority_checks,
        table: guard::table,
    },
    Claim {
        name: "hostile-controller",
        title: "Guarded devices under a hostile controller",
        statement: "20 devices. The controller forges each device's models, and knows θ*, the device's data and its guard. With the guard \
                    `untrusting`, one step in 16 uses own data alone. The ratio is relative to devices that learn alone. Without scouts, \
                    the truth about a bad action and lies about all better ones are never contradicted, which shows on `fixed-arms`.",
        grid: include_str!("../../../claims/hostile-controller.toml"),
        checks: guard::hostile_checks,
        table: guard::table,
    },
    Claim {
        name: "guarded",
        title: "Guarded devices with the recommended rule",
        statement: "`capped-filter` in the settings of the sections above, with three seeds and the strongest attacks only: 100 \
                    agents with 30 % corrupted ones, and 50 with a majority of corrupted ones. A hostile controller uses no rule, so \
                    that section holds for every rule. Limits are missed for the reasons given there: on `fixed-arms` and `shared`, \
                    `optimal` and `claim` cause alarms, and on `skew` a majority is noticed late. On `unequal`, `claim` also makes \
                    the width of models too small.",
        grid: include_str!("../../../claims/guarded.toml"),
        checks: guard::recommended_checks,
        table: guard::table,
    },
    Claim {
        name: "forget",
        title: "Forgetting, for a parameter that drifts",
        statement: "40 agents, 8,192 steps. On `ball` θ* is constant; on `drifting-theta` it turns by 90° in 4,096 steps, and regret is \
                    relative to the best action of the step. H is the half-life `forget` in steps, of controller and guards. Widths assume a \
                    constant θ*, so they are held to 1 on `ball` only. The table has totals, and the smallest of a row is bold.",
        grid: include_str!("../../../claims/forget.toml"),
        checks: forget_checks,
        table: forget_table,
    },
    Claim {
        name: "misspecified",
        title: "R and S not known exactly",
        statement: "100 agents, d = 8, 1,024 steps, Gaussian rewards with R = 0.5, ‖θ*‖ = 1, 30 % corrupted agents under attack. \
                    `capped-filter` assumes half or twice the true R or S, or estimates R with an upper bound of 2 (`auto:2`). Cells are \
                    mean totals over five seeds, with the largest width ratio in brackets. With too small an R the width does not cover \
                    θ*; with too large an R, corrupted agents hide in the noise that is allowed for.",
        grid: include_str!("../../../claims/misspecified.toml"),
        checks: misspecified::checks,
        table: misspecified::table,
    },
];
