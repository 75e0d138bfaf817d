//! Devices on serial ports.

use std::str::FromStr;

use serial2_tokio::SerialPort;

use super::super::worker::WorkerHandle;
use super::byte_stream::{Pauses, converse};
use super::outage::Outage;

/// Where nothing else is said.
const BAUD: u32 = 115_200;

/// A serial port and its speed, as `/dev/ttyUSB0:115200`. 8 data bits, no parity, 1 stop bit, no flow control.
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
            _ => Err("a serial port is PATH:BAUD, as /dev/ttyUSB0:115200"),
        }
    }
}

impl Port {
    /// Opens it.
    ///
    /// # Errors
    /// It is not there, or is no serial port.
    pub fn open(&self) -> std::io::Result<SerialPort> {
        SerialPort::open(&self.path, self.baud)
    }
}

/// Serves the devices on a port for as long as the process lives: one that is unplugged is opened again when it is back.
pub async fn serve(port: Port, handle: WorkerHandle) {
    let (mut pauses, outage) = (Pauses::new(), Outage::new(format!("serial {}", port.path)));
    loop {
        match port.open() {
            Ok(opened) => {
                pauses = Pauses::new();
                outage.connected();
                let (reader, writer) = tokio::io::split(opened);
                converse(reader, writer, &handle, true).await;
                outage.failed("the line broke");
            }
            Err(error) => outage.failed(format!("cannot be opened: {error}")),
        }
        pauses.pause().await;
    }
}
