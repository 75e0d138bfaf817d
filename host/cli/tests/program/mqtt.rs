//! Devices behind mosquitto, an MQTT broker.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::{fs, thread};

use crate::broker::{ANYBODY, Broker};
use crate::process::{Process, wait_until};
use crate::test_certificate;
use crate::test_fleet::{Fleet, free_port};
use fedbandit::config::RunConfig;
use fedbandit::service::MasterKey;
use fedbandit::service::event::Event;
use fedbandit::service::store::{Memory, Store, StoreError};
use fedbandit::service::transport::mqtt;
use fedbandit::service::{Dropped, EnrolledDevice, Registry, Snapshot, StartOptions, start, worker};
use fedbandit_core::wire::{Channel, Message, SummaryMessage};
use rumqttc::{BrokerSessionResumePolicy, Client, Packet};

fn configure(fleet: &Fleet, broker: &str, more: &str) {
    fleet.configure(&format!("mqtt = \"{broker}\"\n{more}"));
}

/// As in the guide: a device may only access its own topics; its number is its user name.
const ACL: &str = "user controller\n\
    topic read fedbandit/v2/+/up/+\n\
    topic read fedbandit/v2/+/state/+\n\
    topic write fedbandit/v2/+/down/+\n\
    pattern write fedbandit/v2/+/up/%u\n\
    pattern write fedbandit/v2/+/state/%u\n\
    pattern read fedbandit/v2/+/down/%u\n";

/// Thirty honest devices and ten corrupted ones, behind a broker that restricts each to its own topics.
#[test]
fn fleet_learns_through_a_broker() {
    let fleet = Fleet::new("mqtt-learns", 40);
    let names = ["controller".to_owned()].into_iter().chain((1..=40).map(|agent| agent.to_string()));
    let passwords: String = names.map(|name| format!("{name}:secret-{name}\n")).collect();
    fs::write(fleet.path().join("passwords"), passwords).unwrap();
    fs::write(fleet.path().join("acl"), ACL).unwrap();
    Process::spawn(Command::new("mosquitto_passwd").args(["-U", "passwords"]).current_dir(fleet.path())).output();
    let broker = Broker::start(&fleet, "allow_anonymous false\npassword_file passwords\nacl_file acl");
    let url = |user: &str| broker.url().replace("//", &format!("//{user}:secret-{user}@"));
    configure(&fleet, &url("stranger"), "steps = 4096");
    let complaint = fleet.serve_and_log("warn", Stdio::piped()).process.stderr().next().unwrap();
    assert!(complaint.contains(&format!("mqtt 127.0.0.1:{}: ", broker.port)), "{complaint}");
    assert!(!complaint.contains("secret") && complaint.ends_with("; retrying"), "{complaint}");
    configure(&fleet, &url("controller"), "steps = 4096");
    let service = fleet.serve();
    assert_eq!(service.devices[1], broker.url(), "without the password");
    let episodes = "--episodes 30";
    let corrupted = fleet.devices(&url("{agent}"), &format!("--first 31 --count 10 --attack sign-flip {episodes}"));
    let honest = fleet.devices(&url("{agent}"), &format!("--count 30 {episodes}")).report();
    corrupted.report();
    assert_eq!((&honest["episodes"], &honest["acknowledged"]), (&30.into(), &900.into()));
    let [worth, best] = ["late_mean_worth", "late_mean_best"].map(|key| honest[key].as_f64().unwrap());
    assert!(worth > 0.95 * best && best > 0.0, "{worth} of {best}");
    let status = service.wait_for(|status| status["connected"] == 0);
    assert_eq!((&status["faults"], &status["dropped"]), (&serde_json::json!({}), &serde_json::json!({})));
}

#[test]
fn late_joiner_finds_its_model() {
    let fleet = Fleet::new("mqtt-late", 2);
    let broker = Broker::start(&fleet, ANYBODY);
    configure(&fleet, &broker.url(), "");
    let service = fleet.serve();
    let frame = broker.next("down/2");
    let mut received = frame.clone();
    assert!(matches!(fleet.channel(2).decode(&mut received), Ok(Message::Model(model)) if model.episode == 1));
    assert!(fleet.channel(1).decode(&mut received).is_err());
    // A killed service computes the same model again, and publishes it to a broker that lost it.
    drop(service);
    let _service = fleet.serve();
    fs::remove_file(fleet.path().join("mosquitto.db")).ok();
    let mut broker = broker;
    broker.restart();
    assert_eq!(broker.next("down/2"), frame);
}

