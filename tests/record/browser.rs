//! Headless Chromium with one page, led over the pipe of its debugging protocol: a local file is opened, clicked and looked
//! at, and what goes wrong in it is collected. No network, and a profile of its own.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common;

mod pages;

/// What Debian and others call it.
const NAMES: [&str; 4] = [
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
];

/// How long everything with one browser may take. Whatever hangs ends here, with what the page said until then.
const DEADLINE: Duration = Duration::from_secs(300);

pub struct Browser {
    child: Child,
    /// Commands: JSON, each ended by a zero byte.
    commands: ChildStdin,
    /// What the browser says, likewise.
    messages: Receiver<Value>,
    /// The page's session.
    session: Option<String>,
    last: u64,
    loads: u64,
    deadline: Instant,
    folder: PathBuf,
    problems: Vec<String>,
    console: Vec<String>,
    requests: Vec<String>,
}

/// The first of `names` that is installed.
fn installed(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = |name: &&str| {
        std::env::split_paths(&path)
            .map(|dir| dir.join(name))
            .find(|file| file.exists())
    };
    names.iter().find_map(found)
}

impl Browser {
    /// Starts a browser; its own files go into a fresh folder `name`.
    pub fn start(name: &str) -> Browser {
        let Some(program) = installed(&NAMES) else {
            common::skip("chromium", "not installed");
        };
        let folder = common::scratch(name);
        let flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-extensions",
            "--disable-sync",
            "--no-default-browser-check",
            "--no-first-run",
            "--no-proxy-server",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--remote-debugging-pipe",
        ];
        let mut profile = OsString::from("--user-data-dir=");
        profile.push(folder.join("profile"));
        let stderr = std::fs::File::create(folder.join("stderr.txt")).unwrap();
        // It takes commands on 3 and answers on 4. The rest of what it starts is killed with it, as one group.
        let mut child = Command::new("sh")
            .args(["-c", r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >&2"#])
            .arg(program)
            .args(flags)
            .arg(profile)
            .arg("about:blank")
            .env("HOME", &folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .process_group(0)
            .spawn()
            .unwrap();
        let (commands, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(answers).split(0) {
                let Ok(message) = message else { return };
                let message = serde_json::from_slice(&message).expect("the protocol is JSON");
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Browser {
            child,
            commands,
            messages,
            session: None,
            last: 0,
            loads: 0,
            deadline: Instant::now() + DEADLINE,
            folder,
            problems: Vec::new(),
            console: Vec::new(),
            requests: Vec::new(),
        };
        let target = browser.command("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.command("Target.attachToTarget", attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network", "Inspector"] {
            browser.command(&format!("{domain}.enable"), json!({}));
        }
        browser.window(1280, 900);
        browser
    }

    /// Opens a file, and returns when all that it loads is there. What was collected of another page is forgotten.
    pub fn open(&mut self, file: &Path) {
        let before = self.loads;
        self.problems.clear();
        self.console.clear();
        self.requests.clear();
        let file = file.canonicalize().unwrap();
        let url = format!("file://{}", file.to_str().unwrap());
        let answer = self.command("Page.navigate", json!({ "url": url }));
        assert!(answer.get("errorText").is_none(), "{url}: {answer}");
        while self.loads == before {
            let message = self.receive("the page to load");
            self.event(&message);
        }
    }

    /// What JavaScript makes of `expression`; a promise is waited for. An exception fails the test.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let parameters = json!({
            "expression": expression, "returnByValue": true, "awaitPromise": true, "userGesture": true,
        });
        let answer = self.command("Runtime.evaluate", parameters);
        if let Some(exception) = answer.get("exceptionDetails") {
            panic!("{expression}: {}\n{}", thrown(exception), self.said());
        }
        answer["result"]["value"].clone()
    }

    /// A number that JavaScript gives.
    pub fn number(&mut self, expression: &str) -> f64 {
        let value = self.evaluate(expression);
        value
            .as_f64()
            .unwrap_or_else(|| panic!("{expression} is {value}, not a number"))
    }

    /// A text that JavaScript gives.
    pub fn text(&mut self, expression: &str) -> String {
        match self.evaluate(expression) {
            Value::String(text) => text,
            value => panic!("{expression} is {value}, not a text"),
        }
    }

    /// Waits until JavaScript says that `condition` holds.
    pub fn wait_for(&mut self, condition: &str) {
        while self.evaluate(&format!("Boolean({condition})")) != Value::Bool(true) {
            // Before it is too late to ask.
            let late = self.deadline.saturating_duration_since(Instant::now()) < Duration::from_secs(2);
            assert!(!late, "never: {condition}\n{}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The middle of the first element that `selector` names, where one can see it.
    fn place(&mut self, selector: &str) -> (f64, f64) {
        let script = format!(
            "(() => {{ const element = document.querySelector({});
              if (!element) return null;
              element.scrollIntoView({{block: 'center', inline: 'center', behavior: 'instant'}});
              const at = element.getBoundingClientRect();
              return [at.x + at.width / 2, at.y + at.height / 2]; }})()",
            json!(selector)
        );
        let place = self.evaluate(&script);
        match (place[0].as_f64(), place[1].as_f64()) {
            (Some(x), Some(y)) => (x, y),
            _ => panic!("no element {selector}\n{}", self.said()),
        }
    }

    fn mouse(&mut self, kind: &str, (x, y): (f64, f64)) {
        let count = u32::from(kind != "mouseMoved");
        let button = if count == 0 { "none" } else { "left" };
        let event = json!({"type": kind, "x": x, "y": y, "button": button, "clickCount": count});
        self.command("Input.dispatchMouseEvent", event);
    }

    /// Moves the mouse over an element.
    pub fn hover(&mut self, selector: &str) {
        let place = self.place(selector);
        self.mouse("mouseMoved", place);
    }

    /// Clicks an element, as a mouse does.
    pub fn click(&mut self, selector: &str) {
        let place = self.place(selector);
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
            self.mouse(kind, place);
        }
    }

