//! Fuzz targets: each processes untrusted bytes and panics if an invariant is violated.
//!
//! `fuzz/` runs them under libFuzzer, the test `targets` on the stored corpus and on seeded mutations of it.

pub mod corpus;
mod frames;
mod operations;
mod session;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use fedbandit::aggregate::table;
use fedbandit::algorithm::AgentId;
use fedbandit::config::Configure;
use fedbandit::config::RunConfig;
use fedbandit::evaluation::{ChoiceLog, Policy, evaluate};
use fedbandit::service::MasterKey;
use fedbandit::service::access::{Access, Token};
use fedbandit::service::client::Client;
use fedbandit::service::config::ServiceConfig;
use fedbandit::service::event::{self, Event};
use fedbandit::service::http::{self, Pages};
use fedbandit::service::metrics::Meter;
use fedbandit::service::store::Memory;
use fedbandit::service::transport::mqtt::{Broker, Topics};
use fedbandit::service::{Link, StateMachine, worker};
use fedbandit::service::{Registry, StartOptions, start};
use fedbandit::simulation::{Experiment, Log, SimulationConfig};
use fedbandit_core::wire::{Channel, Message, unverified_run};
use frames::{FLEET, Sender, authenticated};
use tokio::signal::unix::{SignalKind, signal};

use crate::harness::process::LAST_RESORT;

/// Function under test.
pub type Body = fn(&[u8]);

/// All targets by name.
pub const TARGETS: [(&str, Body); 12] = [
    ("frame", frames::frame),
    ("sealed_frame", frames::sealed_frame),
    ("cobs", frames::cobs),
    ("session", session::session),
    ("config", config),
    ("replay_log", replay_log),
    ("choice_log", choice_log),
    ("npy", npy),
    ("store_row", store_row),
    ("mqtt", mqtt),
    ("http_request", http_request),
    ("controller_ops", operations::operations),
];

/// Runs a target by its name.
///
/// # Panics
/// The target does not exist, or the input violates one of its invariants.
pub fn run(target: &str, data: &[u8]) {
    let (_, body) = TARGETS.into_iter().find(|(name, _)| *name == target).expect("target must be listed in TARGETS");
    body(data);
}

/// Configurations of simulations and of services: a valid one survives serialisation.
fn config(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let file = Path::new("a.toml");
    let mut experiment = Experiment::default();
    let simulated = experiment.set_toml(file, text).is_ok().then_some(experiment.config);
    let served = ServiceConfig::read(file, text).ok().map(|config| {
        let _ = config.validate();
        if let Some(url) = &config.endpoints.mqtt {
            let _ = Broker::new(url, None);
        }
        SimulationConfig { run: config.run, ..SimulationConfig::default() }
    });
    for config in [simulated, served].into_iter().flatten() {
        let text = serde_json::to_string(&config).expect("configuration serialises");
        let again: SimulationConfig = serde_json::from_str(&text).expect("serialised configuration parses");
        assert_eq!(format!("{again:?}"), format!("{config:?}"));
        assert_eq!(again.validate().is_ok(), config.validate().is_ok());
    }
}

/// Replay logs: a parsed log is unchanged when written and parsed again.
fn replay_log(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for bounded in [false, true] {
        let Ok(log) = Log::parse(&text, bounded) else { continue };
        let names: Vec<String> = (1..=log.dimension()).map(|j| format!("x_{j}")).collect();
        let mut again = format!("step,device,{},reward\n", names.join(","));
        for step in 0..log.sets() {
            let device = log.devices().iter().position(|sets| sets.contains(&step));
            let device = device.expect("each set has a device");
            for (x, reward) in log.set(step) {
                let x: Vec<String> = x.iter().map(|x| format!("{x:?}")).collect();
                again += &format!("{step},{device},{},{reward:?}\n", x.join(","));
            }
        }
        assert_eq!(Log::parse(&again, bounded), Ok(log));
    }
}

/// Logs of choices, in all formats: rewards of a parsed log have a finite mean, shares are shares, and the value of the uniform
/// policy is in its interval.
fn choice_log(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(log) = ChoiceLog::parse(&text, true, Some(2)) else { return };
    let evaluation = evaluate(&log, &[Policy::Uniform, Policy::Greedy], 1, &|_| {});
    assert_eq!(evaluation.events, log.len());
    assert!(evaluation.logged.is_finite() && 0.0 < evaluation.scale && evaluation.scale <= 1.0);
    for estimate in evaluation.policies.iter().flat_map(|policy| &policy.estimates) {
        if let (Some(low), Some(value), Some(high)) = (estimate.low, estimate.value, estimate.high) {
            assert!(low <= value && value <= high, "{value} is outside of {low} to {high}");
        }
    }
}

