//! Audit log: who changed a service and its devices, and when.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::registry::{EnrolledDevice, Registry};
use super::store::{Store, StoreError};

/// Entry of the audit log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Time in seconds since the Unix epoch.
    pub at: u64,
    /// User who caused it, if known: the owner of the process, or of the registry file that was written.
    pub uid: Option<u32>,
    /// Event.
    #[serde(flatten)]
    pub event: AuditEvent,
}

/// Event in the life of a service or of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum AuditEvent {
    /// The service started. A start that no stop precedes follows a crash, or an error of the store.
    Start {
        /// Version of the program.
        version: String,
        /// Hash of the run's terms.
        config_hash: String,
    },
    /// The service stopped.
    Stop {
        /// SIGTERM, or the error.
        reason: String,
    },
    /// A setting differs from that of the start before.
    Changed {
        /// Key of the setting.
        key: String,
        /// Former value.
        old: Value,
        /// New value.
        new: Value,
    },
    /// A device was enrolled.
    Enrolled {
        /// Number of the device.
        agent: u32,
    },
    /// A device was revoked.
    Revoked {
        /// Number of the device.
        agent: u32,
    },
    /// The revocation of a device was undone.
    Unrevoked {
        /// Number of the device.
        agent: u32,
    },
    /// A device got a new key.
    Rekeyed {
        /// Number of the device.
        agent: u32,
        /// Generation of the new key.
        generation: u32,
    },
    /// A device was removed from the registry.
    Removed {
        /// Number of the device.
        agent: u32,
    },
}

/// Time and user of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Author {
    /// Time in seconds since the Unix epoch.
    pub at: u64,
    /// User, if known.
    pub uid: Option<u32>,
}

impl Author {
    /// Returns the entry of an event.
    pub fn entry(self, event: AuditEvent) -> AuditEntry {
        AuditEntry { at: self.at, uid: self.uid, event }
    }
}

/// Entries to append at once, and the state that later ones are compared with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AuditRecord {
    /// Entries in order.
    pub entries: Vec<AuditEntry>,
    /// Settings that the entries lead to, if they may have changed.
    pub settings: Option<Map<String, Value>>,
    /// Registry that the entries lead to, if it may have changed.
    pub registry: Option<Registry>,
}

const SETTINGS: &str = "audited-settings";
const REGISTRY: &str = "audited-registry";

impl AuditRecord {
    /// Records the start of a service: what has changed since the start before, then the start itself. A run's first record
    /// contains all of its devices.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn start(
        store: &dyn Store,
        start: AuditEntry,
        settings: Map<String, Value>,
        (registry, author): (&Registry, Author),
    ) -> Result<Self, StoreError> {
        let old = read::<Map<String, Value>>(store, SETTINGS)?;
        let changes = old.map_or_else(Vec::new, |old| setting_changes(&old, &settings));
        let mut entries: Vec<_> = changes.into_iter().map(|event| AuditEntry { event, ..start.clone() }).collect();
        let old = read::<Registry>(store, REGISTRY)?;
        entries.extend(registry_changes(old.as_ref().map_or(&[], |old| &old.devices), &registry.devices, author));
        entries.push(start);
        Ok(Self { entries, settings: Some(settings), registry: Some(registry.clone()) })
    }

    /// Records the changes of the registry while a service runs.
    pub fn registry(old: &Registry, new: &Registry, author: Author) -> Self {
        let entries = registry_changes(&old.devices, &new.devices, author);
        Self { entries, settings: None, registry: Some(new.clone()) }
    }

    /// Records a single event.
    pub fn event(entry: AuditEntry) -> Self {
        Self { entries: vec![entry], ..Self::default() }
    }

    /// Appends the entries durably and atomically.
    ///
    /// # Errors
    /// The entries may not be durable.
    pub fn append(&self, store: &mut dyn Store) -> Result<(), StoreError> {
        let entries = self.entries.iter().map(to_bytes).collect::<Result<Vec<_>, _>>()?;
        let mut values = Vec::new();
        if let Some(settings) = &self.settings {
            values.push((SETTINGS, to_bytes(settings)?));
        }
        if let Some(registry) = &self.registry {
            values.push((REGISTRY, to_bytes(registry)?));
        }
        store.append_audit(&entries, &values)
    }
}

fn to_bytes(value: &impl Serialize) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(value).map_err(StoreError::new)
}

fn read<T: for<'de> Deserialize<'de>>(store: &dyn Store, name: &str) -> Result<Option<T>, StoreError> {
    let stored = store.value(name)?;
    stored.map(|bytes| serde_json::from_slice(&bytes).map_err(StoreError::new)).transpose()
}

/// Returns the settings that differ, in the order of their keys.
fn setting_changes(old: &Map<String, Value>, new: &Map<String, Value>) -> Vec<AuditEvent> {
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let change = |key: &String| {
        let [old, new] = [old, new].map(|settings| settings.get(key).cloned().unwrap_or_default());
        (old != new).then(|| AuditEvent::Changed { key: key.clone(), old, new })
    };
    keys.into_iter().filter_map(change).collect()
}

