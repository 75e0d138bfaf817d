//! A firmware device under QEMU: its serial line on a local TCP port, its reset button and its decoded log.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fs, io, thread};

use defmt_decoder::{DecodeError, Table};
use fedbandit_core::wire::{Identity, cobs};

use super::firmware::{Board, CPU_SECONDS, qemu};
use super::process::{Process, wait_for};
use super::repository;

/// Length of the longest frame that the tests receive.
const FRAME: usize = 4_096;

/// A running device. Dropping it ends QEMU.
pub struct Device {
    qemu: Process,
    listener: Option<TcpListener>,
    monitor: TcpStream,
    /// Lines of the log, shared with the thread that decodes them.
    log: Arc<Mutex<Vec<String>>>,
}

/// The serial line of a device on TCP.
pub struct Line {
    stream: TcpStream,
    decoder: cobs::Decoder<FRAME>,
    /// Number of truncated frames that may still arrive.
    truncated: u32,
}

impl Device {
    /// Starts the `device` program of a board with its identity in flash. [`line`](Self::line) is its serial line.
    ///
    /// # Errors
    /// QEMU ends, or a file or socket cannot be used.
    pub fn start(board: Board, elf: &Path, identity: &Identity) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut device = Self::connected(board, elf, identity, listener.local_addr()?)?;
        device.listener = Some(listener);
        Ok(device)
    }

    /// Starts the same with its serial line connected to an address.
    ///
    /// # Errors
    /// QEMU ends, or a file or socket cannot be used.
    pub fn connected(board: Board, elf: &Path, identity: &Identity, serial: SocketAddr) -> io::Result<Self> {
        let monitors = TcpListener::bind("127.0.0.1:0")?;
        // One file per line, because tests run at the same time.
        let name = format!("identity-{}-{}-{}.bin", board.machine, identity.agent(), serial.port());
        let blob = repository().join("firmware-example/target").join(name);
        fs::write(&blob, identity.to_blob())?;
        let (flash_end, unused_serial_ports) = match board.machine {
            "netduinoplus2" => (0x0807_fc00, 1),
            "mps2-an505" => (0x103f_fc00, 0),
            "microbit" => (0x0003_fc00, 0),
            _ => (0x003f_fc00, 0),
        };
        let mut command = qemu(board, CPU_SECONDS);
        command.args(["-display", "none"]).args(["-serial", "null"].repeat(unused_serial_ports));
        command.args(["-serial", &format!("tcp:{serial},nodelay=on,reconnect=1")]);
        command.args(["-monitor", &format!("tcp:{},nodelay=on", monitors.local_addr()?), "-device"]);
        command.arg(format!("loader,file={},addr={flash_end:#x},force-raw=on", blob.display()));
        let mut qemu = Process::spawn(command.arg("-kernel").arg(elf));
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        if let Some(output) = qemu.0.stdout.take() {
            let (log, elf) = (Arc::clone(&log), fs::read(elf)?);
            thread::spawn(move || decode_log(output, &elf, &log));
        }
        let monitor = accept(&monitors, &mut qemu)?;
        Ok(Self { qemu, listener: None, monitor, log })
    }

    /// Waits for QEMU to connect the serial line: at the start, and again after the line was dropped. The device does not
    /// wait, so that the first frame may be truncated.
    ///
    /// # Errors
    /// QEMU ends.
    pub fn line(&mut self) -> io::Result<Line> {
        let listener = self.listener.as_ref().ok_or(ErrorKind::NotConnected)?;
        Ok(Line { truncated: 1, ..Line::accept(listener, &mut self.qemu)? })
    }

    /// Presses the reset button. This truncates the frame that the device is sending.
    ///
    /// # Errors
    /// QEMU has ended.
    pub fn reset(&mut self, line: &mut Line) -> io::Result<()> {
        line.truncated += 1;
        self.monitor.write_all(b"system_reset\n")
    }

    /// Returns the log so far.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts the logged lines that contain a text.
    pub fn count_in_log(&self, text: &str) -> usize {
        self.log().iter().filter(|line| line.contains(text)).count()
    }

    /// Waits for a logged line that contains a text, and returns the line.
    ///
    /// # Panics
    /// QEMU ends before.
    pub fn wait_for_log(&self, text: &str) -> String {
        wait_for(&format!("logged line with {text:?}"), || {
            // The decoding thread drops its share at the end of QEMU's output.
            let has_ended = Arc::strong_count(&self.log) == 1;
            let line = self.log().into_iter().find(|line| line.contains(text));
            assert!(line.is_some() || !has_ended, "QEMU ended without logging {text:?}: {:?}", self.log());
            line
        })
    }
}

impl Line {
    /// Waits for a process to connect.
    ///
    /// # Errors
    /// The process ends.
    pub fn accept(listener: &TcpListener, process: &mut Process) -> io::Result<Self> {
        let stream = accept(listener, process)?;
        stream.set_nodelay(true)?;
        // Short: `poll` returns without a frame then.
        stream.set_read_timeout(Some(Duration::from_millis(1)))?;
        Ok(Self { stream, decoder: cobs::Decoder::new(), truncated: 0 })
    }

    /// Returns the next frame, if it has arrived.
    ///
    /// # Panics
    /// The line is closed.
    pub fn poll(&mut self) -> Option<Vec<u8>> {
        let mut byte = [0];
        loop {
            match self.stream.read(&mut byte) {
                Ok(1) => {
                    if let Some(frame) = self.decoder.push(byte[0]) {
                        return Some(frame.to_vec());
                    }
                }
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) =>
                {
                    return None;
                }
                closed => panic!("the device closed its line: {closed:?}"),
            }
        }
    }

    /// Returns true if an invalid frame may be a truncated one: once for each time that the line was cut.
    pub fn excuses(&mut self) -> bool {
        let excused = self.truncated > 0;
        self.truncated = self.truncated.saturating_sub(1);
        excused
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// The line is closed.
    pub fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.send_bytes(&cobs::encode(frame).collect::<Vec<u8>>())
    }

    /// Sends bytes without framing.
    ///
    /// # Errors
    /// The line is closed.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }
}

/// Waits for a process to connect.
fn accept(listener: &TcpListener, process: &mut Process) -> io::Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let (stream, _) = wait_for("connection", || match listener.accept() {
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            process.has_ended().then(|| Err(io::Error::other("the process ended before it connected")))
        }
        connection => Some(connection),
    })?;
    Ok(stream)
}

/// Decodes the firmware's defmt output into lines, until the output ends.
fn decode_log(mut output: impl Read, elf: &[u8], log: &Mutex<Vec<String>>) {
    let Ok(Some(table)) = Table::parse(elf) else { return };
    let mut decoder = table.new_stream_decoder();
    let mut bytes = [0; 1_024];
    while let Ok(length @ 1..) = output.read(&mut bytes) {
        decoder.received(&bytes[..length]);
        loop {
            let line = match decoder.decode() {
                Ok(frame) => frame.display_message().to_string(),
                Err(DecodeError::UnexpectedEof) => break,
                Err(DecodeError::Malformed) => "(malformed log frame)".to_owned(),
            };
            log.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    }
}
