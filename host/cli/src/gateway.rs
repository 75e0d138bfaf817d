//! `fedbandit gateway`: relays boards on serial lines to another transport.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fedbandit::service::transport::backoff::Backoff;
use fedbandit::service::transport::byte_stream::IDLE_TIMEOUT;
use fedbandit::service::transport::outage::Outage;
use fedbandit::service::transport::tcp;
use fedbandit_core::wire::unverified_address;
use tokio::time::timeout;

use super::link::{DeviceLink, Target, without_password};
use super::listeners::bind;
use super::{EXIT_CODES, Failure, log, print_line};

const HELP: &str = "\
Examples:
  fedbandit gateway --listen 127.0.0.1:7710 --connect mqtt://broker.example:1883
  fedbandit gateway --serial /dev/ttyUSB0:115200 --connect tls://controller.example:7701 --ca ca.pem

Each line carries one board. Its first frame tells its address, and frames with another address are dropped. A gateway
has no keys and need not be trusted, because frames are authenticated end to end. Lost frames are sent again.";

/// Relay frames between boards on serial lines and a controller or broker.
#[derive(clap::Args)]
#[command(after_long_help = format!("{HELP}\n\n{EXIT_CODES}"))]
pub(super) struct Args {
    /// Address for lines over TCP, from QEMU or a serial server.
    #[arg(long, value_name = "ADDRESS", required_unless_present = "serial")]
    listen: Option<SocketAddr>,
    /// Serial port with a board (PATH:BAUD); may be repeated.
    #[arg(long, value_name = "PORT")]
    serial: Vec<String>,
    /// Controller or broker URL; same format as `device --connect`.
    #[arg(long, value_name = "URL")]
    connect: String,
    /// CA certificate (PEM) used to verify the server with tls:// and mqtts://.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    #[command(flatten)]
    log: log::Options,
}

/// Interval at which the time limit of a quiet line is checked.
const QUIET: Duration = Duration::from_secs(60);

impl Args {
    pub(super) fn run(self) -> Result<(), Failure> {
        self.log.start();
        let controller = Arc::new(Controller {
            target: Target::new(&self.connect, self.ca.as_deref())?,
            outage: Outage::new(without_password(&self.connect)),
        });
        let port = |port: &String| {
            let target = Target::serial(port).map_err(|reason| Failure::Usage(format!("--serial {port}: {reason}")))?;
            Ok((target, Outage::new(format!("serial {port}"))))
        };
        let ports = self.serial.iter().map(port).collect::<Result<Vec<_>, Failure>>()?;
        tokio::runtime::Runtime::new()?.block_on(async {
            for (port, outage) in ports {
                let controller = Arc::clone(&controller);
                tokio::spawn(async move {
                    let mut backoff = Backoff::default();
                    loop {
                        match port.open(0, 0).await {
                            Ok(board) => {
                                backoff.reset();
                                outage.connected();
                                outage.failed(relay(board, &controller, Duration::MAX).await);
                            }
                            Err(error) => outage.failed(format!("cannot open: {error}")),
                        }
                        backoff.wait().await;
                    }
                });
            }
            let Some(address) = self.listen else { return std::future::pending().await };
            let listener = bind(address).await?;
            print_line(&format!("lines: tcp://{}", listener.local_addr()?))?;
            tcp::accept(listener, tcp::CONNECTIONS, |stream| {
                let controller = Arc::clone(&controller);
                async move { drop(relay(DeviceLink::stream(stream), &controller, IDLE_TIMEOUT).await) }
            })
            .await;
            Ok(())
        })
    }
}

/// The controller or broker that all lines share.
struct Controller {
    target: Target,
    outage: Outage,
}

/// Relays one board until its line ends or is silent for too long, and returns the reason. Reconnects to the controller.
async fn relay(mut board: DeviceLink, controller: &Controller, silence: Duration) -> io::Error {
    let (hello, (fleet, agent)) = match timeout(silence, hello(&mut board)).await {
        Ok(Ok(hello)) => hello,
        Ok(Err(error)) => return error,
        Err(_) => return io::ErrorKind::TimedOut.into(),
    };
    let (mut first, mut backoff) = (Some(hello), Backoff::default().spread(agent));
    loop {
        match controller.target.open(fleet, agent).await {
            Ok(mut link) => {
                backoff.reset();
                controller.outage.connected();
                if let Lost::Board(error) = carry(&mut board, &mut link, first.take(), (fleet, agent), silence).await {
                    link.close().await;
                    return error;
                }
            }
            Err(error) => controller.outage.failed(error),
        }
        backoff.wait().await;
    }
}

/// Waits for a board's first frame. Returns it with the address that it claims.
async fn hello(board: &mut DeviceLink) -> io::Result<(Vec<u8>, (u32, u32))> {
    loop {
        let frame = board.receive(QUIET).await?.unwrap_or_default();
        if let Some(address) = unverified_address(&frame) {
            return Ok((frame, address));
        }
    }
}

/// The side whose connection was lost.
enum Lost {
    Board(io::Error),
    Controller,
}

/// Carries frames in both directions, starting with `first`.
async fn carry(
    board: &mut DeviceLink,
    controller: &mut DeviceLink,
    first: Option<Vec<u8>>,
    address: (u32, u32),
    silence: Duration,
) -> Lost {
    let (mut up, mut down): (Option<Vec<u8>>, Option<Vec<u8>>) = (first, None);
    let mut heard = Instant::now();
    while heard.elapsed() < silence {
        if let Some(frame) = up.take().filter(|frame| unverified_address(frame) == Some(address))
            && controller.send(&frame).await.is_err()
        {
            return Lost::Controller;
        }
        if let Some(frame) = down.take()
            && let Err(error) = board.send(&frame).await
        {
            return Lost::Board(error);
        }
        // Dropping the other future loses nothing: both are cancel-safe.
        tokio::select! {
            received = board.receive(silence.min(QUIET)) => match received {
                Ok(Some(frame)) => (up, heard) = (Some(frame), Instant::now()),
                Ok(None) => {}
                Err(error) => return Lost::Board(error),
            },
            received = controller.receive(QUIET) => match received {
                Ok(frame) => down = frame,
                Err(_) => return Lost::Controller,
            },
        }
    }
    Lost::Board(io::ErrorKind::TimedOut.into())
}

#[cfg(test)]
mod tests {
    use fedbandit_core::wire::cobs;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn line_without_complete_frames_times_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("tcp://{}", listener.local_addr().unwrap());
        let controller = Controller { target: Target::new(&url, None).ok().unwrap(), outage: Outage::new(url) };
        let hello: Vec<u8> = cobs::encode(&[1; 40]).collect();
        for said in [&[][..], &[7; 40], &hello] {
            let (line, mut board) = tokio::io::duplex(4096);
            board.write_all(said).await.unwrap();
            let left = relay(DeviceLink::stream(line), &controller, Duration::from_millis(50)).await;
            assert_eq!(left.kind(), io::ErrorKind::TimedOut);
        }
    }
}
