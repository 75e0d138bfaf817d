//! Bodies of the fuzz targets. Each takes arbitrary bytes, and panics if a property does not hold. `fuzz/` runs them with
//! libFuzzer, the test `fuzz_targets` with the corpus and seeded mutations of it.

mod operations;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::OnceLock;

use fedbandit::aggregate::table;
use fedbandit::learning::Learning;
use fedbandit::service::config::Settings;
use fedbandit::service::event::{self, Event};
use fedbandit::service::http;
use fedbandit::service::identity::Master;
use fedbandit::service::mqtt::{Broker, Topics};
use fedbandit::service::observed::Commits;
use fedbandit::service::setup::{Enrolled, Registry, Timing, start};
use fedbandit::service::store::Memory;
use fedbandit::service::{Link, Service};
use fedbandit::simulation::{Config, Experiment, Log};
use fedbandit::streams::AgentId;
use fedbandit_core::wire::{Identity, Message, Nonces, Seal, claimed_address, cobs, max_sealed_frame_len};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::signal::unix::{SignalKind, signal};

use crate::harness::process::LAST_RESORT;

/// Body of a target.
pub type Body = fn(&[u8]);

/// All targets by name.
pub const TARGETS: [(&str, Body); 10] = [
    ("frame", frame),
    ("sealed_frame", sealed_frame),
    ("stuffing", stuffing),
    ("config", config),
    ("replay_log", replay_log),
    ("npy", npy),
    ("store_row", store_row),
    ("mqtt", mqtt),
    ("http_request", http_request),
    ("operations", operations::operations),
];

/// Runs a target by its name.
///
/// # Panics
/// The name is unknown, or a property does not hold.
pub fn run(target: &str, data: &[u8]) {
    let (_, body) = TARGETS.into_iter().find(|(name, _)| *name == target).expect("the name of a target");
    body(data);
}

/// Maximum length of an encoded frame.
const FRAME: usize = max_sealed_frame_len(16);
const RUN: u32 = 1;

fn identity() -> Identity {
    Identity { run: RUN, agent: 2, dimension: 2, key: [3; 32] }
}

/// Gives bytes the address and a valid tag of a device.
fn authentic(identity: &Identity, data: &[u8]) -> Vec<u8> {
    let mut frame = data.to_vec();
    if let Some(address) = frame.get_mut(4..12) {
        address[..4].copy_from_slice(&identity.run.to_le_bytes());
        address[4..].copy_from_slice(&identity.agent.to_le_bytes());
    }
    let mut mac = Hmac::<Sha256>::new_from_slice(&identity.key).expect("any key length is valid");
    mac.update(&frame);
    frame.extend_from_slice(&mac.finalize().into_bytes()[..16]);
    frame
}

/// Plain frames, also with a valid tag: a decoded message encodes to the same bytes.
fn frame(data: &[u8]) {
    let identity = identity();
    for frame in [data.to_vec(), authentic(&identity, data)] {
        let _ = claimed_address(&frame);
        let Ok(message) = identity.decode(&frame) else { continue };
        // The dimension is part of the frame.
        let sender = Identity { dimension: frame[3], ..identity.clone() };
        let mut again = vec![0; frame.len()];
        assert_eq!(sender.encode(&message, &mut again), Ok(frame.len()), "{message:?}");
        // Unknown flags are ignored, and not encoded.
        if again[2] == frame[2] {
            assert_eq!(again, frame, "{message:?}");
        } else {
            assert_eq!(again[3..frame.len() - 16], frame[3..frame.len() - 16], "{message:?}");
        }
    }
    if let Ok(blob) = <&[u8; Identity::BLOB_LEN]>::try_from(data)
        && let Some(identity) = Identity::from_blob(blob)
    {
        assert_eq!(identity.to_blob(), *blob);
    }
}

