//! Black-box tests of `fedbandit enroll`, `serve`, `device`, `status`, `export` and `revoke`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::process::Process;
use crate::test_fleet::{Fleet, Service, connect};
use fedbandit::service::event::{Event, ModelEvent, SummaryEvent};
use fedbandit::service::store::Store;
use fedbandit::service::store::file::File;
use fedbandit_core::wire::cobs;
use serde_json::Value;

/// Thirty honest devices and ten corrupted ones: the honest ones reach almost the best expected reward.
#[test]
fn fleet_with_a_quarter_corrupted_learns() {
    let here = Fleet::empty("fleet-learns");
    here.stdout("enroll --dir fleet --dim 8 --count 40");
    here.configure("steps = 4096");
    let service = here.serve();
    let corrupted = here.devices(&service.devices[0], "--first 31 --count 10 --attack sign-flip --episodes 30");
    let honest = here.devices(&service.devices[0], "--count 30 --episodes 30").report();
    corrupted.report();
    assert_eq!((&honest["devices"], &honest["episodes"]), (&30.into(), &30.into()));
    assert_eq!(honest["acknowledged"], 30 * 30);
    let [worth, best] = ["last_mean_worth", "last_mean_best"].map(|key| honest[key].as_f64().unwrap());
    // Random choices have an expected reward of 0; the simulated regret is below 1 % of theirs.
    assert!(worth > 0.95 * best, "{worth} of {best}");
    let status = service.wait_for(|status| status["episode"].as_u64() >= Some(30));
    assert_eq!((&status["enrolled"], &status["run"]), (&40.into(), &1.into()));
    assert_eq!(here.json(&format!("status --json --http {} --token fleet/http.token", service.http))["run"], 1);
    // The median over devices is that of honest ones, up to noise.
    let mean_reward = status["mean_reward"].as_f64().unwrap();
    assert!(mean_reward > 0.8 * best && mean_reward < 1.2 * best, "{mean_reward} of {best}");
    let far: Vec<u64> = status["suspicious"].as_array().unwrap().iter().map(|s| s["agent"].as_u64().unwrap()).collect();
    assert!(far.len() == 8 && far.iter().all(|agent| *agent > 30), "outliers are not all corrupted: {far:?}");
}

/// Seven of ten devices lie, so the models are lies. Guarded devices learn nevertheless; the others follow the lies.
#[test]
fn guarded_devices_learn_among_a_majority_of_liars() {
    let share_of_best = |guard: &str| {
        let here = Fleet::new(&format!("guard-{guard}"), 10);
        here.configure("steps = 4096");
        let service = here.serve();
        let liars = here.devices(&service.devices[0], "--first 4 --count 7 --attack sign-flip --episodes 30");
        let honest = here.devices(&service.devices[0], &format!("--count 3 --episodes 30 --guard {guard}")).report();
        assert_eq!(liars.report()["alarms"], 0);
        let [worth, best] = ["late_mean_worth", "late_mean_best"].map(|key| honest[key].as_f64().unwrap());
        println!("guard {guard}: {worth:.3} of {best:.3}, {} alarms", honest["alarms"]);
        worth / best
    };
    // Random choices have an expected reward of 0.
    for guard in ["on", "untrusting"] {
        let share = share_of_best(guard);
        assert!(share > 0.8, "{guard}: {share}");
    }
    let share = share_of_best("off");
    assert!(share < 0.0, "off: {share}");
}

/// Models that clip rewards need devices that do: the others say so.
#[test]
fn guarded_devices_report_models_with_another_range_of_rewards() {
    let here = Fleet::new("range", 1);
    here.configure("rewards = \"bounded\"\nsteps = 64");
    let service = here.serve();
    let complaint = here.devices(&service.devices[0], "--episodes 1").complaint();
    assert!(complaint.ends_with("start the devices with the --rewards of the run"), "{complaint}");
    assert_eq!(here.devices(&service.devices[0], "--episodes 1 --rewards bounded").report()["acknowledged"], 1);
}

