//! `fedbandit gateway`: boards with a serial line on another transport.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use fedbandit_core::wire::claimed_address;

use super::transport::{Line, Target, bind};
use super::{EXIT_CODES, Failure, write};

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
}

/// Before a port is opened again, or the other side.
const AGAIN: Duration = Duration::from_secs(1);
/// Between two looks at a line on which nothing happens.
const QUIET: Duration = Duration::from_secs(60);

impl Args {
    pub(super) fn run(self) -> Result<(), Failure> {
        let target = Target::new(&self.connect, self.ca.as_deref())?;
        let port = |port: &String| Target::new(&format!("serial://{port}"), None);
        let ports = self.serial.iter().map(port).collect::<Result<Vec<_>, _>>()?;
        tokio::runtime::Runtime::new()?.block_on(async {
            for port in ports {
                let target = target.clone();
                tokio::spawn(async move {
                    loop {
                        if let Ok(board) = port.open(0, 0).await {
                            let _ = relay(board, &target).await;
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
                let target = target.clone();
                tokio::spawn(async move {
                    let _ = stream.set_nodelay(true);
                    let _ = relay(Line::stream(stream), &target).await;
                });
            }
        })
    }
}

/// One board's line, until it ends. When the other side is lost, it is opened again.
async fn relay(mut board: Line, target: &Target) -> io::Result<()> {
    let ((run, agent), hello) = loop {
        let frame = board.receive(QUIET).await?.unwrap_or_default();
        if let Some(address) = claimed_address(&frame) {
            break (address, frame);
        }
    };
    let mut first = Some(hello);
    loop {
        if let Ok(mut controller) = target.open(run, agent).await
            && let Lost::Board(error) = carry(&mut board, &mut controller, first.take(), (run, agent)).await
        {
            controller.close().await;
            return Err(error);
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
