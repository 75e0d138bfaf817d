//! The status page in Chromium: phone and desktop, light and dark. Screenshots stay in `target/tmp`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::directory::Directory;
use crate::process::{LAST_RESORT, wait_until};
use crate::test_fleet::{Fleet, Service};

/// Script that is added to the page. It records errors, and completes the loading of the page, and so the screenshot, once
/// an event of the service has changed the episode and the device table has arrived.
const WITNESS: &str = r#"<head><script>
const root = document.documentElement, note = top.document.documentElement.dataset;
addEventListener("error", event => { note.problem = event.message; });
console.error = (...words) => { note.problem = words.join(" "); };
addEventListener("DOMContentLoaded", () => {
  const episode = document.getElementById("episode"), before = episode.textContent;
  note.before = before;
  const isComplete = () => episode.textContent !== before && document.getElementById("devices").tBodies[0]?.rows.length;
  new MutationObserver(() => { if (isComplete()) fetch(location.origin + "/go"); }).observe(document.body, { childList: true, subtree: true });
});
addEventListener("load", () => {
  note.after = document.getElementById("episode").textContent;
  note.width = innerWidth;
  note.scroll = root.scrollWidth;
  note.background = getComputedStyle(document.body).backgroundColor;
});
</script>"#;

/// Serves a service's pages with [`WITNESS`] in them, and returns the address.
fn witness(service: &Service) -> String {
    witness_with(service, &service.authorization)
}

/// As [`witness`], with a header for requests of the browser that have no authorization of their own.
fn witness_with(service: &Service, authorization: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let service = (service.http.clone(), authorization.to_owned());
    let go = Arc::new(AtomicBool::new(false));
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (service, go) = (service.clone(), Arc::clone(&go));
            // The browser may close a connection early.
            thread::spawn(move || drop(answer(stream, &service, &go)));
        }
    });
    address
}

