//! Devices on serial ports.

use std::str::FromStr;

use serial2_tokio::SerialPort;

use super::super::worker::{Transport, WorkerHandle};
use super::backoff::Backoff;
use super::byte_stream::converse;
use super::outage::Outage;

/// Default speed.
const BAUD: u32 = 115_200;

/// Serial port and its speed (e.g. `/dev/ttyUSB0:115200`), with 8 data bits, no parity, 1 stop bit, no flow control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    path: String,
    baud: u32,
}

impl FromStr for Port {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (path, baud) = match text.rsplit_once(':') {
            Some((path, baud)) => (path, baud.parse().ok()),
            None => (text, Some(BAUD)),
        };
        match baud {
            Some(baud @ 1..) if !path.is_empty() => Ok(Self { path: path.into(), baud }),
            _ => Err("invalid serial port; expected PATH:BAUD (e.g. /dev/ttyUSB0:115200)"),
        }
    }
}

impl Port {
    /// Opens the port.
    ///
    /// # Errors
    /// The port does not exist, or is not a serial port.
    pub fn open(&self) -> std::io::Result<SerialPort> {
        SerialPort::open(&self.path, self.baud)
    }
}

/// Serves the devices on a port for as long as the process lives. An unplugged port is reopened when it is back.
pub async fn serve(port: Port, handle: WorkerHandle) {
    let (mut backoff, outage) = (Backoff::default(), Outage::new(format!("serial {}", port.path)));
    loop {
        match port.open() {
            Ok(opened) => {
                backoff.reset();
                outage.connected();
                let (reader, writer) = tokio::io::split(opened);
                converse(reader, writer, &handle, Transport::SERIAL).await;
                outage.failed("connection lost");
            }
            Err(error) => outage.failed(format!("cannot open: {error}")),
        }
        backoff.wait().await;
    }
}