/// Returns the changes of the devices, in the order of their numbers. An enrolment has its own time if it is known.
fn registry_changes(old: &[EnrolledDevice], new: &[EnrolledDevice], author: Author) -> Vec<AuditEntry> {
    let [old, new] = [old, new]
        .map(|devices| devices.iter().map(|device| (device.agent, device)).collect::<BTreeMap<u32, &EnrolledDevice>>());
    let removed = old.keys().filter(|agent| !new.contains_key(agent));
    let mut entries: Vec<AuditEntry> =
        removed.map(|agent| author.entry(AuditEvent::Removed { agent: *agent })).collect();
    for (agent, device) in new {
        let enrolled = EnrolledDevice { enrolled_at: device.enrolled_at, ..EnrolledDevice::new(agent) };
        let before = old.get(&agent).copied().unwrap_or_else(|| {
            let author = Author { at: device.enrolled_at.unwrap_or(author.at), ..author };
            entries.push(author.entry(AuditEvent::Enrolled { agent }));
            &enrolled
        });
        if before.generation != device.generation {
            entries.push(author.entry(AuditEvent::Rekeyed { agent, generation: device.generation }));
        }
        match (before.revoked, device.revoked) {
            (false, true) => entries.push(author.entry(AuditEvent::Revoked { agent })),
            (true, false) => entries.push(author.entry(AuditEvent::Unrevoked { agent })),
            _ => {}
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::store::{Memory, Reader, Table};
    use serde_json::json;

    fn registry(devices: &[(u32, bool, u32)]) -> Registry {
        let device = |&(agent, revoked, generation): &(u32, bool, u32)| EnrolledDevice {
            revoked,
            generation,
            enrolled_at: Some(agent.into()),
            ..EnrolledDevice::new(agent)
        };
        Registry { devices: devices.iter().map(device).collect(), ..Registry::new(1, 1, 2) }
    }

    fn entries(store: &Memory) -> Vec<Value> {
        let mut entries = Vec::new();
        let each = &mut |_, bytes: &[u8]| {
            entries.push(serde_json::from_slice(bytes).unwrap());
            true
        };
        store.rows(Table::Audit, 0, each).unwrap();
        entries
    }

    fn start(store: &mut Memory, at: u64, settings: Value, registry: &Registry) {
        let started = AuditEvent::Start { version: "1".into(), config_hash: "0".into() };
        let started = Author { at, uid: Some(7) }.entry(started);
        let settings = settings.as_object().unwrap().clone();
        let author = Author { at: at - 1, uid: Some(8) };
        AuditRecord::start(store, started, settings, (registry, author)).unwrap().append(store).unwrap();
    }

    #[test]
    fn starts_record_what_has_changed_since_the_last_one() {
        let mut store = Memory::default();
        start(&mut store, 100, json!({ "deadline": 60, "window": 4 }), &registry(&[(1, false, 0), (2, true, 1)]));
        let first = entries(&store);
        assert_eq!(
            first,
            [
                json!({ "at": 1, "uid": 8, "event": "enrolled", "agent": 1 }),
                json!({ "at": 2, "uid": 8, "event": "enrolled", "agent": 2 }),
                json!({ "at": 99, "uid": 8, "event": "rekeyed", "agent": 2, "generation": 1 }),
                json!({ "at": 99, "uid": 8, "event": "revoked", "agent": 2 }),
                json!({ "at": 100, "uid": 7, "event": "start", "version": "1", "config_hash": "0" }),
            ]
        );
        start(&mut store, 200, json!({ "deadline": 30, "mqtt": "url" }), &registry(&[(2, false, 1), (3, false, 0)]));
        assert_eq!(
            entries(&store)[first.len()..],
            [
                json!({ "at": 200, "uid": 7, "event": "changed", "key": "deadline", "old": 60, "new": 30 }),
                json!({ "at": 200, "uid": 7, "event": "changed", "key": "mqtt", "old": null, "new": "url" }),
                json!({ "at": 200, "uid": 7, "event": "changed", "key": "window", "old": 4, "new": null }),
                json!({ "at": 199, "uid": 8, "event": "removed", "agent": 1 }),
                json!({ "at": 199, "uid": 8, "event": "unrevoked", "agent": 2 }),
                json!({ "at": 3, "uid": 8, "event": "enrolled", "agent": 3 }),
                json!({ "at": 200, "uid": 7, "event": "start", "version": "1", "config_hash": "0" }),
            ]
        );
        let before = entries(&store).len();
        start(&mut store, 300, json!({ "deadline": 30, "mqtt": "url" }), &registry(&[(2, false, 1), (3, false, 0)]));
        assert_eq!(entries(&store).len(), before + 1, "nothing has changed");
    }

    #[test]
    fn changes_while_a_service_runs_are_recorded_once() {
        let mut store = Memory::default();
        let [old, new] = [registry(&[(1, false, 0)]), registry(&[(1, true, 0)])];
        start(&mut store, 100, json!({}), &old);
        let record = AuditRecord::registry(&old, &new, Author { at: 150, uid: None });
        record.append(&mut store).unwrap();
        assert_eq!(entries(&store)[2], json!({ "at": 150, "uid": null, "event": "revoked", "agent": 1 }));
        start(&mut store, 200, json!({}), &new);
        assert_eq!(entries(&store).len(), 4, "the start finds the registry as it was recorded");
    }
}