/// Sealed frames: arbitrary bytes do not open. A sealed message opens to the same message, unless a bit has changed.
fn sealed_frame(data: &[u8]) {
    let identity = identity();
    let (device, controller) = (Seal::device(identity.clone()), Seal::controller(identity.clone()));
    for end in [&device, &controller] {
        assert!(end.decode(&mut data.to_vec()).is_err(), "arbitrary bytes open");
    }
    let plain = authentic(&identity, data);
    let Ok(message) = identity.decode(&plain) else { return };
    let sealed = Identity { dimension: plain[3], ..identity };
    let (device, controller) = (Seal::device(sealed.clone()), Seal::controller(sealed));
    let mut buffer = vec![0; plain.len() + 12];
    let (from, to) = if plain[1] < 0x80 { (device, controller) } else { (controller, device) };
    let nonce = Nonces::new(1).next().expect("a first nonce");
    let length = from.encode(nonce, &message, &mut buffer).expect("the buffer is large enough");
    assert_eq!(length, buffer.len());
    let opened = to.decode(&mut buffer.clone()).map(|opened| format!("{opened:?}"));
    assert_eq!(opened, Ok(format!("{message:?}")));
    let at = data.iter().fold(0, |sum, byte| sum + usize::from(*byte)) % (8 * length);
    buffer[at / 8] ^= 1 << (at % 8);
    assert!(to.decode(&mut buffer).is_err(), "a frame with a changed bit {at} opens");
}

/// COBS: encoded bytes decode to the same bytes; arbitrary bytes decode to frames that fit, each at a zero.
fn stuffing(data: &[u8]) {
    const ROOM: usize = 64;
    let mut decoder = cobs::Decoder::<ROOM>::new();
    for byte in data {
        assert!(decoder.push(*byte).is_none_or(|frame| *byte == 0 && frame.len() <= ROOM));
    }
    decoder.push(0);
    let frame = &data[..data.len().min(ROOM)];
    let stuffed: Vec<u8> = cobs::encode(frame).collect();
    assert!(
        stuffed.len() <= frame.len() + frame.len() / 254 + 2
            && stuffed.iter().position(|byte| *byte == 0) == Some(stuffed.len() - 1)
    );
    let frames: Vec<Vec<u8>> = stuffed.iter().filter_map(|byte| decoder.push(*byte).map(<[u8]>::to_vec)).collect();
    assert_eq!(frames, [frame]);
}

/// Configurations of simulations and services: a valid one is the same after serialization.
fn config(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let file = Path::new("a.toml");
    let mut experiment = Experiment::default();
    let simulated = experiment.read(file, text).is_ok().then_some(experiment.config);
    let served = Settings::read(file, text).ok().map(|settings| {
        if let Some(url) = settings.transports.get("mqtt").and_then(|url| url.as_str()) {
            let _ = Broker::new(url, None);
        }
        Config { learning: settings.learning, ..Config::default() }
    });
    for config in [simulated, served].into_iter().flatten() {
        let text = serde_json::to_string(&config).expect("a configuration serializes");
        let again: Config = serde_json::from_str(&text).expect("a serialized configuration is valid");
        assert_eq!(format!("{again:?}"), format!("{config:?}"));
        assert_eq!(again.check().is_ok(), config.check().is_ok());
    }
}

/// Replay logs: a parsed log is the same after formatting and parsing.
fn replay_log(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for bounded in [false, true] {
        let Ok(log) = Log::parse(&text, bounded) else { continue };
        let names: Vec<String> = (1..=log.dimension()).map(|j| format!("x_{j}")).collect();
        let mut again = format!("step,{},reward\n", names.join(","));
        for step in 0..log.sets() {
            for (x, reward) in log.set(step) {
                let x: Vec<String> = x.iter().map(|x| format!("{x:?}")).collect();
                again += &format!("{step},{},{reward:?}\n", x.join(","));
            }
        }
        assert_eq!(Log::parse(&again, bounded), Ok(log));
    }
}

