//! A proxy between the service and its broker that records frames.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use fedbandit_core::wire::{Channel, Fate, Identity, Message, unverified_address};

pub(crate) struct Tap {
    pub(crate) port: u16,
    seen: Arc<Mutex<Seen>>,
}

/// Recorded frames.
#[derive(Default)]
pub(crate) struct Seen {
    /// Summaries for the service, by agent and episode: U packed, then u. Recorded before they are passed on.
    pub(crate) summaries: BTreeMap<(u32, u32), Vec<Vec<f32>>>,
    /// Acknowledgements of the service.
    pub(crate) acknowledged: BTreeSet<(u32, u32)>,
    /// The controller's and the device's channel, by agent.
    channels: BTreeMap<u32, [Channel; 2]>,
}

impl Tap {
    /// Starts a proxy to a broker, for the devices of some identities.
    pub(crate) fn start(broker: u16, blobs: impl Iterator<Item = [u8; Identity::BLOB_LEN]>) -> Self {
        let channels = |blob| {
            let identity = Identity::from_blob(&blob).expect("a valid blob");
            let mut device = Channel::device(identity.clone(), 0);
            device.enter_run(1);
            (identity.agent(), [Channel::controller(identity, 0, 1), device])
        };
        let seen = Arc::new(Mutex::new(Seen { channels: blobs.map(channels).collect(), ..Seen::default() }));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::clone(&seen);
        thread::spawn(move || {
            for service in listener.incoming() {
                let (Ok(service), Ok(broker)) = (service, TcpStream::connect(("127.0.0.1", broker))) else { continue };
                let ends =
                    [(service.try_clone().unwrap(), broker.try_clone().unwrap(), true), (broker, service, false)];
                for (from, to, up) in ends {
                    let seen = Arc::clone(&shared);
                    thread::spawn(move || pass(from, to, &seen, up));
                }
            }
        });
        Self { port, seen }
    }

    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }
}

/// Passes bytes on until either side ends, and records their frames first.
fn pass(mut from: TcpStream, mut to: TcpStream, seen: &Mutex<Seen>, from_service: bool) {
    let mut buffer = [0; 4096];
    let mut packets = Vec::new();
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        packets.extend_from_slice(&buffer[..read]);
        while let Some((first, packet, length)) = packet(&packets) {
            if first >> 4 == 3
                && let Some(frame) = payload(first, packet)
            {
                seen.lock().unwrap().note(&mut frame.to_vec(), from_service);
            }
            packets.drain(..length);
        }
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

impl Seen {
    fn note(&mut self, frame: &mut [u8], from_service: bool) {
        let Some((_, agent)) = unverified_address(frame) else { return };
        let Some(channels) = self.channels.get(&agent) else { return };
        match channels[usize::from(from_service)].decode(frame) {
            Ok(Message::Summary(summary)) => {
                let values = summary.gram.iter().chain(summary.feature_sum.iter()).collect();
                let came = self.summaries.entry((agent, summary.episode)).or_default();
                if !came.contains(&values) {
                    came.push(values);
                }
            }
            Ok(Message::Ack { episode, fate: Fate::Counts, .. }) => drop(self.acknowledged.insert((agent, episode))),
            _ => {}
        }
    }
}

/// Splits off the first MQTT packet, if it is complete: first byte, content, and total length.
fn packet(bytes: &[u8]) -> Option<(u8, &[u8], usize)> {
    let (first, rest) = bytes.split_first()?;
    let (length, rest) = number(rest)?;
    let packet = rest.get(..length)?;
    Some((*first, packet, bytes.len() - rest.len() + length))
}

/// Payload of an MQTT 5 PUBLISH packet.
fn payload(first: u8, packet: &[u8]) -> Option<&[u8]> {
    let (topic, rest) = packet.split_first_chunk::<2>()?;
    let rest = rest.get(usize::from(u16::from_be_bytes(*topic))..)?;
    // Only with a quality of service above 0 it has a packet identifier.
    let rest = if first & 0b110 == 0 { rest } else { rest.get(2..)? };
    let (properties, rest) = number(rest)?;
    rest.get(properties..)
}

/// Decodes a number of variable length.
fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let end = bytes.iter().take(4).position(|byte| byte & 0x80 == 0)?;
    let value = bytes[..=end].iter().rev().fold(0, |value, byte| value << 7 | usize::from(byte & 0x7f));
    Some((value, &bytes[end + 1..]))
}