/// Points in `.npy` and CSV: parsed points are unchanged when written as `.npy` and parsed again.
fn npy(data: &[u8]) {
    let from_table = table::csv(data).ok();
    let from_array = table::npy(data, data.len() as u64).ok();
    for points in [from_table, from_array].into_iter().flatten() {
        let (rows, columns) = (points.len(), points.dimension());
        let mut header = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
        header += &" ".repeat(63 - (header.len() + 10) % 64);
        header.push('\n');
        let mut bytes = b"\x93NUMPY\x01\0".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.bytes());
        points.rows().flatten().for_each(|value| bytes.extend(value.to_le_bytes()));
        let again = table::npy(bytes.as_slice(), bytes.len() as u64).expect("array in NumPy's format parses");
        assert_eq!((again.len(), again.dimension()), (rows, columns));
        assert!(again.rows().flatten().eq(points.rows().flatten()));
    }
}

/// Rows of the store: a decoded event has the same bytes when encoded again.
fn store_row(data: &[u8]) {
    for dimension in [0, 1, 2, 3, 8] {
        if let Some(event) = Event::from_bytes(data, dimension) {
            assert_eq!(event.to_bytes(), data);
        }
    }
}

fn registry() -> Registry {
    let mut registry = Registry::new(FLEET, 1, 2).with_devices(1..=4);
    (registry.devices[2].sealed, registry.devices[3].revoked) = (true, true);
    registry
}

fn service() -> StateMachine {
    let run = RunConfig { steps: 256, episode_len: Some(4), ..RunConfig::default() };
    let timing = StartOptions::new(1_000, 2, 1);
    start(&mut Memory::default(), &run, &registry(), &master(), timing, 0).expect("valid configuration")
}

fn master() -> MasterKey {
    MasterKey::from_bytes(&[7; 32]).expect("master key of 32 bytes")
}

/// MQTT publications: the first line is the topic, the rest the payload, as received and with a valid tag.
///
/// A parsed topic is one of the fleet's. A payload causes at most one event and at most one reply, in its own run.
fn mqtt(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (topic, message) = (&data[..end], data.get(end + 1..).unwrap_or_default());
    let topics = Topics::new(FLEET);
    let agent = topics.parts(topic).map_or(2, |(kind, agent)| {
        assert!(topic.ends_with(kind.as_bytes()) || topic.len() > kind.len());
        let known = [("up", topics.up(agent)), ("down", topics.down(agent)), ("state", topics.state(agent))];
        let canonical = known.into_iter().find(|(name, _)| *name == kind).map(|(_, topic)| topic);
        // Other forms of an agent's number, such as +2 or 02, are longer than the canonical one.
        assert!(canonical.is_none_or(|canonical| canonical.len() <= topic.len()));
        agent
    });
    let (registry, master, mut service) = (registry(), master(), service());
    service.add_broker(Link(1));
    let first = service.take_batch().expect("batch with the first release");
    service.mark_committed(first);
    while service.poll().is_some() {}
    let key = master.device_key(FLEET, agent, 0);
    let device = registry.devices.iter().find(|device| device.agent == agent);
    let [device_frame, controller_frame] =
        [Sender::Device, Sender::Controller].map(|sender| authenticated(&key, agent, sender, message));
    for (mut frame, may_be_taken) in [(message.to_vec(), false), (controller_frame, false), (device_frame, true)] {
        let run = unverified_run(&frame).unwrap_or_default();
        let taken = service.handle_frame(Link(1), &mut frame, 0).is_ok();
        assert!(may_be_taken || !taken, "accepted without a device's tag");
        if let Some(batch) = service.take_batch() {
            assert!(taken && batch.events().len() == 1);
            service.mark_committed(batch);
        }
        let answers: Vec<_> = std::iter::from_fn(|| service.poll()).collect();
        assert!(answers.len() <= usize::from(taken), "{} answers", answers.len());
        for mut answer in answers {
            let device = device.expect("an enrolled device is answered");
            let mut channel = Channel::device(registry.identity(device, &master), 0);
            channel.enter_run(run);
            let answer = channel.decode(&mut answer.frame).expect("a frame of its run");
            let is_redirect = matches!(answer, Message::NextRun { run: 1, .. } | Message::Ack { wait: 0, .. });
            assert!(run == registry.run || is_redirect, "{answer:?} in run {run}");
        }
        service.detach(Link(1), agent);
    }
    service.tick(10_000).expect("episode closes");
}

/// Token of the status server; some examples contain it.
const TOKEN: &str = "0123456789abcdef";

/// Returns the address of a status server, which runs until the process exits.
fn status_server() -> SocketAddr {
    static ADDRESS: OnceLock<SocketAddr> = OnceLock::new();
    *ADDRESS.get_or_init(|| {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("tokio runtime starts");
            runtime.block_on(async {
                // libFuzzer has its own main, so that Rust does not ignore SIGPIPE.
                let _pipe = signal(SignalKind::pipe()).expect("SIGPIPE can be handled");
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("free port on localhost");
                let (_sender, status) = tokio::sync::watch::channel(service().status(0));
                let (handle, _running) = worker::start(service(), Box::new(Memory::default()), |_| {});
                sender.send(listener.local_addr().expect("bound address")).expect("receiver waits");
                let meter = Arc::new(Meter::new(Arc::default(), None, Instant::now()));
                let pages = Pages { status, meter, name: "name".into(), worker: handle, stored: None };
                let access = Access::with_token(&Token::parse(TOKEN).expect("valid token"));
                http::serve(listener, pages, access, None).await;
            });
        });
        receiver.recv().expect("status server starts")
    })
}