#[test]
fn garbage_ends_the_connection_of_its_sender_only() {
    let here = Fleet::new("garbage", 3);
    here.configure("");
    let service = here.serve();
    let mut hostile = connect(service.tcp());
    let garbage: Vec<u8> = (0..64_u8).flat_map(|n| cobs::encode(&[n; 40]).collect::<Vec<_>>()).collect();
    let mut end = [0; 16];
    let closed =
        (0..50).any(|_| hostile.write_all(&garbage).is_err()) || matches!(hostile.read(&mut end), Ok(0) | Err(_));
    assert!(closed);
    // A frame without an end is not kept beyond the maximum length.
    let mut endless = connect(service.tcp());
    (0..64).for_each(|_| drop(endless.write_all(&[7; 16_384])));
    let report = here.devices(&service.devices[0], "--count 3 --episodes 3").report();
    assert_eq!(report["acknowledged"], 9);
    service.wait_for(|status| status["dropped"]["unknown"].as_u64() >= Some(1));
    assert!(service.get("/metrics").contains("fedbandit_frames_dropped_total{reason=\"unknown\"}"));
}

#[test]
fn pages_are_served_and_load_nothing_external() {
    let here = Fleet::new("pages", 3);
    here.configure("");
    let service = here.serve();
    assert!(service.get("/healthz").ends_with("ok\n"));
    service.wait_for(|status| status["episode"] == 1);
    let metrics = service.get("/metrics");
    for name in ["episode 1", "devices_enrolled 3", "devices_missing 3", "repaired_models_total 0"] {
        assert!(metrics.contains(&format!("\nfedbandit_{name}\n")), "{name}: {metrics}");
    }
    assert!(!metrics.contains("agent="), "no label per device");
    let page = service.get("/");
    for loaded in ["http:", "https:", "src=", "href=", "url(", "@import"] {
        assert!(!page.contains(loaded), "the page loads something: {loaded}");
    }
    let mut events = connect(&service.http);
    write!(events, "GET /events HTTP/1.1\r\nHost: x\r\n{}\r\n", service.authorization).unwrap();
    let first = BufReader::new(events).lines().map_while(Result::ok).find(|line| line.starts_with("data: ")).unwrap();
    let status: Value = serde_json::from_str(first.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(status["enrolled"], 3);
}

/// A family of metrics: its type, and its samples as (name with labels, value).
type Family = (String, Vec<(String, f64)>);

/// Parses the subset of Prometheus' text format that is used, strictly.
fn families(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut helped = None;
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(!help.is_empty() && helped.replace(name.to_owned()).as_deref() != Some(name));
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(helped.as_deref(), Some(name), "HELP comes first");
            assert!(["gauge", "counter", "histogram"].contains(&kind));
            assert!(name.starts_with("fedbandit_") && (kind == "counter") == name.ends_with("_total"), "{name}");
            assert!(families.insert(name.into(), (kind.into(), Vec::new())).is_none(), "{name} twice");
            current = name.into();
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            let name = sample.split('{').next().unwrap();
            let suffix = name.strip_prefix(&*current).unwrap_or_else(|| panic!("{line} is not of {current}"));
            let (kind, samples) = families.get_mut(&current).unwrap();
            let allowed: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(allowed.contains(&suffix), "{line}");
            assert!(samples.iter().all(|(other, _)| other != sample), "{sample} twice");
            samples.push((sample.into(), value.parse().unwrap()));
        }
    }
    families
}