fn answer(mut stream: TcpStream, (service, authorization): &(String, String), go: &AtomicBool) -> std::io::Result<()> {
    let lines = BufReader::new(stream.try_clone()?).lines().map_while(Result::ok);
    let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or("/").to_owned();
    let nothing = "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
    match path.as_str() {
        "/go" => go.store(true, Ordering::Relaxed),
        "/hold" => {
            wait_until("event in the page", || go.load(Ordering::Relaxed));
        }
        frame if frame.starts_with("/in/") => {
            // A window has a minimum width, a frame has none.
            let body = format!("<iframe src=\"/\" width=\"{}\" height=\"1500\" style=\"border:0\">", &frame[4..]);
            let kind = "Content-Type: text/html\r\nConnection: close";
            return write!(stream, "HTTP/1.1 200 OK\r\n{kind}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        }
        _ => {
            let own = head.iter().find(|line| line.to_ascii_lowercase().starts_with("authorization:"));
            let authorization = own.map_or_else(|| authorization.clone(), |line| format!("{line}\r\n"));
            let mut upstream = TcpStream::connect(service)?;
            write!(upstream, "GET {path} HTTP/1.0\r\nHost: {service}\r\n{authorization}\r\n")?;
            if path != "/" {
                return std::io::copy(&mut upstream, &mut stream).map(drop);
            }
            go.store(false, Ordering::Relaxed);
            let mut page = String::new();
            upstream.read_to_string(&mut page)?;
            if !page.starts_with("HTTP/1.0 200 ") {
                return stream.write_all(page.as_bytes());
            }
            let body = page.split_once("\r\n\r\n").unwrap().1.replacen("<head>", WITNESS, 1);
            let body = body.replacen("</body>", "<img src=\"/hold\" alt=\"\" hidden></body>", 1);
            let kind = "Content-Type: text/html; charset=utf-8\r\nConnection: close";
            return write!(stream, "HTTP/1.1 200 OK\r\n{kind}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        }
    }
    stream.write_all(nothing.as_bytes())
}

/// The page as rendered by a browser.
struct Seen(String);

impl Seen {
    /// Renders a page in Chromium, with a screenshot.
    fn render(url: &str, (width, height): (u32, u32), dark: bool, name: &str) -> (Self, PathBuf) {
        let profile = Directory::new(&format!("chromium-{name}"));
        let screenshot = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("page-{name}.png"));
        let _ = fs::remove_file(&screenshot);
        let flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
                     --disable-component-update --disable-sync --hide-scrollbars --dump-dom";
        let mut chromium = Command::new("chromium");
        chromium.args(flags.split_whitespace()).arg(format!("--timeout={}", LAST_RESORT.as_millis()));
        chromium.arg(format!("--user-data-dir={}", profile.0.display()));
        chromium.arg(format!("--window-size={width},{height}"));
        chromium.arg(format!("--blink-settings=preferredColorScheme={}", if dark { 0 } else { 1 }));
        chromium.arg(format!("--screenshot={}", screenshot.display()));
        let output = chromium.arg(format!("http://{url}")).output().expect("./ci.sh page installs chromium");
        (Self(String::from_utf8(output.stdout).unwrap()), screenshot)
    }

    /// Renders a page with [`WITNESS`], and asserts that it is sound.
    fn new(url: &str, (width, height): (u32, u32), dark: bool, name: &str) -> Self {
        let (seen, screenshot) = Self::render(url, (width, height), dark, name);
        assert_eq!(seen.note("problem"), None, "{name}");
        assert_eq!(
            seen.note("width").unwrap(),
            seen.note("scroll").unwrap(),
            "{name}: the page is wider than the window"
        );
        let [before, after] = ["before", "after"].map(|when| seen.note(when).unwrap().parse::<u32>().unwrap());
        assert!(before >= 1 && after > before, "{name}: events do not change the episode: {before}, {after}");
        let png = fs::read(&screenshot).unwrap();
        assert_eq!((&png[..8], &png[16..20]), (&b"\x89PNG\r\n\x1a\n"[..], &width.to_be_bytes()[..]));
        // A blank page of this size has less than a tenth of that.
        assert!(png.len() > 20_000, "{name}: {} bytes", png.len());
        seen
    }

    /// Returns a value that [`WITNESS`] recorded.
    fn note(&self, name: &str) -> Option<&str> {
        let rest = self.0.split_once(&format!("data-{name}=\""))?.1;
        Some(rest.split_once('"')?.0)
    }

    /// Returns the text of an element without children.
    fn text(&self, id: &str) -> &str {
        let rest = self.0.split_once(&format!("id=\"{id}\"")).unwrap_or_else(|| panic!("no {id}: {}", self.0)).1;
        rest.split_once('>').unwrap().1.split_once('<').unwrap().0
    }

    /// Returns the number of rows of a table.
    fn rows(&self, id: &str) -> usize {
        let table = self.0.split_once(&format!("<table id=\"{id}\"")).unwrap().1;
        table.split_once("</table>").unwrap().0.matches("<tr>").count()
    }

    /// Sum of red, green and blue of the background.
    fn brightness(&self) -> u32 {
        let numbers = self.note("background").unwrap().split(|c: char| !c.is_ascii_digit());
        numbers.filter_map(|number| number.parse::<u32>().ok()).take(3).sum()
    }

    /// Returns true if an element exists and is hidden.
    fn hides(&self, id: &str) -> bool {
        let tag = self.0.split('<').find(|tag| tag.contains(&format!("id=\"{id}\""))).unwrap();
        tag.split('>').next().unwrap().contains("hidden")
    }
}

const PHONE: (u32, u32) = (390, 1500);
const DESK: (u32, u32) = (1000, 900);

#[test]
#[ignore = "needs Chromium: ./ci.sh page"]
fn page_updates_at_every_width_in_light_and_dark() {
    let fleet = Fleet::empty("page");
    let service = Service::start(fleet.command("serve --demo --http 127.0.0.1:0").stderr(Stdio::null()));
    service.wait_for(|status| status["connected"] == 50);
    let address = witness(&service);
    for width in [320, 390] {
        let seen = Seen::new(&format!("{address}/in/{width}"), (500, 1500), false, &format!("frame-{width}"));
        assert_eq!(seen.note("width"), Some(&*width.to_string()));
    }
    for (name, size) in [("phone", PHONE), ("desk", DESK)] {
        let day = Seen::new(&format!("{address}/"), size, false, &format!("{name}-light"));
        let night = Seen::new(&format!("{address}/"), size, true, &format!("{name}-dark"));
        assert!(day.brightness() > 600 && night.brightness() < 160, "{} {}", day.brightness(), night.brightness());
        assert_eq!((day.text("run"), day.text("state")), ("1", "running"));
        assert_eq!((day.text("enrolled"), day.text("connected")), ("50", "50"));
        assert!(day.text("reward").parse::<f64>().is_ok_and(|reward| reward.abs() < 1.0), "{}", day.text("reward"));
        assert!(!day.hides("reward-card") && day.hides("promise"));
        assert!(day.0.contains("<polyline") && day.0.contains("device "));
        assert_eq!(day.rows("devices"), 26, "a head and a page of 25 devices");
        assert!(day.text("devices-note").starts_with("Distance is in median radii"), "{}", day.text("devices-note"));
        assert!(day.0.contains(", identifiable") && day.0.contains("more than 30 of 50 devices"));
    }
}

#[test]
#[ignore = "needs Chromium: ./ci.sh page"]
fn private_run_shows_its_guarantee_and_no_rewards() {
    let fleet = Fleet::empty("page-private");
    fleet.stdout("enroll --dir fleet --dim 4 --count 5 --private");
    fleet.configure("deadline = 1\nrewards = \"bounded\"\nprivacy = \"4,1e-6\"\nepisode-len = 8");
    let service = fleet.serve();
    let seen = Seen::new(&format!("{}/", witness(&service)), PHONE, false, "private");
    assert!(seen.hides("reward-card") && !seen.hides("promise"));
    assert_eq!(seen.text("reward"), "–");
    assert!(seen.text("promise-text").contains("(μ, ν) = (4, 1.0e-6)"), "{}", seen.text("promise-text"));
    assert_eq!(seen.rows("devices"), 6);
    assert!(seen.text("devices-note").starts_with("A private run shows neither"), "{}", seen.text("devices-note"));
    assert!(seen.0.contains("not shown: releases are private") && seen.0.contains("not available in private runs"));
}

/// The browser sends the token, entered as password, with the page's own requests as well.
#[test]
#[ignore = "needs Chromium: ./ci.sh page"]
fn browser_with_the_token_loads_page_table_and_events() {
    let fleet = Fleet::new("page-token", 3);
    fleet.configure("deadline = 1");
    let service = fleet.serve();
    let token = fs::read_to_string(fleet.path().join("fleet/http.token")).unwrap();
    let address = witness_with(&service, "");
    let seen = Seen::new(&format!("any:{}@{address}/", token.trim()), DESK, false, "token");
    assert_eq!((seen.text("state"), seen.text("enrolled"), seen.rows("devices")), ("running", "3", 4));
}

#[test]
#[ignore = "needs Chromium: ./ci.sh page"]
fn finished_run_has_no_missing_devices_and_no_deadline() {
    let fleet = Fleet::new("page-finished", 2);
    fleet.configure("steps = 8\nepisode-len = 4");
    let service = fleet.serve();
    fleet.devices(&service.devices[0], "--count 2 --episodes 2").report();
    service.wait_for(|status| status["finished"] == true);
    let token = fs::read_to_string(fleet.path().join("fleet/http.token")).unwrap();
    let (seen, _) = Seen::render(&format!("any:{}@{}/", token.trim(), service.http), PHONE, false, "finished");
    assert_eq!((seen.text("state"), seen.text("episode"), seen.text("left")), ("finished", "2", "all episodes closed"));
    assert!(!seen.text("missing").contains(" missing ·") && seen.text("reported") == "–", "{}", seen.text("missing"));
}