    /// Presses a key: a character, or what JavaScript calls it (`Enter`, `Tab`, `ArrowLeft`…).
    pub fn key(&mut self, key: &str) {
        let code = match key {
            "Backspace" => 8,
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            " " => 32,
            "PageUp" => 33,
            "PageDown" => 34,
            "End" => 35,
            "Home" => 36,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            _ => key.chars().next().map_or(0, |first| first.to_ascii_uppercase() as u32),
        };
        let mut event = json!({"type": "keyDown", "key": key, "windowsVirtualKeyCode": code});
        if key == "Enter" {
            event["text"] = json!("\r");
        } else if key.chars().count() == 1 {
            event["text"] = json!(key);
        }
        self.command("Input.dispatchKeyEvent", event);
        let up = json!({"type": "keyUp", "key": key, "windowsVirtualKeyCode": code});
        self.command("Input.dispatchKeyEvent", up);
    }

    /// Chooses files in an `<input type=file>`.
    pub fn choose(&mut self, selector: &str, files: &[&Path]) {
        let expression = format!("document.querySelector({})", json!(selector));
        let element = self.command("Runtime.evaluate", json!({ "expression": expression }));
        let object = element["result"]["objectId"].clone();
        assert!(object.is_string(), "no element {selector}\n{}", self.said());
        let parameters = json!({"files": files, "objectId": object});
        self.command("DOM.setFileInputFiles", parameters);
    }

    /// The size of the window, in pixels of the page.
    pub fn window(&mut self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.command("Emulation.setDeviceMetricsOverride", size);
    }

    /// What the reader prefers, as `prefers-color-scheme` says it: `light` or `dark`.
    pub fn color_scheme(&mut self, scheme: &str) {
        let feature = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.command("Emulation.setEmulatedMedia", json!({ "features": feature }));
    }

    /// A picture of the window, as PNG.
    pub fn screenshot(&mut self, file: &Path) {
        let answer = self.command("Page.captureScreenshot", json!({"format": "png"}));
        std::fs::write(file, base64(answer["data"].as_str().unwrap())).unwrap();
    }

    /// What went wrong in the page so far: exceptions, errors on the console, what could not be loaded, dialogs.
    pub fn problems(&mut self) -> &[String] {
        // Events come before the answer that they precede.
        self.evaluate("0");
        &self.problems
    }