#[test]
fn metrics_are_in_prometheus_format() {
    let here = Fleet::new("metrics", 3);
    here.configure("");
    let service = here.serve();
    here.devices(&service.devices[0], "--count 3 --episodes 4").report();
    service.wait_for(|status| status["episode"] == 5);
    let answer = service.get("/metrics");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    let families = families(body);
    let value = |name: &str| match &families[&format!("fedbandit_{name}")].1[..] {
        [(_, value)] => *value,
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!((value("episode"), value("devices_enrolled"), value("devices_missing")), (5.0, 3.0, 3.0));
    assert_eq!((value("summaries_accepted_total"), value("summaries_late_total")), (12.0, 0.0));
    assert_eq!((value("missing_ratio"), value("repaired_models_total")), (0.0, 0.0));
    assert!(value("beta") > 0.0 && value("lambda") > 0.0 && value("aggregation_passes") > 0.0);
    assert!(value("certified_gap") >= 0.0 && value("mean_reward").is_finite());
    for name in ["summaries_duplicate_total", "summaries_rejected_total", "frames_dropped_total"] {
        assert_eq!(families[&format!("fedbandit_{name}")].0, "counter");
    }
    assert!(!families.contains_key("fedbandit_privacy_mu"), "the run is not private");
    let commits = &families["fedbandit_commit_seconds"].1;
    let counts: Vec<f64> =
        commits.iter().filter(|(name, _)| !name.ends_with("_sum")).map(|(_, value)| *value).collect();
    assert!(counts.is_sorted() && counts[0] >= 0.0, "buckets are cumulative: {commits:?}");
    assert!(*counts.last().unwrap() >= 5.0, "at least one commit per release: {commits:?}");
    assert_eq!(counts[counts.len() - 2], counts[counts.len() - 1], "the last bucket counts all");
    assert!(!body.contains("agent="), "no label per device");
}

/// Each line is an object, an episode has one line, and a flood of frames does not flood the log.
#[test]
fn log_is_json_and_limited() {
    let here = Fleet::new("logs", 3);
    here.configure("");
    let log = fs::File::create(here.path().join("log")).unwrap();
    let service = Service::start(here.command("serve --config controller.toml --log-format json").stderr(log));
    for _ in 0..40 {
        let mut hostile = connect(service.tcp());
        let garbage: Vec<u8> = (0..32_u8).flat_map(|n| cobs::encode(&[n; 40]).collect::<Vec<_>>()).collect();
        let _ = hostile.write_all(&garbage);
        // Until the service ends the connection.
        let _ = hostile.read(&mut [0; 16]);
    }
    let dropped = |status: &Value| status["dropped"]["unknown"].as_u64() >= Some(40 * 16);
    service.wait_for(dropped);
    here.devices(&service.devices[0], "--count 3 --episodes 4").report();
    let closed = service.wait_for(|status| status["episode"] == 5)["history"].as_array().unwrap().len();
    drop(service);
    let log = fs::read_to_string(here.path().join("log")).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let with = |message: &str| -> Vec<&Value> { lines.iter().filter(|line| line["message"] == message).collect() };
    assert_eq!((with("run started").len(), with("listening").len()), (1, 1));
    let episodes = with("episode closed");
    assert_eq!(episodes.len(), closed);
    for (k, line) in (1..).zip(&episodes) {
        assert_eq!((&line["level"], &line["episode"]), (&"INFO".into(), &k.into()));
        for key in ["missing", "beta", "passes", "gap", "repaired", "mean_reward"] {
            assert!(line[key].is_number(), "{key}: {line}");
        }
    }
    let rejected = with("frames dropped, or summaries counted as zero");
    assert!(rejected.iter().map(|line| line["frames"].as_u64().unwrap()).sum::<u64>() >= 40 * 16);
    assert_eq!(lines.len(), 2 + episodes.len() + rejected.len(), "no other line: {log}");
    assert!(rejected.len() <= closed);
    here.configure("episode-len = 2");
    let output = here.command("serve --config controller.toml --log off").output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap().lines().count(), 1, "only the reason for the failed start");
}