/// `.npy` and `.csv` files: parsed points are the same after formatting and parsing.
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
        let again = table::npy(bytes.as_slice(), bytes.len() as u64).expect("a valid array");
        assert_eq!((again.len(), again.dimension()), (rows, columns));
        assert!(again.rows().flatten().eq(points.rows().flatten()));
    }
}

/// Rows of the store: a decoded event encodes to the same bytes.
fn store_row(data: &[u8]) {
    for dimension in [0, 1, 2, 3, 8] {
        if let Some(event) = Event::from_bytes(data, dimension) {
            assert_eq!(event.to_bytes(), data);
        }
    }
}

fn service() -> Service {
    let device = |agent| Enrolled { agent, revoked: agent == 4, sealed: agent == 3, enrolled_at: None };
    let registry = Registry { run: RUN, dimension: 2, devices: (1..=4).map(device).collect() };
    let learning = Learning { steps: 256, episode_len: Some(4), ..Learning::default() };
    let timing = Timing { time_limit: 1_000, window: 2, unix_seconds: 1 };
    start(&mut Memory::default(), &learning, &registry, &master(), timing, 0).expect("a service")
}

fn master() -> Master {
    Master::from_bytes(&[7; 32]).expect("32 bytes")
}

/// MQTT: the first line is a topic, the rest a message, also with a valid tag. A parsed topic is one of the run's. A message
/// leads to at most one event and one answer.
fn mqtt(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (topic, message) = (&data[..end], data.get(end + 1..).unwrap_or_default());
    let topics = Topics::new(RUN);
    let agent = topics.parts(topic).map_or(2, |(kind, agent)| {
        assert!(topic.ends_with(kind.as_bytes()) || topic.len() > kind.len());
        let known = [("up", topics.up(agent)), ("down", topics.down(agent)), ("state", topics.state(agent))];
        let canonical = known.into_iter().find(|(name, _)| *name == kind).map(|(_, topic)| topic);
        // Other forms of a number, such as +2 or 02, mean the same device.
        assert!(canonical.is_none_or(|canonical| canonical.len() <= topic.len()));
        agent
    });
    let mut service = service();
    service.reaches_all(Link(1));
    let first = service.take_batch().expect("the first release");
    service.committed(first);
    while service.poll().is_some() {}
    for mut frame in [message.to_vec(), authentic(&master().identity(RUN, agent, 2), message)] {
        let taken = service.handle(Link(1), &mut frame).is_ok();
        if let Some(batch) = service.take_batch() {
            assert!(taken && batch.events().len() == 1);
            service.committed(batch);
        }
        let answers = std::iter::from_fn(|| service.poll()).count();
        assert!(answers <= usize::from(taken), "{answers} answers");
        service.left(Link(1), agent);
    }
    service.tick(10_000).expect("the aggregation of an episode succeeds");
}

/// Starts the pages of a service once, and returns their address.
fn pages() -> SocketAddr {
    static PAGES: OnceLock<SocketAddr> = OnceLock::new();
    *PAGES.get_or_init(|| {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                // Ignores SIGPIPE, as Rust programs do by default; libFuzzer does not.
                let _pipe = signal(SignalKind::pipe()).expect("a signal handler");
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
                let (_status, watched) = tokio::sync::watch::channel(service().status(0));
                sender.send(listener.local_addr().expect("an address")).expect("the caller waits");
                let commits = std::sync::Arc::new(std::sync::Mutex::new(Commits::default()));
                http::serve(listener, watched, commits, "name".into()).await;
            });
        });
        receiver.recv().expect("pages")
    })
}

/// HTTP requests: after arbitrary bytes, the pages answer the next request.
fn http_request(data: &[u8]) {
    let address = pages();
    let mut stream = TcpStream::connect(address).expect("the pages listen");
    stream.set_read_timeout(Some(LAST_RESORT)).expect("a valid timeout");
    // The server may close the connection before the end.
    let _ = stream.write_all(data);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = [0; 64];
    let length = stream.read(&mut answer).unwrap_or(0);
    assert!(length == 0 || answer.starts_with(b"HTTP/1."), "{answer:?}");
    drop(stream);
    assert_eq!(http::get(address, "/healthz", LAST_RESORT).expect("an answer"), "ok\n");
}