/// HTTP requests: whatever a client sends, the status server answers the next request.
fn http_request(data: &[u8]) {
    let address = status_server();
    let mut stream = TcpStream::connect(address).expect("status server accepts connections");
    stream.set_read_timeout(Some(LAST_RESORT)).expect("nonzero timeout");
    // The server may close the connection early.
    let _ = stream.write_all(data);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut response = [0; 64];
    let length = stream.read(&mut response).unwrap_or(0);
    assert!(length == 0 || response.starts_with(b"HTTP/1."), "{response:?}");
    drop(stream);
    let client = Client::new(address, LAST_RESORT, None);
    assert_eq!(client.get("/healthz", None).expect("status server responds"), "ok\n");
}

/// Returns valid inputs of a target, which complement its corpus.
pub fn examples(target: &str) -> Vec<Vec<u8>> {
    let text = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    match target {
        "frame" => [frames::examples(), frames::example_identities()].concat(),
        "sealed_frame" => frames::examples(),
        "cobs" => [vec![vec![1, 0, 2, 0, 0, 3], vec![255; 300]], frames::examples()].concat(),
        "session" => session::examples(),
        "config" => text(&[
            "dim = 8\nattack = \"collude\"\nsteps = 100\n",
            "privacy = \"4,1e-6\"\nmechanism = \"blt\"\nepisode-len = 8\nrewards = \"bounded\"\n",
            "environment = \"replay:log.csv\"\ncorrupt = 0.25\nschedule = \"theorem\"\n",
            "seeds = [1, 2]\naggregator = [\"mean\", \"krum\"]\narms = 4\ndelta = 0.05\nsigma = 0.5\n",
            "dir = \"fleet\"\nlisten = \"127.0.0.1:0\"\nhttp = \"[::1]:7780\"\ndeadline = 5\nwindow = 2\nsteps = 640\n",
            "dir = \"a\"\nmqtt = \"mqtts://user:word@host:1883\"\nmqtt-ca = \"ca.pem\"\ntls = \"0.0.0.0:7701\"\n\
             certificate = \"cert.pem\"\nkey = \"key.pem\"\nserial = [\"/dev/ttyUSB0:115200\"]\naggregator = \"mean\"\n",
        ]),
        "replay_log" => text(&[
            "step,x_1,x_2,reward\n1,0.6,0.8,0.4\n1,1.0,0.0,-0.2\n# a comment\n2,0.0,0.5,0.1\n",
            "device,step,x_1,reward\na,1,0.6,0.4\nb,1,1.0,-0.2\na,2,0.0,0.1\n",
        ]),
        "choice_log" => text(&[
            "step,x_1,x_2,reward,propensity\n1,0.6,0.8,,\n1,1,0,-2,0.25\n2,0,3,0.5,1\n",
            "shared |user s:0.5\n0:-1.5:0.2 |item a\n'tag |item b:2\n\nshared |user\n|item a\n0:1:0.5 |item b\n",
            "1:0.5:0.5 | a b:2\n2:-1:0.25 | a\n",
            "item_id,click,propensity_score,user_feature_0\n0,1,0.5,x\n1,0,0.25,y\n",
        ]),
        "npy" => {
            let header = "{'descr': '<f8', 'fortran_order': True, 'shape': (1, 2), }\n";
            let mut array =
                [b"\x93NUMPY\x01\0".as_slice(), &(header.len() as u16).to_le_bytes(), header.as_bytes()].concat();
            array.extend([1.5_f64, -2.0].iter().flat_map(|value| value.to_le_bytes()));
            vec![array, b"a,b\n1,2\n3,4e5\n".to_vec()]
        }
        "store_row" => {
            let (agent, gram, feature_sum) = (AgentId(1), vec![0.5; 3], vec![0.5; 2]);
            let summary = event::SummaryEvent { agent, episode: 2, steps: 3, reward_sum: 0.5, gram, feature_sum };
            vec![Event::Summary(summary).to_bytes(), [&[2; 13][..], &[0; 20]].concat(), Event::End.to_bytes()]
        }
        "mqtt" => {
            let topic = b"fedbandit/v2/1/up/2\n".as_slice();
            frames::examples().iter().map(|frame| [topic, frame].concat()).collect()
        }
        "http_request" => text(&[
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /metrics HTTP/1.0\r\nAuthorization: Basic OjAxMjM0NTY3ODlhYmNkZWY=\r\n\r\n",
            "GET /api/devices?order=distance&after=1&limit=2 HTTP/1.0\r\nAuthorization: Bearer 0123456789abcdef\r\n\r\n",
            "POST /status.json HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        ]),
        _ => vec![(0..96).collect(), (0..200).map(|byte| byte ^ 0x5a).collect()],
    }
}