#[test]
fn status_reads_the_service_or_the_store() {
    let here = Fleet::empty("status");
    here.refuses("status --dir fleet", 78, "no device is enrolled");
    here.stdout("enroll --dir fleet --dim 4 --count 3");
    here.refuses("status --dir fleet", 78, "the run has not begun; 3 devices enrolled");
    here.configure("");
    let service = here.serve();
    here.devices(&service.devices[0], "--count 3 --episodes 4").report();
    let running = service.wait_for(|status| status["episode"] == 5);
    let status = here.json("status --dir fleet --json");
    assert_eq!(status["service"], format!("http://{}", service.http));
    assert_eq!(status["history"], running["history"]);
    let text = here.stdout("status --dir fleet");
    assert!(text.starts_with("run 1, at http://127.0.0.1:") && text.contains("5 of 74, "), "{text}");
    // A killed service leaves its address behind, which may belong to another run by now.
    let port = service.http.clone();
    drop(service);
    here.stdout("enroll --dir other --dim 4 --count 7");
    here.configure("");
    let settings = fs::read_to_string(here.path().join("controller.toml")).unwrap();
    let settings = settings.replace("http = \"127.0.0.1:0\"", &format!("http = \"{port}\"")).replace("fleet", "other");
    fs::write(here.path().join("controller.toml"), settings).unwrap();
    let other = here.serve();
    assert_eq!(here.json(&format!("status --json --http {} --token other/http.token", other.http))["enrolled"], 7);
    let stopped = here.json("status --dir fleet --json");
    assert_eq!((&stopped["service"], &stopped["enrolled"]), (&Value::Null, &3.into()));
    for key in ["run", "episode", "episodes", "config_hash", "history", "beta", "lambda", "suspicious", "exploration"] {
        assert_eq!(stopped[key], running[key], "{key}");
    }
    assert_eq!(stopped["received"]["accepted"], 12);
    let text = here.stdout("status --dir fleet");
    assert!(text.starts_with("run 1, no service is running\n"), "{text}");
    assert!(text.contains("\n  exploration  more than 0.5 of 3 devices needed along each direction\n"), "{text}");
    drop(other);
    here.configure("");
    let service = here.serve();
    assert_eq!(here.json("status --dir fleet --json")["service"], format!("http://{}", service.http));
}

#[test]
fn completed_run_stays_completed_after_restarts() {
    let here = Fleet::new("over", 2);
    here.configure("steps = 12\nepisode-len = 4");
    let is_over = |status: &Value| status["episode"].is_null() && status["history"].as_array().unwrap().len() == 3;
    let service = here.serve();
    here.devices(&service.devices[0], "--count 2 --episodes 3").report();
    let over = service.wait_for(is_over);
    assert_eq!((&over["finished"], &over["seconds_left"], &over["missing"]), (&true.into(), &Value::Null, &0.into()));
    drop(service);
    let stopped = here.json("status --dir fleet --json");
    assert!(is_over(&stopped) && stopped["history"] == over["history"], "{stopped}");
    assert!(here.stdout("status --dir fleet").contains("all 3 finished"));
    here.serve().wait_for(is_over);
    assert_eq!(here.stored().len(), 6);
}