/// Initial inputs of a target.
pub fn examples(target: &str) -> Vec<Vec<u8>> {
    let frames = || {
        let identity = identity();
        let values = [0.5_f32; 3];
        let gram = (&values).into();
        let (sum, length) = ([0.25_f32, -1.0], 28 + 8 + 20);
        let summary =
            fedbandit_core::wire::Summary { episode: 1, steps: 4, reward_sum: 1.0, gram, feature_sum: (&sum).into() };
        let messages = [
            Message::Hello { episode: 1, boot: 1 },
            Message::Heartbeat { episode: 2 },
            Message::Ack { episode: 3 },
            Message::Summary(summary),
        ];
        messages.map(|message| {
            let mut frame = vec![0; FRAME.max(length)];
            let length = identity.encode(&message, &mut frame).expect("the buffer is large enough");
            frame.truncate(length - 16);
            frame
        })
    };
    let text = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    match target {
        "frame" | "sealed_frame" => frames().to_vec(),
        "stuffing" => vec![vec![1, 0, 2, 0, 0, 3], vec![255; 300], frames()[3].clone()],
        "config" => text(&[
            "dim = 8\nattack = \"collude\"\nsteps = 100\n",
            "privacy = \"4,1e-6\"\nmechanism = \"blt\"\nepisode-len = 8\nrewards = \"bounded\"\n",
            "environment = \"replay:log.csv\"\ncorrupt = 0.25\nschedule = \"theorem\"\n",
            "seeds = [1, 2]\naggregator = [\"mean\", \"krum\"]\narms = 4\ndelta = 0.05\nsigma = 0.5\n",
            "dir = \"fleet\"\nlisten = \"127.0.0.1:0\"\nhttp = \"[::1]:7780\"\ndeadline = 5\nwindow = 2\nsteps = 640\n",
            "dir = \"a\"\nmqtt = \"mqtts://user:word@host:1883\"\nmqtt-ca = \"ca.pem\"\ntls = \"0.0.0.0:7701\"\n\
             certificate = \"cert.pem\"\nkey = \"key.pem\"\nserial = [\"/dev/ttyUSB0:115200\"]\naggregator = \"mean\"\n",
        ]),
        "replay_log" => text(&["step,x_1,x_2,reward\n1,0.6,0.8,0.4\n1,1.0,0.0,-0.2\n# a comment\n2,0.0,0.5,0.1\n"]),
        "npy" => {
            let header = "{'descr': '<f8', 'fortran_order': True, 'shape': (1, 2), }\n";
            let mut array =
                [b"\x93NUMPY\x01\0".as_slice(), &(header.len() as u16).to_le_bytes(), header.as_bytes()].concat();
            array.extend([1.5_f64, -2.0].iter().flat_map(|value| value.to_le_bytes()));
            vec![array, b"a,b\n1,2\n3,4e5\n".to_vec()]
        }
        "store_row" => {
            let (agent, gram, feature_sum) = (AgentId(1), vec![0.5; 3], vec![0.5; 2]);
            let summary = event::Summary { agent, episode: 2, steps: 3, reward_sum: 0.5, gram, feature_sum };
            vec![Event::Summary(summary).to_bytes(), [&[2; 13][..], &[0; 20]].concat(), Event::End.to_bytes()]
        }
        "mqtt" => {
            let frames = frames();
            frames.iter().map(|frame| [b"fedbandit/v1/1/up/2\n".as_slice(), frame].concat()).collect()
        }
        "http_request" => text(&[
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /metrics HTTP/1.0\r\n\r\n",
            "POST /status.json HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        ]),
        _ => vec![(0..96).collect(), (0..200).map(|byte| byte ^ 0x5a).collect()],
    }
}
