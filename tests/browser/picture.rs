//! Takes the picture of the overview for the README, of the running demo.
//!
//! `scripts/dashboard-picture` sets `SERIATIM_PICTURE` to a file, and gives the demo five minutes,
//! so that the charts are full. As a test, it takes a picture after a few seconds.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

use crate::dashboard::first_url;
use crate::driver::{Driver, Scheme};
use crate::support::console::PATIENCE;
use crate::support::until;

/// Width and height of the picture.
const WIDTH: u32 = 1280;
const HEIGHT: u32 = 1060;
/// Maximum size of the picture in bytes. The repository has it.
const BYTES_MAX: u64 = 200_000;
/// The time for which the charts are filled; and in a test.
const WHOLE: Duration = Duration::from_secs(310);
const SHORT: Duration = Duration::from_secs(5);

/// The demo. It ends when this value is dropped.
struct Demo {
    child: Child,
    dir: tempfile::TempDir,
}

impl Demo {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str| File::create(dir.path().join(name)).expect("a file");
        let mut command = Command::new(crate::support::program());
        command
            .args(["demo", "--dashboard=127.0.0.1:0"])
            .env("USER", "ada")
            .stdin(Stdio::null());
        let child = command
            .stdout(file("output"))
            .stderr(file("log"))
            .spawn()
            .expect("the program starts");
        Self { child, dir }
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).expect("a file")
    }

    /// Waits for the link that the demo prints.
    async fn link(&self) -> String {
        until("the demo prints a link", PATIENCE, async || {
            first_url(&self.read("output"))
        })
        .await
    }

    /// Stops the demo as Ctrl-C does. Returns whether it has ended well.
    async fn stop(mut self) -> bool {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("the signal is sent");
        let child = std::cell::RefCell::new(&mut self.child);
        until("the demo ends", PATIENCE, async || {
            child.borrow_mut().try_wait().expect("it can be asked")
        })
        .await
        .success()
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Chromium; scripts/dashboard-picture runs it"]
async fn the_overview_of_the_running_demo() {
    let file = std::env::var_os("SERIATIM_PICTURE").map(PathBuf::from);
    let time = if file.is_some() { WHOLE } else { SHORT };
    let dir = tempfile::tempdir().expect("a directory");
    let file = file.unwrap_or_else(|| dir.path().join("dashboard.png"));
    let demo = Demo::start();
    let link = demo.link().await;
    let driver = Driver::start().await;
    driver.resize(WIDTH, HEIGHT).await;
    driver.prefer(Scheme::Light).await;
    driver.open(&link).await;
    driver
        .click(&driver.find_button("Open the dashboard").await)
        .await;
    driver.wait_for_text("What needs somebody").await;
    sleep(time).await;
    driver.wait_for_text("Longest queues under work").await;
    driver.screenshot(&file).await;
    assert!(driver.console().await.is_empty());
    let bytes = std::fs::metadata(&file).expect("a picture").len();
    assert!(
        (10_000..BYTES_MAX).contains(&bytes),
        "{}: {bytes} bytes",
        file.display()
    );
    assert_eq!(width_of(&file), WIDTH);
    assert!(demo.stop().await);
}

/// Returns the width of a PNG.
fn width_of(file: &Path) -> u32 {
    let bytes = std::fs::read(file).expect("a picture");
    u32::from_be_bytes(bytes[16..20].try_into().expect("four bytes"))
}