#[test]
fn exports_equal_the_store_in_both_formats() {
    let here = Fleet::empty("export");
    here.stdout("enroll --dir fleet --dim 2 --count 2 --private");
    here.stdout("enroll --dir fleet --count 1 --sealed");
    here.configure("rewards = \"bounded\"\nprivacy = \"4,1e-6\"\nepisode-len = 8");
    let service = here.serve();
    here.devices(&service.devices[0], "--count 3 --episodes 1").report();
    service.wait_for(|status| status["received"]["accepted"] == 3);
    here.stdout("revoke --dir fleet 2");
    let devices = here.stdout("export --dir fleet --what devices");
    let (head, devices) = devices.split_once('\n').unwrap();
    assert_eq!(serde_json::from_str::<Value>(head.strip_prefix("# ").unwrap()).unwrap()["config"]["dim"], 2);
    let lines: Vec<&str> = devices.lines().collect();
    let observed = "last_episode,missing_streak,zeroed,distance,seconds_since_seen,connected,transport,boot,dropped,dropped_unverified";
    assert_eq!((lines[0], lines.len()), (&*format!("agent,sealed,revoked,enrolled_at,generation,{observed}"), 4));
    // Private: no reasons for zero, and no distance.
    assert!(lines[3].contains(",0,1,0,,,") && lines[3].contains(",tcp,"), "{devices}");
    assert!(lines[2].starts_with("2,false,true,") && lines[3].starts_with("3,true,false,"), "{devices}");
    let [enrolled_at, generation] =
        [3, 4].map(|column| lines[1].split(',').nth(column).unwrap().parse::<u64>().unwrap());
    assert!(enrolled_at > 1_700_000_000 && generation == 0, "{devices}");
    here.refuses("export --dir fleet --what messages", 2, "the run is private");
    let tables = ["--what releases --format json", "--what releases", "--what messages --raw"];
    let exported = |table: &&str| here.stdout(&format!("export --dir fleet {table}"));
    let running = tables.each_ref().map(exported);
    let answer = service.get("/api/messages");
    assert!(answer.starts_with("HTTP/1.0 403 ") && answer.contains("messages contain no noise"), "{answer}");
    drop(service);

    here.refuses("export --dir fleet --what messages", 2, "the run is private");
    assert_eq!(tables.each_ref().map(exported), running, "a running service exports the same");
    let stopped = here.stdout("export --dir fleet --what devices");
    assert!(stopped.lines().nth(4).unwrap().ends_with(",0,1,0,,,,,,,,"), "{stopped}");
    let mut stored: Vec<Event> = Vec::new();
    let store = File::open_read_only(&here.path().join("fleet/run.redb")).unwrap();
    store.replay(0, &mut |_, bytes| stored.push(Event::from_bytes(bytes, 2).unwrap())).unwrap();
    drop(store);
    let numbers = |line: &str| -> Vec<f32> { line.split(',').map(|cell| cell.parse().unwrap()).collect() };
    let messages = here.stdout("export --dir fleet --what messages --raw");
    let expected: Vec<Vec<f32>> = stored
        .iter()
        .filter_map(|event| match event {
            Event::Summary(SummaryEvent { agent, episode, steps, reward_sum, gram, feature_sum }) => {
                Some([&[agent.0 as f32, *episode as f32, *steps as f32, *reward_sum], &**gram, &**feature_sum].concat())
            }
            _ => None,
        })
        .collect();
    let mut lines = messages.lines().skip(1);
    assert_eq!(lines.next(), Some("agent,episode,steps,reward_sum,gram_1,gram_2,gram_3,feature_sum_1,feature_sum_2"));
    assert_eq!((lines.map(numbers).collect::<Vec<_>>(), expected.len()), (expected, 3));

    assert_eq!(here.stdout("export --dir fleet --what releases --format json --out models/all.jsonl"), "");
    let models = fs::read_to_string(here.path().join("models/all.jsonl")).unwrap();
    let mut models: Vec<Value> = models.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let head = models.remove(0);
    assert_eq!((&head["config"]["privacy"], &head["config"]["dim"]), (&"4,0.000001".into(), &2.into()));
    assert!(head["config"].get("attack").is_none(), "a setting of simulations: {head}");
    assert_eq!(head["run"], here.json("status --dir fleet --json")["run"]);
    assert_eq!(format!("fedbandit {}", head["version"].as_str().unwrap()), here.stdout("--version").trim());
    let releases: Vec<&ModelEvent> = stored
        .iter()
        .filter_map(|event| if let Event::Model(release) = event { Some(release) } else { None })
        .collect();
    assert_eq!(models.len(), releases.len());
    for (model, release) in models.iter().zip(releases) {
        let values = |key: &str| model[key].as_array().unwrap().iter().map(|value| value.as_f64().unwrap() as f32);
        assert_eq!(values("theta").collect::<Vec<_>>(), release.theta);
        assert_eq!(values("design").collect::<Vec<_>>(), release.design);
        assert_eq!((&model["episode"], &model["rewards"]), (&release.episode.into(), &"clipped".into()));
        assert_eq!(model["beta"].as_f64().unwrap() as f32, release.beta);
    }
    assert_eq!(fs::read_dir(here.path().join("models")).unwrap().count(), 1, "a temporary file is left");
}

