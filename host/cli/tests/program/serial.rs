//! Devices on serial ports, which are pairs of pseudo-terminals here.

use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::test_fleet::{Fleet, Process, wait_until};

/// A cable between `controller-N` and `device-N`.
fn cable(fleet: &Fleet, number: u32) -> Process {
    let end = |name: &str| format!("pty,raw,echo=0,link={}", fleet.path().join(format!("{name}-{number}")).display());
    let cable = Process::spawn(Command::new("socat").args([end("controller"), end("device")]));
    let ends = ["controller", "device"].map(|name| fleet.path().join(format!("{name}-{number}")));
    wait_until("the cable is there", || ends.iter().all(|end| end.exists()));
    cable
}

#[test]
fn devices_on_serial_ports_learn() {
    let fleet = Fleet::new("serial", 2);
    let path = fleet.path().display().to_string();
    let _first = cable(&fleet, 1);
    // The second cable is plugged in later.
    fleet.configure(&format!(
        "deadline = 600\nsteps = 40000\nepisode-len = 4\nserial = [\"{path}/controller-1:115200\", \"{path}/controller-2:9600\"]"
    ));
    let service = fleet.serve();
    assert_eq!(service.devices[1], format!("serial://{path}/controller-1:115200"));
    // What a board says before it starts is no frame.
    let mut line = fs::OpenOptions::new().write(true).open(format!("{path}/device-1")).unwrap();
    line.write_all(b"boot v1.2\r\nready\r\n").unwrap();
    drop(line);
    let arguments = "--episodes 30 --patience 600000 --first";
    let devices = [1, 2].map(|n| fleet.devices(&format!("serial://{path}/device-{n}"), &format!("{arguments} {n}")));
    let second = cable(&fleet, 2);
    service.wait_for_episode(10);
    // Unplugged, and plugged in again.
    drop(second);
    let _second = cable(&fleet, 2);
    for device in devices {
        assert_eq!(device.lives()["acknowledged"], 30);
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
        ("[5]", "serial: invalid type: integer `5`, expected a string"),
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

/// A port that is not there is told once, and again when it comes; a gateway says the same.
#[test]
fn missing_port_is_logged_once() {
    let fleet = Fleet::new("serial-away", 2);
    let path = fleet.path().display().to_string();
    fleet.configure(&format!("serial = [\"{path}/controller-1:9600\"]"));
    let log = fleet.path().join("log");
    let service = fleet.serve_and_log("info", File::create(&log).unwrap().into());
    let told = |words: &str| {
        let log = fs::read_to_string(&log).unwrap();
        log.lines().filter(|line| line.contains(&format!("serial {path}/controller-1: {words}"))).count()
    };
    wait_until("it is told", || told("cannot open: ") == 1);
    // It was tried again meanwhile.
    thread::sleep(Duration::from_secs(2));
    assert_eq!(told("cannot open: "), 1);
    let _cable = cable(&fleet, 1);
    wait_until("it is told", || told("connected") == 1);
    drop(service);
    for (arguments, sentence) in [
        (format!("--serial {path}/nowhere:9600 --connect tcp://127.0.0.1:1"), "nowhere:9600: cannot open: "),
        (format!("--serial {path}/controller-1 --connect tcp://127.0.0.1:1"), "tcp://127.0.0.1:1: Connection refused"),
    ] {
        let mut gateway = fleet.command(&format!("gateway --log warn {arguments}"));
        let gateway = Process(gateway.stderr(Stdio::piped()).spawn().unwrap());
        let _board = sentence.starts_with("tcp").then(|| fleet.devices(&format!("serial://{path}/device-1"), ""));
        let complaint = gateway.complaint();
        assert!(complaint.contains(sentence) && complaint.ends_with("; retrying"), "{complaint}");
    }
}
