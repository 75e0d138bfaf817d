//! A firmware device under QEMU, with its serial line on a local TCP port, its reset button, and its decoded log; and the line of any
//! device on TCP.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use std::{fs, io};

use defmt_decoder::{DecodeError, Table};
use fedbandit_core::wire::{Identity, cobs};

use crate::harness::firmware::{Board, repository};

/// Frames that are longer than this are no frames of the tests.
const FRAME: usize = 4_096;

/// A running device. It ends with the value.
pub struct Device {
    child: Child,
    listener: Option<TcpListener>,
    monitor: TcpStream,
    log: Arc<Log>,
}

/// The lines of a device's log, and a bell that rings at each.
#[derive(Default)]
struct Log {
    lines: Mutex<Vec<String>>,
    bell: Condvar,
}

/// A device's line.
pub struct Line {
    stream: TcpStream,
    decoder: cobs::Decoder<FRAME>,
    /// How many frames may still come that are not whole.
    cut: u32,
}

impl Device {
    /// Starts the `device` program of a board with an identity flashed beside it, and its serial line on a port of the test's.
    ///
    /// # Errors
    /// QEMU or a file does not do what it should.
    pub fn start(board: Board, elf: &Path, identity: &Identity) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut device = Self::connected(board, elf, identity, listener.local_addr()?)?;
        device.listener = Some(listener);
        Ok(device)
    }

    /// The same with its serial line on somebody else's port.
    ///
    /// # Errors
    /// QEMU or a file does not do what it should.
    pub fn connected(board: Board, elf: &Path, identity: &Identity, serial: SocketAddr) -> io::Result<Self> {
        let monitors = TcpListener::bind("127.0.0.1:0")?;
        // Of its own for each line, so that tests at the same time do not take each other's.
        let name = format!("identity-{}-{}-{}.bin", board.machine, identity.agent, serial.port());
        let blob = repository().join("firmware-example/target").join(name);
        fs::write(&blob, identity.to_blob())?;
        let (flash_end, usart) = match board.machine {
            "netduinoplus2" => (0x0807_fc00, 1),
            "mps2-an505" => (0x103f_fc00, 0),
            "microbit" => (0x0003_fc00, 0),
            _ => (0x003f_fc00, 0),
        };
        let mut qemu = Command::new("qemu-system-arm");
        qemu.args(["-M", board.machine, "-display", "none"]);
        for _ in 0..usart {
            qemu.args(["-serial", "null"]);
        }
        qemu.args(["-serial", &format!("tcp:{serial},nodelay=on,reconnect=1")]);
        qemu.args(["-monitor", &format!("tcp:{},nodelay=on", monitors.local_addr()?)]);
        qemu.args(["-semihosting-config", "enable=on,target=native", "-device"]);
        qemu.arg(format!("loader,file={},addr={flash_end:#x},force-raw=on", blob.display()));
        qemu.arg("-kernel").arg(elf).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = qemu.spawn()?;
        let log: Arc<Log> = Arc::default();
        if let Some(output) = child.stdout.take() {
            let (log, elf) = (Arc::clone(&log), fs::read(elf)?);
            thread::spawn(move || decode_log(output, &elf, &log));
        }
        let monitor = accept(&monitors).inspect_err(|_| _ = child.kill())?;
        Ok(Self { child, listener: None, monitor, log })
    }

    /// The serial line, as soon as the device's QEMU connects it: at the start, and again after it was dropped. The device does not wait
    /// for that, so the first frame may have lost its beginning.
    ///
    /// # Errors
    /// The connection fails.
    pub fn line(&self) -> io::Result<Line> {
        let line = Line::accept(self.listener.as_ref().ok_or(ErrorKind::NotConnected)?)?;
        Ok(Line { cut: 1, ..line })
    }

    /// Presses the reset button. What the device is just sending loses its end.
    ///
    /// # Errors
    /// QEMU's monitor does not listen.
    pub fn reset(&mut self, line: &mut Line) -> io::Result<()> {
        line.cut += 1;
        self.monitor.write_all(b"system_reset\n")
    }

    /// What the device logged so far.
    pub fn log(&self) -> Vec<String> {
        self.log.lines.lock().map(|lines| lines.clone()).unwrap_or_default()
    }

    /// Waits until a logged line contains a text, and returns the line.
    pub fn wait_for_log(&self, text: &str, timeout: Duration) -> Option<String> {
        let deadline = Instant::now() + timeout;
        let mut lines = self.log.lines.lock().ok()?;
        loop {
            if let Some(line) = lines.iter().find(|line| line.contains(text)) {
                return Some(line.clone());
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            (lines, _) = self.log.bell.wait_timeout(lines, left).ok()?;
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl Line {
    /// The next device that connects.
    ///
    /// # Errors
    /// None connects within a minute.
    pub fn accept(listener: &TcpListener) -> io::Result<Self> {
        let stream = accept(listener)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, decoder: cobs::Decoder::new(), cut: 0 })
    }

    /// The next frame; none if nothing came in time or the line was closed.
    pub fn receive(&mut self, timeout: Duration) -> Option<Vec<u8>> {
        let deadline = Instant::now() + timeout;
        let mut byte = [0];
        loop {
            let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
            self.stream.set_read_timeout(Some(left)).ok()?;
            match self.stream.read(&mut byte) {
                Ok(1) => {
                    if let Some(frame) = self.decoder.push(byte[0]) {
                        return Some(frame.to_vec());
                    }
                }
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {
                }
                _ => return None,
            }
        }
    }

    /// Whether a frame that cannot be read may be one that was cut. As often as the line was cut, and no more.
    pub fn excuses(&mut self) -> bool {
        let excused = self.cut > 0;
        self.cut = self.cut.saturating_sub(1);
        excused
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// The line is closed.
    pub fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.send_bytes(&cobs::encode(frame).collect::<Vec<u8>>())
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// The line is closed.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }
}

/// The next connection; an error if none comes within a minute, as when QEMU did not start.
fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let (sender, receiver) = mpsc::channel();
    let listener = listener.try_clone()?;
    thread::spawn(move || _ = sender.send(listener.accept()));
    let connection = receiver.recv_timeout(Duration::from_secs(60)).map_err(|_| ErrorKind::TimedOut)?;
    connection.map(|(stream, _)| stream)
}

/// Turns what the firmware writes for defmt into lines, until the output ends.
fn decode_log(mut output: impl Read, elf: &[u8], log: &Log) {
    let Ok(Some(table)) = Table::parse(elf) else { return };
    let mut decoder = table.new_stream_decoder();
    let mut bytes = [0; 1_024];
    while let Ok(length @ 1..) = output.read(&mut bytes) {
        decoder.received(&bytes[..length]);
        loop {
            let line = match decoder.decode() {
                Ok(frame) => frame.display_message().to_string(),
                Err(DecodeError::UnexpectedEof) => break,
                Err(DecodeError::Malformed) => "(a log frame that cannot be read)".to_owned(),
            };
            if let Ok(mut lines) = log.lines.lock() {
                lines.push(line);
            }
            log.bell.notify_all();
        }
    }
}