#[test]
fn invalid_enrolments_and_settings_are_refused() {
    let here = Fleet::empty("enrolment");
    here.refuses("enroll --dir fleet", 2, "--dim is required for the first devices");
    here.refuses("enroll --dir fleet --dim 65", 2, "--dim must be from 1 to 64, got 65");
    here.refuses("revoke --dir fleet 1", 78, "no device is enrolled");
    assert!(here.stdout("enroll --dir fleet --dim 4 --run 9 --count 2").contains("enrolled 1 to 2 of run 9"));
    assert!(here.stdout("enroll --dir fleet --count 2").contains("enrolled 3 to 4 of run 9"));
    here.refuses("enroll --dir fleet --dim 8", 2, "belongs to run 9 with --dim 4");
    here.refuses("revoke --dir fleet 5", 2, "device 5 is not enrolled");
    let file = here.path().join("fleet/registry.json");
    let registry = fs::read_to_string(&file).unwrap();
    fs::write(&file, registry.replace("\"agent\": 4,", "\"agent\": 4294967295,")).unwrap();
    here.refuses("enroll --dir fleet", 65, "no device numbers left after 4294967295");
    fs::write(&file, registry).unwrap();
    assert!(here.stdout("revoke --dir fleet 2").contains("1 of 4 devices (25 %) are revoked and count as corrupted"));
    // Once a run has begun, the store remembers its terms.
    here.configure("episode-len = 32");
    drop(here.serve());
    for secret in ["fleet/master.key", "fleet/http.token", "fleet/devices/agent-1.blob", "fleet/run.redb"] {
        assert_eq!(fs::metadata(here.path().join(secret)).unwrap().permissions().mode() & 0o777, 0o600, "{secret}");
    }
    here.configure("episode-len = 16");
    here.refuses("serve --config controller.toml", 78, "episode-len is 32, configured 16; restore the old settings");
    for (more, sentence) in [
        ("agents = 5", "agents: follows from the enrolled devices; remove the key"),
        ("episode-len = 0", "episode-len: episode length must be from 1 to 65536, got 0"),
        ("nonsense = 5", "nonsense: unknown key; expected one of dir, "),
        ("seeds = [1]", "seeds: unknown key; expected one of dir, "),
        ("aggregator = \"oracle\"", "aggregator: oracle is available in simulations only"),
        ("aggregator = \"solo\"", "aggregator: solo is available in simulations only"),
        (
            "aggregator = \"whitened-oracle\"\nrewards = \"bounded\"",
            "aggregator: whitened-oracle is available in simulations only",
        ),
        ("aggregator = [\"krum\", \"mean\"]", "aggregator: expected a single value, found a list"),
        ("privacy = \"4,1e-6\"", "privacy: requires bounded rewards"),
        ("window = -1", "controller.toml:5: window: invalid "),
        ("window = 64", "window: must be from 0 to 63"),
        ("aggregator = \"whitened-filter\"\nrewards = \"auto:2\"", "whitened-filter does not estimate the noise level"),
        ("rewards = \"auto:2\"\nprivacy = \"4,1e-6\"", "privacy: requires bounded rewards"),
        ("assumed-rewards = \"auto:2\"", "assumed-rewards: describes a simulated world; remove the key"),
    ] {
        here.configure(more);
        here.refuses("serve --config controller.toml", 78, sentence);
    }
    here.configure("episode-len = 32");
    let service = here.serve();
    here.refuses("serve --config controller.toml", 74, "run.redb: in use by another process; stop its service first");
    let device = format!("device --connect {} --identities fleet/devices", service.devices[0]);
    here.refuses(&format!("{device} --attack adaptive"), 2, "adaptive needs knowledge of other devices");
    here.refuses(&format!("{device} --first 9"), 74, "agent-9.blob");
    here.refuses("device --connect localhost:1 --identities fleet/devices", 2, "tcp://HOST:PORT");
    here.refuses("status --http 127.0.0.1:1", 74, "127.0.0.1:1");
}