    /// Everything else on the console.
    pub fn console(&mut self) -> &[String] {
        self.evaluate("0");
        &self.console
    }

    /// Every address that the page asked for, with its own.
    pub fn requests(&mut self) -> &[String] {
        self.evaluate("0");
        &self.requests
    }

    /// A command of the debugging protocol; its result. An error fails the test.
    pub fn command(&mut self, method: &str, parameters: Value) -> Value {
        let number = self.send(method, parameters);
        loop {
            let mut message = self.receive(method);
            if message["id"] == number {
                assert!(message.get("error").is_none(), "{method}: {message}\n{}", self.said());
                return message["result"].take();
            }
            self.event(&message);
        }
    }

    /// Sends a command, whose answer has the number that is returned.
    fn send(&mut self, method: &str, parameters: Value) -> u64 {
        self.last += 1;
        let mut command = json!({"id": self.last, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        let mut bytes = command.to_string().into_bytes();
        bytes.push(0);
        if let Err(error) = self.commands.write_all(&bytes) {
            panic!("{method}: {error}\n{}", self.said());
        }
        self.last
    }

    fn receive(&mut self, waiting: &str) -> Value {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match self.messages.recv_timeout(left) {
            Ok(message) => message,
            Err(error) => panic!("waiting for {waiting}: {error}\n{}", self.said()),
        }
    }

    fn event(&mut self, message: &Value) {
        let parameters = &message["params"];
        match message["method"].as_str().unwrap_or_default() {
            "Page.loadEventFired" => self.loads += 1,
            "Network.requestWillBeSent" => self.requests.push(words(&parameters["request"]["url"])),
            "Runtime.exceptionThrown" => self.problems.push(thrown(&parameters["exceptionDetails"])),
            "Runtime.consoleAPICalled" => {
                let said = parameters["args"].as_array().into_iter().flatten();
                let said: Vec<String> = said
                    .map(|one| words(one.get("value").unwrap_or(&one["description"])))
                    .collect();
                let (kind, said) = (words(&parameters["type"]), said.join(" "));
                match kind.as_str() {
                    "error" | "assert" => self.problems.push(format!("console.{kind}: {said}")),
                    _ => self.console.push(format!("{kind}: {said}")),
                }
            }
            "Log.entryAdded" => {
                let entry = &parameters["entry"];
                let said = format!("{} {}", words(&entry["text"]), words(&entry["url"]));
                match entry["level"].as_str() {
                    Some("error") => self.problems.push(said),
                    _ => self.console.push(said),
                }
            }
            "Page.javascriptDialogOpening" => {
                self.problems
                    .push(format!("a dialog: {}", words(&parameters["message"])));
                self.send("Page.handleJavaScriptDialog", json!({"accept": false}));
            }
            "Inspector.targetCrashed" => panic!("the page crashed\n{}", self.said()),
            _ => {}
        }
    }

    /// What is to be known where a test fails.
    fn said(&self) -> String {
        let stderr = std::fs::read_to_string(self.folder.join("stderr.txt")).unwrap_or_default();
        format!(
            "problems: {:#?}\nconsole: {:#?}\nthe browser's stderr:\n{stderr}",
            self.problems, self.console
        )
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // SAFETY: signals a group that this process made, whose leader it has not waited for yet.
        unsafe { libc::kill(-(self.child.id() as i32), libc::SIGKILL) };
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(self.folder.join("profile"));
    }
}

/// A text as it is, anything else as JSON.
fn words(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn thrown(details: &Value) -> String {
    let (text, description) = (&details["text"], &details["exception"]["description"]);
    format!("{} {} line {}", words(text), words(description), details["lineNumber"])
}

fn base64(text: &str) -> Vec<u8> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'=').map(value).collect();
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for four in digits.chunks(4) {
        let word = four
            .iter()
            .enumerate()
            .fold(0u32, |word, (at, digit)| word | u32::from(*digit) << (18 - 6 * at));
        bytes.extend_from_slice(&word.to_be_bytes()[1..four.len()]);
    }
    bytes
}