#[test]
fn last_will_reports_a_lost_device() {
    let fleet = Fleet::new("mqtt-will", 2);
    let broker = Broker::start(&fleet, ANYBODY);
    configure(&fleet, &broker.url(), "");
    let service = fleet.serve();
    // Without the other device it waits for a model.
    let device = fleet.devices(&broker.url(), "");
    broker.wait_for_state(1, "ready");
    service.wait_for(|status| status["connected"] == 1);
    drop(device);
    broker.wait_for_state(1, "lost");
    service.wait_for(|status| status["connected"] == 0);
    // A regular end is reported as such.
    fleet.devices(&broker.url(), "--count 2 --episodes 3").report();
    broker.wait_for_state(1, "disconnected");
    service.wait_for(|status| status["connected"] == 0);
}

/// The broker is killed three times and the service once. In the end every summary is acknowledged, and stored once.
#[test]
fn killed_broker_loses_nothing() {
    const EPISODES: u32 = 40;
    let fleet = Fleet::new("mqtt-killed", 4);
    let mut broker = Broker::start(&fleet, ANYBODY);
    configure(&fleet, &broker.url(), "steps = 40000\nepisode-len = 4");
    let mut service = fleet.serve();
    let devices = fleet.devices(&broker.url(), &format!("--count 4 --episodes {EPISODES}"));
    for kill in 1..=3 {
        service.wait_for_episode(8 * kill);
        broker.restart();
    }
    service.wait_for_episode(30);
    drop(service);
    service = fleet.serve();
    assert_eq!(devices.report()["acknowledged"], 4 * EPISODES);
    drop(service);
    let all = (1..=4).flat_map(|agent| (1..=EPISODES).map(move |episode| (agent, episode))).collect();
    assert_eq!(fleet.stored(), all);
}

#[test]
fn messages_of_strangers_are_dropped_and_counted() {
    let fleet = Fleet::new("mqtt-strangers", 2);
    // The broker itself drops nothing.
    let broker = Broker::start(&fleet, &format!("{ANYBODY}\nmax_queued_messages 0"));
    configure(&fleet, &broker.url(), "");
    let service = fleet.serve();
    let mut frame = [0; 64];
    let length = fleet.channel(2).encode(&Message::Heartbeat { model: 1 }, &mut frame).unwrap();
    let frame = &mut frame[..length];
    // The service has subscribed once its models are published.
    broker.next("down/2");
    broker.publish("up/2", frame);
    service.wait_for(|status| status["connected"] == 1);
    broker.publish("up/1", b"garbage");
    broker.publish("up/1", frame);
    broker.publish("up/77", frame);
    broker.publish("up/nobody", frame);
    broker.publish("up/2", &[7; 1_000_000]);
    broker.publish("state/2", &[7; 100]);
    frame[30] ^= 1;
    broker.publish("up/2", frame);
    service.wait_for(|status| status["dropped"] == serde_json::json!({"length": 1, "unknown": 2, "tag": 1}));
    // Floods: as a device that is not enrolled, then with more frames of a device than it may send.
    frame[30] ^= 1;
    fs::write(fleet.path().join("frame"), &*frame).unwrap();
    let flood = |topic: &str| {
        let mut client = broker.client("mosquitto_pub", topic, "-f frame --repeat 2000");
        Process::spawn(client.current_dir(fleet.path())).output();
    };
    flood("up/3");
    service.wait_for(|status| status["dropped"]["unknown"] == 2_002);
    while service.status()["dropped"]["too-many"].as_u64() < Some(1_000) {
        flood("up/2");
    }
    let report = fleet.devices(&broker.url(), "--count 2 --episodes 3").report();
    assert_eq!(report["acknowledged"], 6);
}