/// More devices can be enrolled afterwards.
#[test]
fn failed_first_start_leaves_no_trace() {
    let here = Fleet::new("first-start", 2);
    for (more, sentence) in [
        ("window = 100", "controller.toml: window: must be from 0 to 63"),
        ("aggregator = \"krum\"", "controller.toml: aggregator: krum is undefined for 2 points, 0 of them corrupted"),
        ("aggregator = \"solo\"", "controller.toml: aggregator: solo is available in simulations only"),
    ] {
        here.configure(more);
        here.refuses("serve --config controller.toml", 78, sentence);
        here.refuses("status --dir fleet", 78, "the run has not begun; 2 devices enrolled");
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    here.configure_at(address.port(), "");
    here.refuses("serve --config controller.toml", 74, &format!("{address}: Address already in use"));
    here.stdout("enroll --dir fleet --count 1");
    here.configure("window = 4\naggregator = \"krum\"");
    drop(here.serve());
    here.refuses(
        "enroll --dir fleet",
        2,
        "takes a device without data for a corrupted one, so its devices are fixed; continue it in another directory",
    );
    // A store that a crash left before its run began.
    let path = here.path().join("fleet/run.redb");
    fs::remove_file(&path).unwrap();
    drop(File::open(&path).unwrap());
    here.refuses("status --dir fleet", 78, "the run has not begun; 3 devices enrolled");
    here.refuses("export --dir fleet --what releases", 65, "the run has not begun");
}

/// Firmware may be compiled for dimensions that virtual devices do not support.
#[test]
fn service_accepts_any_dimension() {
    let here = Fleet::empty("dimension");
    here.stdout("enroll --dir fleet --dim 7 --count 2");
    here.configure("");
    let service = here.serve();
    service.wait_for(|status| status["episode"] == 1);
    let device = format!("device --connect {} --identities fleet/devices", service.devices[0]);
    here.refuses(&device, 2, "is not supported by virtual devices; use one of ");
}

/// A lost master key stops the run. A lost registry and lost identities are generated again.
#[test]
fn lost_files_are_reported_or_restored() {
    let here = Fleet::new("lost", 2);
    here.configure("episode-len = 32");
    drop(here.serve());
    let [master, registry, blob] =
        ["master.key", "registry.json", "devices/agent-2.blob"].map(|name| here.path().join("fleet").join(name));
    let [secret, flashed] = [&master, &blob].map(|file| fs::read(file).unwrap());
    fs::remove_file(&master).unwrap();
    here.refuses("serve --config controller.toml", 78, "master.key: missing; restore it from the backup");
    assert!(!master.exists());
    fs::write(&master, [0; 31]).unwrap();
    here.refuses("serve --config controller.toml", 65, "master.key: found 31 bytes, expected 32; restore the backup");
    fs::write(&blob, [0; 51]).unwrap();
    let device = "device --connect tcp://127.0.0.1:1 --identities fleet/devices --first 2";
    here.refuses(
        device,
        65,
        "agent-2.blob: not a device identity of 60 bytes, found 51; create the identity with fedbandit",
    );
    fs::write(&blob, [0; 60]).unwrap();
    here.refuses(device, 65, "agent-2.blob: not a device identity; create the identity with fedbandit enroll");
    fs::write(&master, secret).unwrap();
    fs::remove_file(&registry).unwrap();
    fs::remove_file(&blob).unwrap();
    here.stdout("enroll --dir fleet --dim 4 --count 2");
    assert!(fs::read(&blob).unwrap() == flashed);
    drop(here.serve());
}

/// Plain and sealed, beside virtual devices.
#[test]
fn python_devices_learn_with_virtual_ones() {
    let here = Fleet::new("python", 2);
    here.stdout("enroll --dir fleet --count 2 --sealed");
    here.configure("episode-len = 8");
    let service = here.serve();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/reference_device.py");
    let python = |agent: u32| {
        let identity = format!("fleet/devices/agent-{agent}.blob");
        let mut command = Command::new("python3");
        command.current_dir(here.path()).arg(script).args(["--connect", service.tcp(), "--identity", &identity]);
        Process::spawn(command.args(["--episodes", "5"]))
    };
    let pythons = [1, 3].map(python);
    let virtual_device = |agent: u32| here.devices(&service.devices[0], &format!("--first {agent} --episodes 5"));
    for device in [2, 4].map(virtual_device) {
        assert_eq!(device.report()["acknowledged"], 5);
    }
    pythons.into_iter().for_each(|python| drop(python.output()));
    let status = service.wait_for(|status| status["episode"] == 6);
    assert_eq!((&status["missing_in_last_episode"], &status["faults"]), (&0.into(), &serde_json::json!({})));
}
