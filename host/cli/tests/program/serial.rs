//! Devices on serial ports, here pairs of pseudo-terminals.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use crate::process::{Process, wait_until};
use crate::test_fleet::Fleet;

/// Connects `controller-N` and `device-N`.
fn cable(fleet: &Fleet, number: u32) -> Process {
    let end = |name: &str| format!("pty,raw,echo=0,link={}", fleet.path().join(format!("{name}-{number}")).display());
    let mut socat = Command::new("socat");
    let cable = Process::spawn(socat.args([end("controller"), end("device")]).stderr(Stdio::null()));
    let ends = ["controller", "device"].map(|name| fleet.path().join(format!("{name}-{number}")));
    wait_until("cable", || ends.iter().all(|end| end.exists()));
    cable
}

#[test]
fn devices_on_serial_ports_learn() {
    let fleet = Fleet::new("serial", 2);
    let path = fleet.path().display().to_string();
    let _first = cable(&fleet, 1);
    // The second cable is plugged in later.
    fleet.configure(&format!(
        "steps = 40000\nepisode-len = 4\nserial = [\"{path}/controller-1:115200\", \"{path}/controller-2:9600\"]"
    ));
    let service = fleet.serve();
    assert_eq!(service.devices[1], format!("serial://{path}/controller-1:115200"));
    // Boot messages of a board are not frames.
    let mut line = fs::OpenOptions::new().write(true).open(format!("{path}/device-1")).unwrap();
    line.write_all(b"boot v1.2\r\nready\r\n").unwrap();
    drop(line);
    let arguments = "--episodes 30 --first";
    let devices = [1, 2].map(|n| fleet.devices(&format!("serial://{path}/device-{n}"), &format!("{arguments} {n}")));
    let second = cable(&fleet, 2);
    service.wait_for_episode(10);
    // Unplugged and plugged in again.
    drop(second);
    let _second = cable(&fleet, 2);
    for device in devices {
        assert_eq!(device.report()["acknowledged"], 30);
    }
    drop(service);
    assert_eq!(fleet.stored().len(), 60);
}

#[test]
fn invalid_ports_are_refused() {
    let fleet = Fleet::new("serial-errors", 2);
    for (serial, sentence) in [
        ("\"/dev/ttyUSB0\"", "serial: invalid type: string"),
        ("[\"/dev/ttyUSB0:fast\"]", "invalid serial port; expected PATH:BAUD"),
        ("[5]", "controller.toml:5: serial: invalid type: "),
    ] {
        fleet.configure(&format!("serial = {serial}"));
        fleet.refuses("serve --config controller.toml", 78, sentence);
    }
    let gateway = "gateway --connect tcp://127.0.0.1:1 --serial";
    fleet.refuses(
        &format!("{gateway} /dev/ttyUSB0:fast"),
        2,
        "--serial /dev/ttyUSB0:fast: invalid serial port; expected PATH:BAUD",
    );
    let device = "device --identities fleet/devices --connect serial://";
    fleet.refuses(&format!("{device}/dev/ttyUSB0 --count 2"), 2, "--count 2: a serial port takes one device");
    fleet.refuses(&format!("{device}/dev/ttyUSB0:0"), 2, "invalid serial port; expected PATH:BAUD");
}

/// A missing port is logged once, however often it is tried, and again when it is back. A gateway logs the same.
#[test]
fn missing_port_is_logged_once() {
    let fleet = Fleet::new("serial-away", 2);
    let path = fleet.path().display().to_string();
    fleet.configure(&format!("serial = [\"{path}/controller-1:9600\"]"));
    let log = fleet.path().join("log");
    let service = fleet.serve_and_log("info", File::create(&log).unwrap().into());
    let logged = |words: &str| {
        let log = fs::read_to_string(&log).unwrap();
        log.lines().filter(|line| line.contains(&format!("serial {path}/controller-1: {words}"))).count()
    };
    // A named pipe is not a serial port. Opening it for reading waits for the next attempt of the service.
    let pipe = fleet.path().join("controller-1");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for _ in 0..3 {
        File::open(&pipe).unwrap().read_to_end(&mut Vec::new()).unwrap();
    }
    assert_eq!(logged("cannot open: "), 1);
    fs::remove_file(&pipe).unwrap();
    let _cable = cable(&fleet, 1);
    wait_until("log of the connection", || logged("connected") == 1);
    drop(service);
    for (arguments, sentence) in [
        (format!("--serial {path}/nowhere:9600 --connect tcp://127.0.0.1:1"), "nowhere:9600: cannot open: "),
        (format!("--serial {path}/controller-1 --connect tcp://127.0.0.1:1"), "tcp://127.0.0.1:1: Connection refused"),
    ] {
        let mut gateway = fleet.command(&format!("gateway --log warn {arguments}"));
        let mut gateway = Process::spawn(gateway.stderr(Stdio::piped()));
        let _board = sentence.starts_with("tcp").then(|| fleet.devices(&format!("serial://{path}/device-1"), ""));
        let complaint = gateway.stderr().next().unwrap();
        assert!(complaint.contains(sentence) && complaint.ends_with("; retrying"), "{complaint}");
    }
}