#[test]
fn broker_with_tls_is_verified() {
    let fleet = Fleet::new("mqtts", 2);
    test_certificate::write(fleet.path(), "our");
    test_certificate::write(fleet.path(), "other");
    // The broker also listens on IPv6, if the machine has it.
    let other = TcpListener::bind("[::1]:0").ok().map(|listener| listener.local_addr().unwrap().port());
    let certified = "certfile our-cert.pem\nkeyfile our-key.pem";
    let second = other.map_or(String::new(), |port| format!("listener {port} ::1\n{certified}"));
    let broker = Broker::start(&fleet, &format!("{ANYBODY}\n{certified}\n{second}"));
    let url = broker.url().replace("mqtt:", "mqtts:");
    configure(&fleet, &url, "mqtt-ca = \"other-ca.pem\"");
    let complaint = fleet.serve_and_log("warn", Stdio::piped()).process.stderr().next().unwrap();
    assert!(complaint.contains("invalid peer certificate"), "{complaint}");
    configure(&fleet, &url, "mqtt-ca = \"our-ca.pem\"");
    let service = fleet.serve();
    let complaint = fleet.devices(&url, "--ca other-ca.pem").complaint();
    assert!(complaint.contains("invalid peer certificate"), "{complaint}");
    let [one, two] = ["--count 1", "--first 2"].map(|which| format!("--ca our-ca.pem {which} --episodes 3"));
    let one = fleet.devices(&url, &one);
    let two = fleet.devices(&other.map_or(url.clone(), |port| format!("mqtts://[::1]:{port}")), &two);
    assert_eq!((&one.report()["acknowledged"], &two.report()["acknowledged"]), (&3.into(), &3.into()));
    drop(service);
    let serve = "serve --config controller.toml";
    for (broker, more, sentence) in [
        (&*url, "", "mqtts:// requires a CA certificate"),
        ("mqtt://127.0.0.1:1", "mqtt-ca = \"our-ca.pem\"", "a CA certificate requires mqtts://"),
        ("127.0.0.1:1", "", "invalid broker URL; expected mqtt://HOST:PORT"),
        ("mqtt://:1", "", "the broker's host is missing"),
        ("mqtt://host:x", "", "the broker's port is not a number"),
    ] {
        configure(&fleet, broker, more);
        fleet.refuses(serve, 78, sentence);
    }
    fleet.configure("mqtt-ca = \"our-ca.pem\"");
    fleet.refuses(serve, 78, "mqtt-ca: needs mqtt");
    fleet.refuses(
        &format!("device --identities fleet/devices --connect {url}"),
        2,
        "mqtts:// requires a CA certificate",
    );
}

/// Store that calls a hook before it appends a summary.
struct Hooked<F>(Memory, F);

impl<F: FnMut() -> Result<(), StoreError>> Store for Hooked<F> {
    fn append(&mut self, events: &[Vec<u8>]) -> Result<(), StoreError> {
        if events.iter().any(|event| matches!(Event::from_bytes(event, 4), Some(Event::Summary(_)))) {
            (self.1)()?;
        }
        self.0.append(events)
    }

    fn replay(&self, from: u64, each: &mut dyn FnMut(u64, &[u8])) -> Result<(), StoreError> {
        self.0.replay(from, each)
    }

    fn set_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), StoreError> {
        self.0.set_snapshot(snapshot)
    }

    fn snapshot(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.snapshot()
    }

    fn value(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.value(name)
    }

    fn set_value(&mut self, name: &str, value: &[u8]) -> Result<(), StoreError> {
        self.0.set_value(name, value)
    }

    fn append_audit(&mut self, entries: &[Vec<u8>], values: &[(&str, Vec<u8>)]) -> Result<(), StoreError> {
        self.0.append_audit(entries, values)
    }
}

/// The summary of a first episode, at dimension 4.
fn summary() -> Message<'static> {
    Message::Summary(SummaryMessage {
        episode: 1,
        steps: 4,
        reward_sum: 0.0,
        gram: (&[0.0; 10]).into(),
        feature_sum: (&[0.0; 4]).into(),
    })
}

/// The broker keeps a summary until it is stored: if storing it fails, the next service gets it again, else not.
#[test]
fn broker_is_acknowledged_after_the_commit() {
    for fails in [true, false] {
        let fleet = Fleet::new(&format!("mqtt-commit-{fails}"), 1);
        let broker = Broker::start(&fleet, ANYBODY);
        let mut frame = [0; 256];
        let length = fleet.channel(1).encode(&summary(), &mut frame).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let registry: Registry =
            serde_json::from_slice(&fs::read(fleet.path().join("fleet/registry.json")).unwrap()).unwrap();
        let master = MasterKey::from_bytes(&fs::read(fleet.path().join("fleet/master.key")).unwrap()).unwrap();
        let hook = move || if fails { Err(io::Error::other("full").into()) } else { Ok(()) };
        let mut store = Hooked(Memory::default(), hook);
        let timing = StartOptions::new(600_000, 4, 0);
        let service = start(&mut store, &RunConfig::default(), &registry, &master, timing, 0).unwrap();
        let worker = {
            let _inside = runtime.enter();
            let (handle, worker) = worker::start(service, Box::new(store), |_| {});
            let address = mqtt::Broker::new(&broker.url(), None).unwrap();
            runtime.spawn(mqtt::serve(address, 1, handle));
            worker
        };
        // The service has subscribed once its model is published.
        let model = broker.next("down/1");
        broker.publish("up/1", &frame[..length]);
        if fails {
            assert!(runtime.block_on(worker).unwrap().is_err());
        } else {
            // The episode is complete, and the next model follows the acknowledgement.
            wait_until("next model", || broker.next("down/1") != model);
        }
        runtime.shutdown_background();
        // A client with the same name receives what is left, then what is new.
        broker.publish("up/1", b"new");
        let mut options = mqtt::Broker::new(&broker.url(), None).unwrap().options("fedbandit-1");
        options
            .set_clean_start(false)
            .set_session_expiry_interval(Some(60))
            .set_broker_session_resume_policy(BrokerSessionResumePolicy::AllowBrokerOnly);
        let (_client, mut connection) = Client::builder(options).build();
        let payloads = connection.iter().filter_map(|event| match event.unwrap() {
            rumqttc::Event::Incoming(Packet::Publish(publish)) => Some(publish.payload),
            _ => None,
        });
        let kept = payloads.take_while(|payload| payload != "new").collect::<Vec<_>>();
        assert_eq!(kept, if fails { vec![frame[..length].to_vec()] } else { Vec::new() });
    }
}

