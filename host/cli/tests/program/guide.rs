//! The console blocks of the guide, run as a reader would run them.
//!
//! All blocks of a page are one shell session in an empty directory. A page marks files with `<!-- file: NAME -->`, and blocks that
//! cannot run in a test with `<!-- not run: REASON -->`. `…` in the expected output matches any text. A block without output
//! only has to succeed. Ports are replaced by free ones.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::directory::Directory;
use crate::process::{Process, wait_until};
use crate::test_fleet::free_port;

/// Ports that the pages use.
const PORTS: [&str; 6] = ["7700", "7701", "7702", "7780", "7782", "8883"];

/// A command of a console block and its expected output.
struct Step {
    command: String,
    expected: Vec<String>,
}

#[derive(Default)]
struct Page {
    files: Vec<(String, String)>,
    steps: Vec<Step>,
    skipped: Vec<String>,
}

fn parse(text: &str) -> Page {
    let mut page = Page::default();
    let (mut mark, mut lines) = (String::new(), text.lines());
    while let Some(line) = lines.next() {
        let line = line.trim_start();
        if let Some(comment) = line.strip_prefix("<!-- ") {
            mark = comment.trim_end_matches(" -->").to_owned();
        } else if line.starts_with("```") {
            let block: Vec<&str> = lines.by_ref().take_while(|line| line.trim_start() != "```").collect();
            let mark = std::mem::take(&mut mark);
            if let Some(name) = mark.strip_prefix("file: ") {
                page.files.push((name.to_owned(), block.join("\n") + "\n"));
            } else if let Some(reason) = mark.strip_prefix("not run: ") {
                page.skipped.push(reason.to_owned());
            } else if line == "```console" {
                page.steps.extend(steps(&block));
            }
        }
    }
    page
}

fn steps(block: &[&str]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in block.iter().map(|line| line.trim()) {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push(Step { command: command.to_owned(), expected: Vec::new() }),
            (None, Some(step)) => step.expected.push(line.to_owned()),
            (None, None) => panic!("output before the first command: {line}"),
        }
    }
    steps
}

/// Returns a script that writes the output of step N to `out-N`.
///
/// A background command is awaited until it has printed as many lines as expected, or has exited.
fn script(steps: &[Step]) -> String {
    let mut script = String::from("set -m\ntrap 'kill $(jobs -p) 2>/dev/null' EXIT\n");
    for (number, step) in steps.iter().enumerate() {
        let file = format!("out-{number}");
        match step.command.strip_suffix(" &") {
            Some(command) => {
                let lines = step.expected.len();
                let errors = if command.contains("2> ") { "" } else { " 2>&1" };
                // `exec`, so that `wait` awaits the command itself and not only a shell around it.
                let _ = writeln!(script, "{{ exec {command} ; }} > {file}{errors} &");
                let _ = writeln!(
                    script,
                    "while [ $(cat {file} 2>/dev/null | wc -l) -lt {lines} ] && kill -0 $! 2>/dev/null; do sleep 0.05; done"
                );
            }
            None => {
                let _ = writeln!(script, "{{ {} ; }} > {file} 2>&1; echo $? > code-{number}", step.command);
            }
        }
    }
    script
}

/// Returns true if the printed text has the parts of a pattern between `…`, in order.
fn matches(pattern: &str, mut printed: &str) -> bool {
    let parts: Vec<&str> = pattern.split('…').collect();
    for (index, part) in parts.iter().enumerate() {
        let found = if index == 0 { printed.starts_with(part).then_some(0) } else { printed.find(part) };
        let Some(at) = found else { return false };
        printed = &printed[at + part.len()..];
    }
    printed.is_empty() || pattern.ends_with('…')
}

/// Runs a page, and returns the reasons of the blocks that were not run.
fn run(page: &str) -> Vec<String> {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide");
    let mut text = fs::read_to_string(Path::new(guide).join(page)).unwrap();
    for port in PORTS {
        text = text.replace(port, &free_port().to_string());
    }
    let Page { files, steps, skipped } = parse(&text);
    let here = Directory::new(&format!("guide-{page}"));
    for (name, mut content) in files {
        // As root, mosquitto would switch to a user that may not read the test's directory.
        if name == "mosquitto.conf"
            && fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
        {
            content += "user root\n";
        }
        fs::write(here.0.join(name), content).unwrap();
    }
    fs::write(here.0.join("script"), script(&steps)).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_fedbandit")).parent().unwrap();
    let path = format!("{}:/usr/sbin:{}", program.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("bash");
    shell.arg("script").current_dir(&here.0).env("PATH", path).stdin(Stdio::null()).stdout(Stdio::null());
    let mut shell = Process::spawn(&mut shell);
    wait_until("end of the page", || shell.has_ended());
    for (number, Step { command, expected }) in steps.iter().enumerate() {
        let printed = fs::read_to_string(here.0.join(format!("out-{number}"))).unwrap_or_default();
        let pattern = expected.join("\n");
        let printed: Vec<&str> = printed.lines().map(str::trim).collect();
        if !expected.is_empty() {
            assert!(
                matches(&pattern, &printed.join("\n")),
                "{page}: {command}\nprinted:\n{}\nexpected:\n{pattern}",
                printed.join("\n")
            );
        } else if !command.ends_with(" &") && !command.starts_with("wait ") {
            let code = fs::read_to_string(here.0.join(format!("code-{number}"))).unwrap_or_default();
            assert_eq!(code.trim(), "0", "{page}: {command}\nprinted:\n{}", printed.join("\n"));
        }
    }
    assert!(steps.len() >= 10, "{page}: {} commands", steps.len());
    skipped
}

#[test]
fn fleet_page_prints_the_documented_output() {
    let skipped = [
        "takes minutes, and installs into the user's home",
        "needs root, and the user of Debian's mosquitto package",
        "needs serial ports",
        "needs a serial port",
    ];
    assert_eq!(run("fleet.md"), skipped);
}

#[test]
fn operations_page_prints_the_documented_output() {
    let skipped =
        ["needs root and a release build", "needs root and systemd", "needs a release build and a container engine"];
    assert_eq!(run("operations.md"), skipped);
}

#[test]
fn patterns_match_text_around_ellipses() {
    assert!(matches("a…c", "abc") && matches("a…", "abc") && matches("…", "") && matches("a\n…", "a\nb\nc"));
    assert!(!matches("a…c", "abd") && !matches("ab", "abc") && !matches("b…", "abc"));
}
