//! `fedbandit gateway`: boards with a serial line on another transport.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fedbandit::service::outage::Outage;
use fedbandit_core::wire::claimed_address;

use super::transport::{Line, Target, bind, without_password};
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
            Ok((Target::new(&format!("serial://{port}"), None)?, Outage::new(format!("serial {port}"))))
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
                                outage.failed(relay(board, &controller).await);
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
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    tokio::time::sleep(AGAIN).await;
                    continue;
                };
                let controller = Arc::clone(&controller);
                tokio::spawn(async move {
                    let _ = stream.set_nodelay(true);
                    relay(Line::stream(stream), &controller).await;
                });
            }
        })
    }
}

/// The other side of all lines.
struct Controller {
    target: Target,
    outage: Outage,
}

/// One board's line, until it ends: why. When the other side is lost, it is opened again.
async fn relay(mut board: Line, controller: &Controller) -> io::Error {
    let ((run, agent), hello) = loop {
        let frame = match board.receive(QUIET).await {
            Ok(frame) => frame.unwrap_or_default(),
            Err(error) => return error,
        };
        if let Some(address) = claimed_address(&frame) {
            break (address, frame);
        }
    };
    let mut first = Some(hello);
    loop {
        match controller.target.open(run, agent).await {
            Ok(mut line) => {
                controller.outage.connected();
                if let Lost::Board(error) = carry(&mut board, &mut line, first.take(), (run, agent)).await {
                    line.close().await;
                    return error;
                }
            }
            Err(error) => controller.outage.failed(error),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Which side was lost.
enum Lost {
    Board(io::Error),
    Controller,
}

/// Carries frames both ways, a first one before all.
async fn carry(board: &mut Line, controller: &mut Line, first: Option<Vec<u8>>, address: (u32, u32)) -> Lost {
    let (mut up, mut down): (Option<Vec<u8>>, Option<Vec<u8>>) = (first, None);
    loop {
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
            received = board.receive(QUIET) => match received {
                Ok(frame) => up = frame,
                Err(error) => return Lost::Board(error),
            },
            received = controller.receive(QUIET) => match received {
                Ok(frame) => down = frame,
                Err(_) => return Lost::Controller,
            },
        }
    }
}