/// A PUBLISH packet of MQTT 5: QoS 1 with a packet identifier, QoS 0 without.
fn publish_packet(topic: &str, identifier: Option<u16>, payload: &[u8]) -> Vec<u8> {
    let number = identifier.map(u16::to_be_bytes);
    let number = number.as_ref().map_or(&[][..], |number| number);
    let content = [&[0, topic.len() as u8], topic.as_bytes(), number, &[0], payload].concat();
    assert!(content.len() < 128, "its length fits in one byte");
    [&[0x30 | u8::from(identifier.is_some()) << 1, content.len() as u8], &*content].concat()
}

/// The broker acknowledges no model, and sends more messages of QoS 1 than the service has allowed while the store is busy. Messages
/// of QoS 0 have no such limit.
#[test]
fn broker_that_exceeds_its_receive_maximum_is_disconnected() {
    const AGENTS: u32 = 600;
    const UNLIMITED: u64 = 5_000;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("mqtt://{}", listener.local_addr().unwrap());
    listener.set_nonblocking(true).unwrap();
    let accept = || {
        let mut accepted = None;
        wait_until("the service connects", || {
            accepted = listener.accept().ok();
            accepted.is_some()
        });
        let mut stream = accepted.unwrap().0;
        let mut reader = stream.try_clone().unwrap();
        assert!(reader.read(&mut [0; 1024]).unwrap() > 0);
        stream.write_all(&[0x20, 3, 0, 0, 0]).unwrap();
        thread::spawn(move || io::copy(&mut reader, &mut io::sink()));
        stream
    };
    let registry = Registry::new(1, 1, 4).with_devices(1..=AGENTS);
    let timing = StartOptions::new(600_000, 4, 0);
    let master = MasterKey::from_bytes(&[1; 32]).unwrap();
    let ((entered, storing), (release, released)) = (channel(), channel::<()>());
    let hook = move || {
        entered.send(()).unwrap();
        let _ = released.recv();
        Ok(())
    };
    let mut store = Hooked(Memory::default(), hook);
    let service = start(&mut store, &RunConfig::default(), &registry, &master, timing, 0).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    let (sender, statuses) = channel();
    let (handle, _worker) = worker::start(service, Box::new(store), move |status| drop(sender.send(status)));
    runtime.spawn(mqtt::serve(mqtt::Broker::new(&url, None).unwrap(), 1, handle));
    let mut broker = accept();
    (0..UNLIMITED).for_each(|_| broker.write_all(&publish_packet("fedbandit/v2/1/up/1", None, b"garbage")).unwrap());
    assert!(statuses.iter().any(|status| status.dropped.get(&Dropped::Length) == Some(&UNLIMITED)));
    let mut send = |identifier: u16, message: &Message<'_>| {
        let (agent, mut frame) = (u32::from(identifier) % AGENTS + 1, [0; 256]);
        let mut channel = Channel::device(registry.identity(&EnrolledDevice::new(agent), &master), 1);
        channel.enter_run(1);
        let length = channel.encode(message, &mut frame).unwrap();
        let topic = format!("fedbandit/v2/1/up/{agent}");
        broker.write_all(&publish_packet(&topic, Some(identifier), &frame[..length]))
    };
    send(1, &summary()).unwrap();
    storing.recv().unwrap();
    // Twice the maximum, which allows for messages of an earlier connection.
    (2..=2_049).for_each(|identifier| drop(send(identifier, &Message::Heartbeat { model: 1 })));
    accept();
    drop(release);
    runtime.shutdown_background();
}

#[test]
fn service_without_its_broker_serves_tcp() {
    let fleet = Fleet::new("mqtt-away", 1);
    configure(&fleet, &format!("mqtt://127.0.0.1:{}", free_port()), "");
    let service = fleet.serve();
    assert_eq!(fleet.devices(&service.devices[0], "--episodes 3").report()["acknowledged"], 3);
}
