//! `fedbandit gateway`: boards with a serial line on another transport.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fedbandit::service::outage::Outage;
use fedbandit::service::stream::SILENCE;
use fedbandit::service::tcp;
use fedbandit_core::wire::claimed_address;
use tokio::time::timeout;

use super::line::{Line, Target, without_password};
use super::transport::bind;
use super::{EXIT_CODES, Failure, log, write};

const HELP: &str = "\
Example:
  fedbandit gateway --listen 127.0.0.1:7710 --connect mqtt://broker.example:1883
  fedbandit gateway --serial /dev/ttyUSB0:115200 --connect tls://controller.example:7701 --ca ca.pem

One board on each line: its first frame says who it is, and frames of anybody else are left out. A gateway has no keys and need
not be trusted: frames carry their own tags. What it loses is sent again.";

/// Carries the frames of boards with a serial line to a controller or broker, and back.
#[derive(clap::Args)]
#[command(after_long_help = format!("{HELP}\n\n{EXIT_CODES}"))]
pub(super) struct Args {
    /// Where lines connect by TCP: QEMU's, or those of a serial server.
    #[arg(long, value_name = "ADDRESS", required_unless_present = "serial")]
    listen: Option<SocketAddr>,
    /// A serial port with a board, as PATH:BAUD; may be given several times.
    #[arg(long, value_name = "PORT")]
    serial: Vec<String>,
    /// Where the frames go, as fedbandit device has it.
    #[arg(long, value_name = "URL")]
    connect: String,
    /// What the other end of tls:// or mqtts:// is known by, a PEM file.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    #[command(flatten)]
    log: log::Options,
}

/// Before a port is opened again, or the other side.
const AGAIN: Duration = Duration::from_secs(1);
/// Between two looks at a line on which nothing happens.
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
                    loop {
                        match port.open(0, 0).await {
                            Ok(board) => {
                                outage.connected();
                                outage.failed(relay(board, &controller, Duration::MAX).await);
                            }
                            Err(error) => outage.failed(format!("cannot be opened: {error}")),
                        }
                        tokio::time::sleep(AGAIN).await;
                    }
                });
            }
            let Some(address) = self.listen else { return std::future::pending().await };
            let listener = bind(address).await?;
            write(&format!("lines: tcp://{}", listener.local_addr()?))?;
            tcp::accept(listener, |stream| {
                let controller = Arc::clone(&controller);
                async move { drop(relay(Line::stream(stream), &controller, SILENCE).await) }
            })
            .await;
            Ok(())
        })
    }
}

/// The other side of all lines.
struct Controller {
    target: Target,
    outage: Outage,
}

/// One board's line, until it ends, or brings no frame for too long: why. When the other side is lost, it is opened again.
async fn relay(mut board: Line, controller: &Controller, silence: Duration) -> io::Error {
    let (hello, (run, agent)) = match timeout(silence, hello(&mut board)).await {
        Ok(Ok(hello)) => hello,
        Ok(Err(error)) => return error,
        Err(_) => return io::ErrorKind::TimedOut.into(),
    };
    let mut first = Some(hello);
    loop {
        match controller.target.open(run, agent).await {
            Ok(mut line) => {
                controller.outage.connected();
                if let Lost::Board(error) = carry(&mut board, &mut line, first.take(), (run, agent), silence).await {
                    line.close().await;
                    return error;
                }
            }
            Err(error) => controller.outage.failed(error),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// A board's first frame, and who it says it is.
async fn hello(board: &mut Line) -> io::Result<(Vec<u8>, (u32, u32))> {
    loop {
        let frame = board.receive(QUIET).await?.unwrap_or_default();
        if let Some(address) = claimed_address(&frame) {
            return Ok((frame, address));
        }
    }
}

/// Which side was lost.
enum Lost {
    Board(io::Error),
    Controller,
}

/// Carries frames both ways, a first one before all.
async fn carry(
    board: &mut Line,
    controller: &mut Line,
    first: Option<Vec<u8>>,
    address: (u32, u32),
    silence: Duration,
) -> Lost {
    let (mut up, mut down): (Option<Vec<u8>>, Option<Vec<u8>>) = (first, None);
    let mut heard = Instant::now();
    while heard.elapsed() < silence {
        if let Some(frame) = up.take().filter(|frame| claimed_address(frame) == Some(address))
            && controller.send(&frame).await.is_err()
        {
            return Lost::Controller;
        }
        if let Some(frame) = down.take()
            && let Err(error) = board.send(&frame).await
        {
            return Lost::Board(error);
        }
        // Who is not chosen has lost nothing: either waits for a whole read.
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

    /// Who says nothing is left, before its first frame and after; bytes without an end are nothing.
    #[tokio::test]
    async fn silent_lines_are_left() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("tcp://{}", listener.local_addr().unwrap());
        let controller = Controller { target: Target::new(&url, None).ok().unwrap(), outage: Outage::new(url) };
        let hello: Vec<u8> = cobs::encode(&[1; 40]).collect();
        for said in [&[][..], &[7; 40], &hello] {
            let (line, mut board) = tokio::io::duplex(4096);
            board.write_all(said).await.unwrap();
            let left = relay(Line::stream(line), &controller, Duration::from_millis(50)).await;
            assert_eq!(left.kind(), io::ErrorKind::TimedOut);
        }
    }
}
