//! `fedbandit simulate` and `sweep`: tables, JSON, files and exit codes.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::directory::Directory;
use serde_json::Value;

const SMALL: &str = "--agents 12 --dim 4 --steps 128 --seeds 1,2";

impl Directory {
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }

    fn names(&self, name: &str) -> BTreeSet<String> {
        let entries = fs::read_dir(self.0.join(name)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

fn fedbandit(directory: &Path, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedbandit"));
    command.current_dir(directory).args(arguments.split_whitespace()).output().unwrap()
}

pub(crate) fn stdout(directory: &Path, arguments: &str) -> String {
    let output = fedbandit(directory, arguments);
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn json(directory: &Path, arguments: &str) -> Value {
    serde_json::from_str(&stdout(directory, &format!("{arguments} --json"))).unwrap()
}

/// Asserts the exit code, a sentence on stderr, and an empty stdout.
pub(crate) fn refuses(directory: &Path, arguments: &str, code: i32, sentence: &str) {
    let output = fedbandit(directory, arguments);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments}: {stderr}");
    assert!(stderr.contains(sentence), "{arguments}: {stderr:?} lacks {sentence:?}");
    assert!(output.stdout.is_empty());
}

/// Runs the examples with fewer agents and steps.
#[test]
fn examples_in_help_run() {
    let here = Directory::new("examples");
    let help = stdout(&here.0, "simulate --help");
    let examples: Vec<&str> = help.lines().filter_map(|line| line.strip_prefix("  fedbandit ")).collect();
    assert!(examples.len() >= 3, "{help}");
    for example in examples {
        stdout(&here.0, &format!("{example} --agents 12 --steps 64"));
    }
}

#[test]
fn json_has_documented_keys() {
    let here = Directory::new("keys");
    let report = json(&here.0, &format!("simulate {SMALL} --attack fake-parameter"));
    assert_eq!(report["config"]["agents"], 12);
    let runs = report["runs"].as_array().unwrap();
    // The recommended rule alone, two seeds.
    assert_eq!(runs.len(), 2);
    assert!(runs.iter().all(|run| run["aggregator"] == "capped-filter"));
    let numbers = [
        "seed",
        "corrupt",
        "regret",
        "regret_random",
        "regret_oracle",
        "after_first_episode",
        "total",
        "late",
        "attacked_total",
        "robust_regret",
        "theta_error",
        "width_ratio_max",
        "width_ratio_share",
        "bytes_up",
        "bytes_down",
        "repairs",
        "agent_steps_per_cpu_second",
    ];
    for run in runs {
        for key in numbers {
            assert!(run[key].is_number(), "{key}: {}", run[key]);
        }
        assert_eq!((&run["attack"], &run["environment"]), (&"fake-parameter".into(), &"ball".into()));
        assert!(run["privacy"].is_null() && run["rejected"].is_object());
        let total = run["regret"].as_f64().unwrap() / run["regret_random"].as_f64().unwrap();
        assert_eq!(run["total"].as_f64().unwrap(), total);
    }
    let private = json(&here.0, &format!("simulate {SMALL} --rewards bounded --privacy 4,1e-6 --aggregator mean"));
    assert_eq!(private["runs"][0]["privacy"], "4,0.000001");
    assert_eq!(private["config"]["aggregator"], serde_json::json!(["mean"]));
    assert_eq!(private["config"]["seeds"], serde_json::json!([1, 2]));
}

/// The README shows the table of its first command. The report is one self-contained file.
#[test]
fn demonstration_matches_the_readme() {
    let here = Directory::new("demonstration");
    let text = stdout(&here.0, "simulate");
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
    assert!(readme.contains(text.trim_end()), "README.md lacks the output of `fedbandit simulate`:\n{text}");
    assert_eq!(here.names(""), BTreeSet::from(["report".into()]));
    assert_eq!(here.names("report"), BTreeSet::from(["report.html".into()]));
    let page = fs::read_to_string(here.0.join("report/report.html")).unwrap();
    assert_eq!(page.matches("<svg").count(), 3);
    for title in ["Regret under attack", "Regret by share of corrupted agents", "The cost of privacy"] {
        assert!(page.contains(title), "{title}");
    }
    // The page has all that is needed to reproduce it.
    let version = stdout(&here.0, "--version");
    for provenance in [version.trim(), "&quot;agents&quot;:100", "seeds 1, 2, 3"] {
        assert!(page.contains(provenance), "{provenance}");
    }
    let without_namespace = page.replace("http://www.w3.org/2000/svg", "");
    for loaded in ["http:", "https:", "src=", "href=", "url(", "@import", "<script"] {
        assert!(!without_namespace.contains(loaded), "the page loads something: {loaded}");
    }
}

#[test]
fn flag_overrides_variable_overrides_file_overrides_default() {
    let here = Directory::new("order");
    here.file("run.toml", "agents = 11\ndim = 2\nsteps = 64\nseeds = [3]\naggregator = \"mean\"\n");
    let report = json(&here.0, "simulate --config run.toml");
    assert_eq!((&report["config"]["agents"], &report["config"]["dim"]), (&11.into(), &2.into()));
    assert_eq!((report["runs"].as_array().unwrap().len(), &report["runs"][0]["seed"]), (1, &3.into()));
    let agents = |variable: Option<&str>, arguments: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fedbandit"));
        command.current_dir(&here.0).envs(variable.map(|value| ("FEDBANDIT_AGENTS", value)));
        let output = command.args(["simulate", "--json"]).args(arguments.split_whitespace()).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["config"]["agents"].clone()
    };
    assert_eq!(agents(None, "--dim 2 --steps 64 --seeds 3 --aggregator mean"), 100);
    assert_eq!(agents(None, "--config run.toml"), 11);
    assert_eq!(agents(Some("9"), "--config run.toml"), 9);
    assert_eq!(agents(Some("9"), "--config run.toml --agents 8"), 8);
}

#[test]
fn invalid_options_are_rejected() {
    let here = Directory::new("options");
    for (options, sentence) in [
        ("--corrupt 0.5", "corrupt: must be at least 0 and below 0.5, got 0.5"),
        ("--corrupt -0.1", "corrupt: must be at least 0 and below 0.5, got -0.1"),
        ("--episode-len 0", "episode-len: episode length must be from 1 to 65536, got 0"),
        ("--dim 7", "dim: 7 is not supported by virtual devices; use one of 1, 2, 3"),
        ("--agents 0", "agents: must be from 1 to 10000000, got 0"),
        ("--arms 0", "arms: must be from 1 to 1000000, got 0"),
        ("--steps 0", "steps: must be at least 1, got 0"),
        ("--agents many", "agents"),
        ("--attack nonsense", "unknown attack 'nonsense'; expected one of none, sign-flip"),
        ("--aggregator average", "unknown aggregator 'average'; expected one of geometric-median"),
        ("--environment moon", "unknown environment 'moon'; expected one of ball"),
        ("--rewards gaussian:-1", "invalid rewards 'gaussian:-1'; expected gaussian:R"),
        ("--schedule never", "unknown schedule 'never'; expected one of calibrated, theorem"),
        ("--privacy 4,1e-6", "privacy: requires bounded rewards"),
        ("--forget 0", "forget: must be at least 1 step, got 0"),
        ("--forget -5", "--forget: "),
        ("--forget 64 --privacy 4,1e-6 --rewards bounded", "forget: not available with privacy; its proof needs sums"),
        ("--forget 64 --schedule theorem", "forget: not available with schedule theorem; the theorems are about sums"),
        ("--environment drifting-theta --dim 1", "dim: drifting-theta needs at least 2 dimensions, got 1"),
        ("--environment mixture --dim 1", "dim: mixture needs at least 2 dimensions, got 1"),
        ("--participation never", "unknown participation 'never'; expected one of always, sleepy, stretches, late"),
        ("--privacy 4 --rewards bounded", "invalid privacy budget '4'; expected MU,NU"),
        ("--rewards bounded --theta-norm 2", "theta-norm: must be at most 1 with bounded rewards, got 2"),
        ("--theta-norm 1e30", "theta-norm: must be positive and at most 1e15"),
        ("--rewards gaussian:1e30", "expected gaussian:R with a noise level R from 0 to 1e15"),
        ("--rewards auto", "invalid rewards 'auto'; expected auto:MAX with a positive upper bound"),
        ("--rewards auto:2", "rewards: ball needs a known noise level, got auto:2; use gaussian:R or bounded"),
        ("--assumed-theta-norm 0", "assumed-theta-norm: must be positive and at most 1e15, got 0"),
        (
            "--aggregator whitened-filter --assumed-rewards auto:2",
            "rewards: whitened-filter does not estimate the noise level (auto); use capped-filter, or declare R",
        ),
        (
            "--aggregator capped-filter --assumed-rewards auto:2 --forget 64",
            "forget: not available with an estimated noise level (auto)",
        ),
        ("--seeds one", "--seeds: invalid type: string \"one\", expected u64"),
        ("--nonsense", "unexpected argument '--nonsense'"),
    ] {
        refuses(&here.0, &format!("simulate {options} --report out"), 2, sentence);
    }
    refuses(
        &here.0,
        "simulate --privacy 4,1e-6 --rewards bounded --aggregator solo",
        2,
        "not available with solo, which sends no messages",
    );
    // Found only when the run starts.
    refuses(&here.0, "simulate --aggregator krum --agents 4 --report out", 78, "krum is undefined for 4 points");
    refuses(&here.0, "simulate --aggregator median-of-means --design-corruption 0.3", 2, "at most a quarter");
    assert!(here.names("").is_empty(), "files were written");
}

#[test]
fn invalid_files_are_rejected_with_their_line() {
    let here = Directory::new("files");
    here.file("unknown.toml", "agents = 10\n\nagnets = 20\n");
    here.file("kind.toml", "agents = 10\ndim = \"eight\"\n");
    here.file("half.toml", "corrupt = 0.5\n");
    here.file("broken.toml", "agents = = 1\n");
    refuses(
        &here.0,
        "simulate --config unknown.toml",
        78,
        "unknown.toml:3: agnets: unknown key; expected one of agents, dim",
    );
    refuses(&here.0, "simulate --config kind.toml", 78, "kind.toml:2: dim");
    refuses(
        &here.0,
        "simulate --config half.toml",
        78,
        "half.toml: corrupt: must be at least 0 and below 0.5, got 0.5",
    );
    refuses(&here.0, "simulate --config broken.toml", 78, "line 1");
    refuses(&here.0, "simulate --config absent.toml", 74, "absent.toml");
    here.file("long.csv", "step,x_1,x_2,reward\n1,1,1,0\n");
    here.file("column.csv", "step,x_1,x_2\n1,1,0\n");
    here.file("good.csv", "step,x_1,x_2,reward\n1,1,0,1\n1,0,1,0\n");
    let replay = |file: &str| format!("simulate --dim 2 --environment replay:{file} --rewards gaussian:1 --report out");
    refuses(&here.0, &replay("long.csv"), 65, "long.csv: line 2: norm of the action is 1.414214");
    refuses(&here.0, &replay("column.csv"), 65, "column.csv: column reward is missing");
    refuses(&here.0, &replay("absent.csv"), 74, "absent.csv");
    refuses(&here.0, &replay("good.csv").replace("--dim 2", "--dim 4"), 78, "dim: log has 2 columns x_j, configured 4");
    assert!(stdout(&here.0, &replay("good.csv")).contains("replay:good.csv"));
    let undeclared = replay("good.csv").replace(" --rewards gaussian:1", "");
    refuses(&here.0, &undeclared, 2, "capped-filter needs the noise level of rewards");
    let whitened = undeclared.clone() + " --aggregator whitened-filter";
    refuses(&here.0, &whitened, 2, "whitened-filter needs the noise level of rewards");
    assert!(stdout(&here.0, &(whitened + " --rewards gaussian:0.1")).contains("whitened-filter"));
    let capped = undeclared + " --aggregator capped-filter --rewards auto:1";
    assert!(stdout(&here.0, &capped).contains("capped-filter"));
    assert!(here.names("out").contains("report.html"));
}

const GRID: &str = "\
agents = 10
dim = 2
steps = 32
seeds = [1, 2]
[[grid]]
aggregator = [\"mean\", \"geometric-median\"]
attack = [\"collude\", \"zero\"]
corrupt = [0.1, 0.2, 0.3]
[[grid]]
aggregator = \"solo\"
";

#[test]
fn sweep_can_be_sharded_resumed_and_merged() {
    let here = Directory::new("sweep");
    here.file("grid.toml", GRID);
    stdout(&here.0, "sweep --config grid.toml --out whole");
    let whole = here.names("whole");
    assert_eq!(whole.len(), 2 * 2 * 2 * 3 + 2);
    // Three shards in any order yield the same files.
    for part in ["2/3", "1/3", "3/3"] {
        stdout(&here.0, &format!("sweep --config grid.toml --shard {part} --out parts"));
    }
    assert_eq!(here.names("parts"), whole);
    let without_timing = |directory: &str, name: &String| {
        let text = fs::read_to_string(here.0.join(directory).join(name)).unwrap();
        let mut record: Value = serde_json::from_str(&text).unwrap();
        record["outcome"]["agent_steps_per_cpu_second"] = Value::Null;
        record
    };
    assert!(whole.iter().all(|name| without_timing("whole", name) == without_timing("parts", name)));
    // Finished results are kept; missing and truncated ones are computed again.
    let names: Vec<_> = whole.iter().collect();
    let file = |index: usize| here.0.join("whole").join(names[index]);
    let kept = fs::read(file(2)).unwrap();
    fs::remove_file(file(0)).unwrap();
    fs::write(file(1), "{\"version\":").unwrap();
    assert!(stdout(&here.0, "sweep --config grid.toml --out whole").contains("26 runs in whole, 24 already done"));
    assert_eq!(here.names("whole"), whole);
    assert_eq!(fs::read(file(2)).unwrap(), kept, "a finished run was repeated");
    assert_eq!(without_timing("whole", names[1]), without_timing("parts", names[1]));
    // Both directories yield the same report.
    let table = stdout(&here.0, "sweep --merge whole").replace("whole", "parts");
    assert_eq!(table, stdout(&here.0, "sweep --merge parts"));
    let page = |directory: &str| fs::read_to_string(here.0.join(directory).join("report.html")).unwrap();
    assert_eq!(page("whole"), page("parts"));
    assert!(page("whole").contains("Regret by share of corrupted agents"));
    for (arguments, code, sentence) in [
        ("sweep", 2, "--config"),
        ("sweep --config grid.toml", 2, "--out"),
        ("sweep --config grid.toml --out x --shard 4/3", 2, "expected I/N with I from 1 to N"),
        ("sweep --merge nowhere", 74, "nowhere"),
    ] {
        refuses(&here.0, arguments, code, sentence);
    }
    here.file("bad.toml", "agents = 10\n[[grid]]\ncorrupt = [0.1, 0.7]\n");
    refuses(&here.0, "sweep --config bad.toml --out x", 78, "corrupt: must be at least 0 and below 0.5, got 0.7");
    for (file, grid) in [("number.toml", "grid = 1"), ("mixed.toml", "grid = [{ corrupt = 0.1 }, \"corrupt\"]")] {
        here.file(file, grid);
        refuses(
            &here.0,
            &format!("sweep --config {file} --out x"),
            78,
            &format!("{file}: grid: expected tables [[grid]]"),
        );
    }
    fs::create_dir(here.0.join("empty")).unwrap();
    refuses(&here.0, "sweep --merge empty", 65, "no result files (run-*.json)");
}

#[test]
fn headings_of_merged_tables_name_all_varied_keys() {
    let here = Directory::new("headings");
    let grid = "design-corruption = [0.1, 0.2]\nepisode-len = [8, 16]\nrewards = [\"gaussian:0.5\", \"bounded\"]";
    here.file(
        "grid.toml",
        &format!("agents = 10\ndim = 2\nsteps = 32\nseeds = 1\naggregator = \"mean\"\n[[grid]]\n{grid}\n[[grid]]\n"),
    );
    stdout(&here.0, "sweep --config grid.toml --out out");
    let text = stdout(&here.0, "sweep --merge out");
    let headings: BTreeSet<&str> = text.lines().filter(|line| line.starts_with("10 agents")).collect();
    let common = "10 agents, d = 2, 32 steps, ball, 3 corrupted (collude)";
    let mut expected = BTreeSet::from([format!("{common}, rewards gaussian:0.5; seeds 1")]);
    for share in ["0.1", "0.2"] {
        for length in ["8", "16"] {
            for rewards in ["gaussian:0.5", "bounded"] {
                let keys = format!("design-corruption {share}, episode-len {length}, rewards {rewards}");
                expected.insert(format!("{common}, {keys}; seeds 1"));
            }
        }
    }
    assert!(headings.iter().copied().eq(expected.iter()), "{text}");
}

/// With a single action regret is 0. Of the two actions in the log, the oracle always takes the longer one, which is best.
#[test]
fn ratio_to_zero_regret_is_a_dash() {
    let here = Directory::new("nothing");
    here.file("log.csv", "step,x_1,x_2,reward\n1,1,0,1\n1,0,0.5,0\n");
    let log = "simulate --environment replay:log.csv --dim 2 --agents 10 --steps 64 --seeds 1 --aggregator mean";
    let text = stdout(&here.0, log);
    let [.., of_random, _, _, _, of_oracle, _, _, _] =
        text.lines().last().unwrap().split_whitespace().collect::<Vec<_>>()[..]
    else {
        panic!("{text}")
    };
    assert!(of_random.parse::<f64>().unwrap() > 0.0 && of_oracle == "–", "{text}");
    // Result files without a ratio are valid results.
    here.file("grid.toml", "agents = 12\ndim = 4\nsteps = 128\narms = 1\n");
    stdout(&here.0, "sweep --config grid.toml --out out");
    assert!(stdout(&here.0, "sweep --config grid.toml --out out").contains("15 runs in out, 15 already done"));
    for text in [stdout(&here.0, &format!("simulate {SMALL} --arms 1")), stdout(&here.0, "sweep --merge out")] {
        assert!(text.contains('–') && !text.contains("NaN") && !text.contains("inf"), "{text}");
    }
}

#[test]
fn killed_sweep_keeps_finished_results() {
    let here = Directory::new("killed");
    here.file(
        "grid.toml",
        "agents = 20\nsteps = 20000\n[[grid]]\nseeds = [1, 2, 3, 4, 5, 6, 7, 8]\naggregator = \"mean\"\n",
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedbandit"));
    let mut sweep = command.current_dir(&here.0).args("sweep --config grid.toml --out out".split(' ')).spawn().unwrap();
    let results = || -> Vec<PathBuf> {
        let files = fs::read_dir(here.0.join("out")).into_iter().flatten().map(|entry| entry.unwrap().path());
        files.filter(|file| file.extension().is_some_and(|extension| extension == "json")).collect()
    };
    while results().is_empty() && sweep.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    sweep.kill().unwrap();
    sweep.wait().unwrap();
    let finished: Vec<_> = results().into_iter().map(|file| (fs::read(&file).unwrap(), file)).collect();
    assert!(!finished.is_empty());
    for (text, file) in &finished {
        assert!(serde_json::from_slice::<Value>(text).unwrap()["outcome"]["regret"].is_number(), "{}", file.display());
    }
    stdout(&here.0, "sweep --config grid.toml --out out");
    assert_eq!(results().len(), 8);
    assert!(finished.iter().all(|(text, file)| fs::read(file).unwrap() == *text), "a finished run was repeated");
}

#[test]
fn version_man_pages_and_completions_cover_all_commands() {
    let here = Directory::new("itself");
    let version = stdout(&here.0, "--version");
    let version = version.trim().strip_prefix("fedbandit ").unwrap();
    assert!(version.starts_with(env!("CARGO_PKG_VERSION")), "{version}");
    assert_eq!(json(&here.0, &format!("simulate {SMALL} --aggregator mean"))["version"], version);
    stdout(&here.0, "man --out pages");
    let completions = stdout(&here.0, "completions bash");
    let help = stdout(&here.0, "--help");
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let commands =
        commands.lines().take_while(|line| !line.is_empty()).filter_map(|line| line.split_whitespace().next());
    let mut pages = BTreeSet::from(["fedbandit.1".to_owned()]);
    for command in commands.filter(|command| *command != "help") {
        assert!(completions.contains(&format!("fedbandit,{command})")), "{command}");
        pages.insert(format!("fedbandit-{command}.1"));
    }
    assert_eq!(here.names("pages"), pages);
    for page in pages {
        let text = fs::read_to_string(here.0.join("pages").join(&page)).unwrap();
        assert!(text.contains(&format!("fedbandit {version}")), "{page} lacks the version");
    }
}
