//! A custom transport: devices on a Unix socket. `cargo run --release -p fedbandit --example transport`

use fedbandit::service::store::Memory;
use fedbandit::service::transport::byte_stream::converse;
use fedbandit::service::worker::{self, Peer, Transport, WorkerHandle};
use fedbandit::service::{MasterKey, Registry, StartOptions, start};
use fedbandit::simulation::{Attack, Logs, SimulationConfig, VirtualDevice, virtual_device};
use fedbandit_core::wire::{cobs, max_frame_len};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

/// Accepts connections for the controller.
async fn serve(listener: UnixListener, handle: WorkerHandle) {
    let transport = Transport { name: "unix", peer: Peer::Untrusted };
    while let Ok((stream, _)) = listener.accept().await {
        let (handle, (reader, writer)) = (handle.clone(), stream.into_split());
        tokio::spawn(async move { converse(reader, writer, &handle, transport).await });
    }
}

/// Runs a device until the controller has acknowledged three summaries.
async fn run_device(mut stream: UnixStream, device: &mut dyn VirtualDevice) -> Result<(), Box<dyn std::error::Error>> {
    let clock = std::time::Instant::now();
    let mut decoder = cobs::Decoder::<{ max_frame_len(4) }>::new();
    while device.progress().acknowledged < 3 {
        let now = clock.elapsed().as_millis() as u64;
        device.run_episode(now, 5_000);
        while let Some(frame) = device.poll(now) {
            stream.write_all(&cobs::encode(frame).collect::<Vec<u8>>()).await?;
        }
        let idle = std::time::Duration::from_millis(device.wake_at(5_000).saturating_sub(now));
        let Ok(byte) = timeout(idle, stream.read_u8()).await else { continue };
        decoder.push(byte?).map(|frame| device.handle(frame, now)).transpose()?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let registry = Registry::new(1, 1, 4).with_devices([1]);
    let config = SimulationConfig { attack: Attack::None, ..SimulationConfig::default() };
    let (master, mut store) = (MasterKey::generate()?, Memory::default());
    let timing = StartOptions::new(60_000, 0, 0);
    let service = start(&mut store, &config.run, &registry, &master, timing, 0)?;
    let (handle, _) = worker::start(service, Box::new(store), |_| {});
    let socket = std::env::temp_dir().join(format!("fedbandit-{}.socket", std::process::id()));
    tokio::spawn(serve(UnixListener::bind(&socket)?, handle));
    let identity = registry.identity(&registry.devices[0], &master);
    let mut device = virtual_device(identity, 1, &config, &Logs::new(), 1)?;
    run_device(UnixStream::connect(&socket).await?, &mut *device).await?;
    println!("{:?}", device.progress());
    Ok(std::fs::remove_file(&socket)?)
}

#[test]
fn example_runs() -> Result<(), Box<dyn std::error::Error>> {
    main()
}
