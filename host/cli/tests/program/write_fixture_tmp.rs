use std::fs;
use fedbandit::config::RunConfig;
use fedbandit::service::store::file::File;
use fedbandit::service::worker::{commit_and_tick, store_snapshot};
use fedbandit::service::{Link, MasterKey, Registry, StartOptions, start};
use fedbandit_core::wire::{Channel, Message, SummaryMessage, max_frame_len};

#[test]
#[ignore = "writes"]
fn write_fixture() {
    let dir = std::path::PathBuf::from(std::env::var("FIXTURE").unwrap());
    let registry: Registry = serde_json::from_slice(&fs::read(dir.join("registry.json")).unwrap()).unwrap();
    let master = MasterKey::from_bytes(&fs::read(dir.join("master.key")).unwrap()).unwrap();
    let mut store = File::open(&dir.join("run.redb")).unwrap();
    let mut config = fedbandit::service::config::ServiceConfig::default();
    config.complete(&registry);
    let run = RunConfig { steps: 400, episode_len: Some(4), first_episode: Some(4), ..config.run };
    let mut options = StartOptions::new(3_600_000, 4, 1_800_000_000);
    options.snapshots.least_bytes = 0;
    options.snapshots.ratio = 0;
    options.snapshots.retain = Some(1);
    let mut service = start(&mut store, &run, &registry, &master, options, 0).unwrap();
    for device in &registry.devices {
        let mut channel = Channel::device(registry.identity(device, &master), 1);
        channel.enter_run(1);
        let (gram, feature_sum) = ([2.0, 0.5, 1.0], [1.0, device.agent as f32 / 4.0]);
        let (gram, feature_sum) = ((&gram).into(), (&feature_sum).into());
        let message = Message::Summary(SummaryMessage { episode: 7, steps: 4, reward_sum: 1.0, gram, feature_sum });
        let mut frame = [0; max_frame_len(2)];
        let length = channel.encode(&message, &mut frame).unwrap();
        service.handle_frame(Link(device.agent.into()), &mut frame[..length], 0).unwrap();
    }
    commit_and_tick(&mut service, &mut store, 0).unwrap();
    store_snapshot(&mut service, &mut store).unwrap();
    assert_eq!(service.status(0).episode, Some(8));
}
